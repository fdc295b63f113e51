//! The configuration in a `GpuNode`.

use super::{ApplyError, Writer, patch_params, post_params};
use crate::{
    controller::{Controller, Readable, Write},
    metrics::Kind,
};
use gpunode_crds::GpuNode;
use gpunode_plan::GpuNodeChange;
use kube::{
    Api,
    api::{DeleteParams, Patch, Preconditions},
};
use serde_json::json;

impl Writer {
    pub(super) async fn apply_gpu_node(
        &self,
        controller: &Controller,
        name: &str,
        change: GpuNodeChange,
    ) -> Result<(), ApplyError> {
        // An answer that cannot be read is no failure to write.
        let gpu_nodes: Api<Readable<GpuNode>> = Api::all(self.client.clone());
        match change {
            GpuNodeChange::None => return Ok(()),
            GpuNodeChange::Create(gpu_node) => {
                let created = Api::<GpuNode>::all(self.client.clone()).create(&post_params(), &gpu_node).await;
                let gpu_node = created.map_err(ApplyError::creation(format!("create gpunode {name}")))?;
                controller
                    .with_index(|index, now, effects| index.update_gpu_node(gpu_node, Write::Create, now, effects));
            }
            GpuNodeChange::Configure { resource_version, config } => {
                // With the resourceVersion it is refused when something changed meanwhile.
                let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": {"config": config}});
                let patched = gpu_nodes.patch(name, &patch_params(), &Patch::Merge(patch)).await;
                let gpu_node = patched.map_err(ApplyError::request(format!("patch gpunode {name}")))?;
                // The watch has logged what is wrong with it.
                if let Some(gpu_node) = gpu_node.into_object() {
                    controller
                        .with_index(|index, now, effects| index.update_gpu_node(gpu_node, Write::Change, now, effects));
                }
            }
            GpuNodeChange::Delete { uid, resource_version } => {
                let guard = Preconditions { uid: Some(uid), resource_version: Some(resource_version.clone()) };
                let deleted = gpu_nodes.delete(name, &DeleteParams::default().preconditions(guard)).await;
                deleted.map_err(ApplyError::request(format!("delete gpunode {name}")))?;
                let version = &resource_version;
                controller.with_index(|index, now, effects| index.forget_gpu_node(name, version, now, effects));
            }
        }
        self.wrote(Kind::GpuNode);
        tracing::info!(node = name, "wrote configuration");
        Ok(())
    }
}
