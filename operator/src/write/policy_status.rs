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
use gpunode_plan::PatchBuilder;
use kube::{Api, ResourceExt, api::Patch};
use serde_json::json;

/// Replaces the status of a policy.
pub async fn write_policy_status(
    writer: &ClusterWriter,
    name: &str,
    sent: Box<PolicyStatusWrite>,
) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let policies: Api<GpuNodePolicy> = Api::all(writer.client.clone());
    let mut patch = PatchBuilder::guarded_by(&sent.policy.resource_version().unwrap_or_default());
    // Replaces the whole status, so that no old field stays.
    patch.add(&["status"], json!(sent.status));
    let patch = Patch::<()>::Json(patch.build().unwrap_or_default());
    let patched = policies.patch_status(name, &patch_params(), &patch).await;
    let returned = patched.map_err(WriteError::request(format!("patch status of gpunodepolicy {name}")))?;
    let returned = Box::new(returned);
    slot.accepted(WorkKind::Status, Some(WrittenObject::PolicyStatus { returned, sent }));
    Ok(())
}
