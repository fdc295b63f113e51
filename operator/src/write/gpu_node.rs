//! Writes the configuration in a `GpuNode`, and the operator's conditions in its status.

use crate::{
    index::{cache::WriteKind, message::WrittenObject},
    lenient::Lenient,
    metrics::WorkKind,
    watched::Watched,
    write::{
        cluster_writer::{ClusterWriter, patch_params, post_params},
        error::WriteError,
        rejected_patch::read_again,
        results::ResultSlot,
    },
};
use gpunode_crds::{ConfigurationStep, DisruptiveChange, GpuNode, OPERATOR_FIELD_MANAGER};
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
            let spec = json!({"config": config, "step": step.map(merge_patch_of), "change": null});
            patch_spec(writer, name, &resource_version, spec).await?;
        }
        GpuNodeChange::Step {
            resource_version,
            step,
            change,
        } => {
            let spec = json!({"step": step.map(merge_patch_of), "change": change.map(merge_patch_of_change)});
            patch_spec(writer, name, &resource_version, spec).await?;
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
            patch_spec(writer, name, &resource_version, spec).await?;
        }
        GpuNodeChange::Own {
            resource_version,
            owners,
        } => {
            let metadata = json!({"resourceVersion": resource_version, "ownerReferences": owners});
            patch(writer, name, &resource_version, json!({"metadata": metadata})).await?;
        }
        GpuNodeChange::Delete { uid, resource_version } => delete(writer, name, uid, resource_version).await?,
    }
    tracing::debug!(node = name, "wrote configuration");
    Ok(())
}

async fn create(writer: &ClusterWriter, name: &str, gpu_node: &GpuNode) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    let gpu_nodes: Api<GpuNode> = Api::all(writer.client.clone());
    let created = match gpu_nodes.create(&post_params(), gpu_node).await {
        Ok(created) => created,
        Err(source) => {
            let error = WriteError::creation(format!("create gpunode {name}"))(source);
            return Err(rejected(writer, name, error, None, slot).await);
        }
    };
    let object = WrittenObject::GpuNode(Box::new(GpuNodeFacts::of(created)), WriteKind::Create);
    slot.accepted(WorkKind::GpuNode, Some(object));
    Ok(())
}

async fn patch_spec(writer: &ClusterWriter, name: &str, version: &str, spec: Value) -> Result<(), WriteError> {
    // With the resourceVersion the API server refuses the patch if the object changed meanwhile.
    let change = json!({"metadata": {"resourceVersion": version}, "spec": spec});
    patch(writer, name, version, change).await
}

/// Sends a patch that was planned for this version.
async fn patch(writer: &ClusterWriter, name: &str, version: &str, change: Value) -> Result<(), WriteError> {
    let slot = writer.results.reserve().await?;
    // A response that cannot be parsed is no failure to write.
    let gpu_nodes: Api<Lenient<Watched<GpuNode>>> = Api::all(writer.client.clone());
    let patched = match gpu_nodes.patch(name, &patch_params(), &Patch::Merge(change)).await {
        Ok(patched) => patched,
        Err(source) => {
            let error = WriteError::request(format!("patch gpunode {name}"))(source);
            return Err(rejected(writer, name, error, Some(version), slot).await);
        }
    };
    slot.accepted(WorkKind::GpuNode, known(patched, WriteKind::Update));
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
    if let Err(source) = gpu_nodes.delete(name, &params).await {
        let error = WriteError::request(format!("delete gpunode {name}"))(source);
        return Err(rejected(writer, name, error, Some(&version), slot).await);
    }
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
    let patched = match gpu_nodes.patch_status(name, &params, &Patch::Apply(patch)).await {
        Ok(patched) => patched,
        Err(source) => {
            let error = WriteError::request(format!("patch status of gpunode {name}"))(source);
            return Err(rejected(writer, name, error, Some(&resource_version), slot).await);
        }
    };
    slot.accepted(WorkKind::GpuNode, known(patched, WriteKind::Update));
    tracing::debug!(node = name, "wrote conditions");
    Ok(())
}

/// Returns the error of a write that was not accepted. After a lost race the index learns the object as it is now, or
/// that it is gone, so that the next try need not wait for the watch. One read for each try; the queue's pauses after
/// conflicts bound both. `planned` is the version that the write was planned for; `None` for a creation.
async fn rejected(
    writer: &ClusterWriter,
    name: &str,
    error: WriteError,
    planned: Option<&str>,
    slot: ResultSlot<'_>,
) -> WriteError {
    // A creation that gets 404 lacks the kind.
    let may_be_gone = error.is_not_found() && planned.is_some();
    if !error.is_lost_race() && !may_be_gone {
        return error;
    }
    let gpu_nodes: Api<Lenient<Watched<GpuNode>>> = Api::all(writer.client.clone());
    match read_again(&gpu_nodes, name).await {
        Ok(found) => {
            let kind = planned.map_or(WriteKind::Create, |_| WriteKind::Update);
            let object = match (found, planned) {
                (Some(newest), _) => known(newest, kind),
                (None, Some(version)) => Some(WrittenObject::DeletedGpuNode {
                    name: name.to_owned(),
                    version: version.to_owned(),
                }),
                (None, None) => None,
            };
            if let Some(object) = object {
                slot.read(object, planned);
            }
        }
        // The watch brings the object, too.
        Err(failure) => tracing::debug!(node = name, %failure, "cannot read the gpunode again"),
    }
    error
}

/// The object of a response. Where it cannot be parsed, the watch logs why.
fn known(gpu_node: Lenient<Watched<GpuNode>>, kind: WriteKind) -> Option<WrittenObject> {
    let facts = gpu_node.into_object()?.into_facts();
    Some(WrittenObject::GpuNode(Box::new(facts), kind))
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

/// A change as a merge patch that leaves nothing of the change before.
fn merge_patch_of_change(change: DisruptiveChange) -> Value {
    let DisruptiveChange {
        state,
        hash,
        since,
        reason,
        message,
        attempts,
    } = change;
    let attempts = (attempts > 0).then_some(attempts);
    json!({"state": state, "hash": hash, "since": since, "reason": reason, "message": message, "attempts": attempts})
}
