//! Results of requests: counted, and handed to the index.

use crate::{
    index::message::{IndexMessage, WrittenObject},
    metrics::{OperatorMetrics, WorkKind},
    write::error::WriteError,
};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Hands results to the index.
pub struct WriteResults {
    pub metrics: Arc<OperatorMetrics>,
    /// The input of the index.
    pub messages: mpsc::Sender<IndexMessage>,
}

impl WriteResults {
    /// Reserves a slot in the input of the index. Comes before each request, so that nothing waits between the response and
    /// the index, and no timeout loses what the API server accepted.
    pub async fn reserve(&self) -> Result<ResultSlot<'_>, WriteError> {
        let slot = self.messages.reserve().await.map_err(|_| WriteError::Stopping)?;
        let metrics = &*self.metrics;
        Ok(ResultSlot { slot, metrics })
    }
}

/// A reserved slot for the result of one request.
pub struct ResultSlot<'a> {
    slot: mpsc::Permit<'a, IndexMessage>,
    metrics: &'a OperatorMetrics,
}

impl ResultSlot<'_> {
    /// Counts an accepted request, and hands what it returned to the index. Without an object the watch tells.
    pub fn accepted(self, kind: WorkKind, object: Option<WrittenObject>) {
        self.metrics.wrote(kind);
        if let Some(object) = object {
            self.slot.send(IndexMessage::Written(object));
        }
    }

    /// Hands an object that was read after a lost race to the index.
    pub fn read(self, object: WrittenObject) {
        self.slot.send(IndexMessage::Written(object));
    }
}
