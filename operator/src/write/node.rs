//! Labels, taints and record of a Node, in one patch.

use super::{ApplyError, Writer, patch_params};
use crate::{index::work::NodeWork, metrics::Kind, reconcile::Controller};
use gpunode_plan::{GpuNodeChange, NodeFacts};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::Patch};

impl Writer {
    /// Carries out the work for a node. One part that fails does not stop the other.
    pub async fn apply_node(&self, controller: &Controller, name: &str, work: NodeWork) -> Result<(), ApplyError> {
        // An agent that is about to start finds its configuration there; one that is about to leave keeps it until then.
        let gives_configuration = work.gpu_node.gives_configuration();
        // What is known of the GPUs must outlive what is on the node because of them.
        let is_last = matches!(work.gpu_node, GpuNodeChange::Delete { .. });
        let gpu_node = async {
            self.apply_gpu_node(controller, name, work.gpu_node).await?;
            self.apply_conditions(controller, name, work.conditions).await
        };
        let node = self.patch_node(controller, name, work.patch);
        let (one, other) = if gives_configuration {
            let gpu_node = gpu_node.await;
            (gpu_node, node.await)
        } else {
            let node = node.await;
            if node.is_err() && is_last {
                return node;
            }
            (node, gpu_node.await)
        };
        one.and(other)
            .and(self.patch_node_status(controller, name, work.status_patch).await)
    }

    async fn patch_node(
        &self,
        controller: &Controller,
        name: &str,
        patch: Option<json_patch::Patch>,
    ) -> Result<(), ApplyError> {
        let Some(patch) = patch else { return Ok(()) };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patched = nodes.patch(name, &patch_params(), &Patch::<Node>::Json(patch)).await;
        let node = patched.map_err(ApplyError::request(format!("patch node {name}")))?;
        self.wrote(Kind::Node);
        tracing::info!(node = name, "wrote labels, taints and record");
        controller.with_index(|index, now, effects| index.update_node(NodeFacts::of(&node), now, effects));
        Ok(())
    }
}
