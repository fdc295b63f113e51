//! Writes the status of a policy.

use crate::{
    index::{message::WrittenObject, work::PolicyStatusWrite},
    metrics::WorkKind,
    write::{
        cluster_writer::{ClusterWriter, patch_params},
        error::WriteError,
    },
};
use gpunode_crds::GpuNodePolicy;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation, jsonptr::PointerBuf};
use kube::{Api, api::Patch};
use serde_json::json;

/// Replaces the status of a policy.
pub async fn write_policy_status(
    writer: &ClusterWriter,
    name: &str,
    sent: Box<PolicyStatusWrite>,
) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let policies: Api<GpuNodePolicy> = Api::all(writer.client.clone());
    let patch = Patch::<GpuNodePolicy>::Json(JsonPatch(vec![
        PatchOperation::Test(TestOperation {
            path: PointerBuf::from_tokens(["metadata", "resourceVersion"]),
            value: json!(sent.policy.metadata.resource_version),
        }),
        // Replaces the whole status, so that no old field stays.
        PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["status"]),
            value: json!(sent.status),
        }),
    ]));
    let patched = policies.patch_status(name, &patch_params(), &patch).await;
    let returned = patched.map_err(WriteError::request(format!("patch status of gpunodepolicy {name}")))?;
    let returned = Box::new(returned);
    slot.accepted(WorkKind::Status, Some(WrittenObject::PolicyStatus { returned, sent }));
    Ok(())
}
