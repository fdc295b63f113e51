//! Keys of resources that nobody serves, in the status of a Node.

use super::{ApplyError, Writer, patch_params};
use crate::{metrics::Kind, reconcile::Controller};
use gpunode_plan::NodeFacts;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::Patch};

impl Writer {
    /// Removes them.
    pub(super) async fn patch_node_status(
        &self,
        controller: &Controller,
        name: &str,
        patch: Option<json_patch::Patch>,
    ) -> Result<(), ApplyError> {
        let Some(patch) = patch else { return Ok(()) };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patched = nodes
            .patch_status(name, &patch_params(), &Patch::<Node>::Json(patch))
            .await;
        let node = patched.map_err(ApplyError::request(format!("patch status of node {name}")))?;
        self.wrote(Kind::Node);
        tracing::info!(node = name, "removed resources that nobody serves");
        controller.with_index(|index, now, effects| index.update_node(NodeFacts::of(&node), now, effects));
        Ok(())
    }
}
