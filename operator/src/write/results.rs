//! Results of requests: counted, and handed to the index.

use crate::{
    index::{
        cache::{Versioned, WriteKind},
        message::{IndexMessage, WrittenObject},
    },
    metrics::{OperatorMetrics, WorkKind},
    write::error::WriteError,
    written_versions::WrittenVersions,
};
use gpunode_crds::GpuNode;
use k8s_openapi::api::core::v1::Node;
use kube::Resource as _;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Hands results to the index.
pub struct WriteResults {
    pub metrics: Arc<OperatorMetrics>,
    /// The input of the index.
    pub messages: mpsc::Sender<IndexMessage>,
    /// Learns the versions that the index gets.
    pub written: WrittenVersions,
}

impl WriteResults {
    /// Reserves a slot in the input of the index. Comes before each request, so that nothing waits between the response and
    /// the index, and no timeout loses what the API server accepted.
    pub async fn reserve(&self) -> Result<ResultSlot<'_>, WriteError> {
        let slot = self.messages.reserve().await.map_err(|_| WriteError::Stopping)?;
        let (metrics, written) = (&*self.metrics, &self.written);
        Ok(ResultSlot { slot, metrics, written })
    }
}

/// A reserved slot for the result of one request.
pub struct ResultSlot<'a> {
    slot: mpsc::Permit<'a, IndexMessage>,
    metrics: &'a OperatorMetrics,
    written: &'a WrittenVersions,
}

impl ResultSlot<'_> {
    /// Counts an accepted request, and hands what it returned to the index. Without an object the watch tells.
    pub fn accepted(self, kind: WorkKind, object: Option<WrittenObject>) {
        self.metrics.wrote(kind);
        if let Some(object) = object {
            let version = match &object {
                WrittenObject::Node(node) => {
                    Some((Node::plural(&()), node.name.clone(), node.resource_version.clone()))
                }
                WrittenObject::GpuNode(gpu_node, WriteKind::Update) => Some((
                    GpuNode::plural(&()),
                    gpu_node.name.clone(),
                    gpu_node.resource_version.clone(),
                )),
                _ => None,
            };
            self.slot.send(IndexMessage::Written(object));
            // Only after the index has it: its event comes to nothing from here on.
            if let Some((kind, name, version)) = version {
                self.written.add(&kind, &name, &version);
            }
        }
    }

    /// Hands what was read after a lost race to the index: the object, or that it is gone. The write was planned for
    /// the version `planned`. If that is later than the one that was read, the watches list again.
    pub fn read(self, object: WrittenObject, planned: Option<&str>) {
        let read = match &object {
            WrittenObject::Node(node) => Some((Node::plural(&()), node.version())),
            WrittenObject::GpuNode(gpu_node, _) => Some((GpuNode::plural(&()), gpu_node.version())),
            _ => None,
        };
        if let Some((kind, version)) = read
            && let Some(planned) = planned
        {
            self.written.compare(&kind, version, planned);
        }
        self.slot.send(IndexMessage::Written(object));
    }
}
