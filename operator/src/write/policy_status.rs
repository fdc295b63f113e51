//! The status of a policy.

use super::{ApplyError, Writer, patch_params};
use crate::{events::Notice, index::work::StatusWork, metrics::Kind, reconcile::Controller};
use gpunode_crds::GpuNodePolicy;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation, jsonptr::PointerBuf};
use kube::{Api, api::Patch};
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
            PatchOperation::Add(AddOperation {
                path: PointerBuf::from_tokens(["status"]),
                value: json!(work.status),
            }),
        ]);
        let patched = policies
            .patch_status(name, &patch_params(), &Patch::<GpuNodePolicy>::Json(patch))
            .await;
        let policy = patched.map_err(ApplyError::request(format!("patch status of gpunodepolicy {name}")))?;
        self.wrote(Kind::Status);
        controller.with_index(|index, now, effects| index.update_policy(policy, now, effects));
        for notice in Notice::of_status(&work.policy, &work.status) {
            controller.notify(notice);
        }
        Ok(())
    }
}
