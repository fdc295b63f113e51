//! Writes the configuration in a `GpuNode`, and the operator's conditions in its status.

use crate::{
    index::{cache::WriteKind, message::WrittenObject},
    lenient::Lenient,
    metrics::WorkKind,
    watched::Watched,
    write::{
        cluster_writer::{ClusterWriter, patch_params, post_params},
        error::WriteError,
    },
};
use gpunode_crds::{ConfigurationStep, GpuNode, OPERATOR_FIELD_MANAGER};
use gpunode_plan::{ConditionsChange, GpuNodeChange, GpuNodeFacts};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

/// Creates, changes or deletes a `GpuNode`.
pub async fn write_gpu_node(writer: &ClusterWriter, name: &str, change: GpuNodeChange) -> Result<(), WriteError> {
    match change {
        GpuNodeChange::None => return Ok(()),
        GpuNodeChange::Create(gpu_node) => create(writer, name, &gpu_node).await?,
        GpuNodeChange::Configure {
            resource_version,
            config,
            step,
        } => {
            let spec = json!({"config": config, "step": step.map(merge_patch_of)});
            patch_spec(writer, name, resource_version, spec).await?;
        }
        GpuNodeChange::Step { resource_version, step } => {
            let spec = json!({"step": step.map(merge_patch_of)});
            patch_spec(writer, name, resource_version, spec).await?;
        }
        GpuNodeChange::Requests {
            resource_version,
            release,
            served_by_dra,
            recovered,
        } => {
            // In a merge patch null removes the field, which means false.
            let (release, served_by_dra) = (release.then_some(true), served_by_dra.then_some(true));
            let spec = json!({"release": release, "servedByDra": served_by_dra, "recovered": recovered});
            patch_spec(writer, name, resource_version, spec).await?;
        }
        GpuNodeChange::Own {
            resource_version,
            owners,
        } => {
            let metadata = json!({"resourceVersion": resource_version, "ownerReferences": owners});
            patch(writer, name, json!({"metadata": metadata})).await?;
        }
        GpuNodeChange::Delete { uid, resource_version } => delete(writer, name, uid, resource_version).await?,
    }
    tracing::debug!(node = name, "wrote configuration");
    Ok(())
}

async fn create(writer: &ClusterWriter, name: &str, gpu_node: &GpuNode) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let gpu_nodes: Api<GpuNode> = Api::all(writer.client.clone());
    let created = gpu_nodes.create(&post_params(), gpu_node).await;
    let created = created.map_err(WriteError::creation(format!("create gpunode {name}")))?;
    let object = WrittenObject::GpuNode(Box::new(GpuNodeFacts::of(created)), WriteKind::Create);
    slot.accepted(WorkKind::GpuNode, Some(object));
    Ok(())
}

async fn patch_spec(
    writer: &ClusterWriter,
    name: &str,
    resource_version: String,
    spec: Value,
) -> Result<(), WriteError> {
    // With the resourceVersion the API server refuses the patch if the object changed meanwhile.
    let change = json!({"metadata": {"resourceVersion": resource_version}, "spec": spec});
    patch(writer, name, change).await
}

async fn patch(writer: &ClusterWriter, name: &str, change: Value) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    // A response that cannot be parsed is no failure to write.
    let gpu_nodes: Api<Lenient<Watched<GpuNode>>> = Api::all(writer.client.clone());
    let patched = gpu_nodes.patch(name, &patch_params(), &Patch::Merge(change)).await;
    let patched = patched.map_err(WriteError::request(format!("patch gpunode {name}")))?;
    slot.accepted(WorkKind::GpuNode, updated(patched));
    Ok(())
}

async fn delete(writer: &ClusterWriter, name: &str, uid: String, version: String) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let only_this = Preconditions {
        uid: Some(uid),
        resource_version: Some(version.clone()),
    };
    let gpu_nodes: Api<Lenient<GpuNode>> = Api::all(writer.client.clone());
    let params = DeleteParams::default().preconditions(only_this);
    let deleted = gpu_nodes.delete(name, &params).await;
    deleted.map_err(WriteError::request(format!("delete gpunode {name}")))?;
    let name = name.to_owned();
    slot.accepted(WorkKind::GpuNode, Some(WrittenObject::DeletedGpuNode { name, version }));
    Ok(())
}

/// Applies the operator's own conditions by server-side apply: those of the agent in the same list stay.
pub async fn write_conditions(
    writer: &ClusterWriter,
    name: &str,
    change: Option<ConditionsChange>,
) -> Result<(), WriteError> {
    let Some(ConditionsChange {
        resource_version,
        conditions,
    }) = change
    else {
        return Ok(());
    };
    let slot = writer.results.reserve().await?;
    let patch = json!({
        "apiVersion": GpuNode::api_version(&()),
        "kind": GpuNode::kind(&()),
        "metadata": {"name": name, "resourceVersion": resource_version},
        "status": {"conditions": conditions},
    });
    let gpu_nodes: Api<Lenient<Watched<GpuNode>>> = Api::all(writer.client.clone());
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    let patched = gpu_nodes.patch_status(name, &params, &Patch::Apply(patch)).await;
    let patched = patched.map_err(WriteError::request(format!("patch status of gpunode {name}")))?;
    slot.accepted(WorkKind::GpuNode, updated(patched));
    tracing::debug!(node = name, "wrote conditions");
    Ok(())
}

/// The object of a response. Where it cannot be parsed, the watch logs why.
fn updated(gpu_node: Lenient<Watched<GpuNode>>) -> Option<WrittenObject> {
    let facts = gpu_node.into_object()?.into_facts();
    Some(WrittenObject::GpuNode(Box::new(facts), WriteKind::Update))
}

/// A step as a merge patch that leaves nothing of the step before.
fn merge_patch_of(step: ConfigurationStep) -> Value {
    let ConfigurationStep {
        started_at,
        generation,
        failed,
    } = step;
    json!({"startedAt": started_at, "generation": generation, "failed": failed})
}
