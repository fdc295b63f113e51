//! Writes the status of a policy.

use crate::{
    index::{
        message::WrittenObject,
        work::{PolicyStatusWrite, UnreadableStatusWrite},
    },
    lenient::Lenient,
    metrics::WorkKind,
    write::{
        cluster_writer::{ClusterWriter, patch_params},
        error::WriteError,
        rejected_patch::{RejectedPatch, RereadObject},
    },
};
use gpunode_crds::{GpuNodePolicy, GpuNodePolicyStatus, NodeCounts};
use gpunode_plan::PatchBuilder;
use kube::{Api, Resource as _, ResourceExt, api::Patch};
use serde_json::json;

/// Replaces the status of a policy.
pub async fn write_policy_status(
    writer: &ClusterWriter,
    name: &str,
    sent: Box<PolicyStatusWrite>,
) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let version = sent.policy.resource_version().unwrap_or_default();
    let returned = replace_status(writer, name, &version, &sent.status).await?;
    let NodeCounts {
        matched,
        ready,
        updating,
        failed,
        conflicted,
        ..
    } = sent.status.nodes.unwrap_or_default();
    // The status is written once a second at most. Each node has a line at the level debug.
    tracing::info!(
        policy = name,
        matched,
        ready,
        updating,
        failed,
        conflicted,
        "nodes of the policy"
    );
    // A response that cannot be parsed is no failure to write; the watch brings it too.
    let returned = returned.into_object().map(Box::new);
    let object = returned.map(|returned| WrittenObject::PolicyStatus { returned, sent });
    slot.accepted(WorkKind::Status, object);
    Ok(())
}

/// Replaces the status of a policy that cannot be read.
pub async fn write_unreadable_status(
    writer: &ClusterWriter,
    name: &str,
    write: UnreadableStatusWrite,
) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    replace_status(writer, name, &write.version, &write.status).await?;
    slot.accepted(WorkKind::Status, None);
    Ok(())
}

async fn replace_status(
    writer: &ClusterWriter,
    name: &str,
    version: &str,
    status: &GpuNodePolicyStatus,
) -> Result<Lenient<GpuNodePolicy>, WriteError> {
    let policies: Api<Lenient<GpuNodePolicy>> = Api::all(writer.client.clone());
    let mut patch = PatchBuilder::guarded_by(version);
    // Replaces the whole status, so that no old field stays.
    patch.add(&["status"], json!(status));
    let patch = patch.build().unwrap_or_default();
    let patched = policies
        .patch_status(name, &patch_params(), &Patch::<()>::Json(patch.clone()))
        .await;
    match patched {
        Ok(returned) => Ok(returned),
        Err(source) => {
            let rejected = RejectedPatch {
                name,
                patch: &patch,
                action: format!("patch status of gpunodepolicy {name}"),
                source,
            };
            let (error, reread) = rejected.explain(&policies).await;
            if let RereadObject::Changed(policy) = reread
                && let Some(read) = &policy.meta().resource_version
            {
                let written = &writer.results.written;
                written.compare(&GpuNodePolicy::plural(&()), read, version);
            }
            Err(error)
        }
    }
}
