//! The configuration in a `GpuNode`, and what the operator says in its status.

use super::{ApplyError, Writer, patch_params, post_params};
use crate::{index::cache::Write, lenient::Readable, metrics::Kind, reconcile::Controller};
use gpunode_crds::{ConfigurationStep, GpuNode, OPERATOR_FIELD_MANAGER};
use gpunode_plan::{ConditionsChange, GpuNodeChange};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

impl Writer {
    pub(super) async fn apply_gpu_node(
        &self,
        controller: &Controller,
        name: &str,
        change: GpuNodeChange,
    ) -> Result<(), ApplyError> {
        match change {
            GpuNodeChange::None => return Ok(()),
            GpuNodeChange::Create(gpu_node) => {
                let created = Api::<GpuNode>::all(self.client.clone())
                    .create(&post_params(), &gpu_node)
                    .await;
                let gpu_node = created.map_err(ApplyError::creation(format!("create gpunode {name}")))?;
                controller
                    .with_index(|index, now, effects| index.update_gpu_node(gpu_node, Write::Create, now, effects));
            }
            GpuNodeChange::Configure {
                resource_version,
                config,
                step,
            } => {
                let spec = json!({"config": config, "step": step.map(merged)});
                self.patch_gpu_node(controller, name, resource_version, spec).await?;
            }
            GpuNodeChange::Step { resource_version, step } => {
                let spec = json!({"step": step.map(merged)});
                self.patch_gpu_node(controller, name, resource_version, spec).await?;
            }
            GpuNodeChange::Ask {
                resource_version,
                release,
                recovered,
            } => {
                // False is the same as left out, which a merge patch says by null.
                let spec = json!({"release": release.then_some(true), "recovered": recovered});
                self.patch_gpu_node(controller, name, resource_version, spec).await?;
            }
            GpuNodeChange::Delete { uid, resource_version } => {
                let guard = Preconditions {
                    uid: Some(uid),
                    resource_version: Some(resource_version.clone()),
                };
                let gpu_nodes: Api<Readable<GpuNode>> = Api::all(self.client.clone());
                let deleted = gpu_nodes
                    .delete(name, &DeleteParams::default().preconditions(guard))
                    .await;
                deleted.map_err(ApplyError::request(format!("delete gpunode {name}")))?;
                let version = &resource_version;
                controller.with_index(|index, now, effects| index.forget_gpu_node(name, version, now, effects));
            }
        }
        self.wrote(Kind::GpuNode);
        tracing::info!(node = name, "wrote configuration");
        Ok(())
    }

    async fn patch_gpu_node(
        &self,
        controller: &Controller,
        name: &str,
        resource_version: String,
        spec: Value,
    ) -> Result<(), ApplyError> {
        // An answer that cannot be read is no failure to write.
        let gpu_nodes: Api<Readable<GpuNode>> = Api::all(self.client.clone());
        // With the resourceVersion it is refused when something changed meanwhile.
        let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": spec});
        let patched = gpu_nodes.patch(name, &patch_params(), &Patch::Merge(patch)).await;
        let gpu_node = patched.map_err(ApplyError::request(format!("patch gpunode {name}")))?;
        // The watch has logged what is wrong with it.
        if let Some(gpu_node) = gpu_node.into_object() {
            controller.with_index(|index, now, effects| index.update_gpu_node(gpu_node, Write::Change, now, effects));
        }
        Ok(())
    }

    /// Server-side apply of the operator's own conditions: those of the agent in the same list stay.
    pub(super) async fn apply_conditions(
        &self,
        controller: &Controller,
        name: &str,
        change: Option<ConditionsChange>,
    ) -> Result<(), ApplyError> {
        let Some(ConditionsChange {
            resource_version,
            conditions,
        }) = change
        else {
            return Ok(());
        };
        let patch = json!({
            "apiVersion": GpuNode::api_version(&()),
            "kind": GpuNode::kind(&()),
            "metadata": {"name": name, "resourceVersion": resource_version},
            "status": {"conditions": conditions},
        });
        let gpu_nodes: Api<Readable<GpuNode>> = Api::all(self.client.clone());
        let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
        let patched = gpu_nodes.patch_status(name, &params, &Patch::Apply(patch)).await;
        let gpu_node = patched.map_err(ApplyError::request(format!("patch status of gpunode {name}")))?;
        self.wrote(Kind::GpuNode);
        tracing::info!(node = name, "wrote conditions");
        if let Some(gpu_node) = gpu_node.into_object() {
            controller.with_index(|index, now, effects| index.update_gpu_node(gpu_node, Write::Change, now, effects));
        }
        Ok(())
    }
}

/// A step as a merge patch that leaves nothing of the one before.
fn merged(step: ConfigurationStep) -> Value {
    let ConfigurationStep {
        started_at,
        generation,
        failed,
    } = step;
    json!({"startedAt": started_at, "generation": generation, "failed": failed})
}
