//! The status of a policy.

use super::{ApplyError, Writer, patch_params};
use crate::{
    controller::{Controller, Notice, StatusWork},
    metrics::Kind,
};
use gpunode_crds::{ConditionType, GpuNodePolicy, GpuNodePolicyStatus, Mode};
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Resource, api::Patch};
use serde_json::json;

impl Writer {
    /// Writes a status that differs, and tells people what that means.
    pub async fn apply_status(&self, controller: &Controller, name: &str, work: StatusWork) -> Result<(), ApplyError> {
        let policies: Api<GpuNodePolicy> = Api::all(self.client.clone());
        let patch = JsonPatch(vec![
            PatchOperation::Test(TestOperation {
                path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
                value: json!(work.policy.metadata.resource_version),
            }),
            // It replaces the whole status, so that nothing old stays in it.
            PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(["status"]), value: json!(work.status) }),
        ]);
        let patched = policies.patch_status(name, &patch_params(), &Patch::<GpuNodePolicy>::Json(patch)).await;
        let policy = patched.map_err(ApplyError::request(format!("patch status of gpunodepolicy {name}")))?;
        self.wrote(Kind::Status);
        controller.with_index(|index, now, effects| index.update_policy(policy, now, effects));
        for notice in transitions(&work.policy, &work.status) {
            controller.notify(notice);
        }
        Ok(())
    }
}

/// The conditions that changed and that people want to hear of. A policy in mode Preview writes nothing but its status.
fn transitions(policy: &GpuNodePolicy, after: &GpuNodePolicyStatus) -> Vec<Notice> {
    if policy.spec.mode() == Mode::Preview {
        return Vec::new();
    }
    let told = [ConditionType::Ready, ConditionType::Degraded, ConditionType::Conflict].map(ConditionType::as_str);
    let old = |type_: &str| policy.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_);
    let is_new = |condition: &&Condition| match old(&condition.type_) {
        Some(old) => (&old.status, &old.reason) != (&condition.status, &condition.reason),
        // That nothing is wrong with a new policy is no news.
        None => condition.type_ == ConditionType::Ready.as_str() || condition.status == "True",
    };
    let conditions = after.conditions.iter().filter(|condition| told.contains(&condition.type_.as_str()));
    conditions
        .filter(is_new)
        .map(|condition| Notice {
            policy: policy.object_ref(&()),
            node: None,
            is_warning: condition.type_ != ConditionType::Ready.as_str() && condition.status == "True"
                || condition.reason == gpunode_crds::Reason::InvalidSpec.as_str(),
            reason: condition.reason.clone(),
            message: format!("{}: {}", condition.type_, condition.message),
        })
        .collect()
}
