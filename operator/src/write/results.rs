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
    /// Reserves a place in the input of the index. Comes before each request, so that nothing waits between the response and
    /// the index, and no timeout loses what the API server accepted.
    pub async fn reserve(&self) -> Result<ResultPlace<'_>, WriteError> {
        let place = self.messages.reserve().await.map_err(|_| WriteError::Stopping)?;
        let metrics = &*self.metrics;
        Ok(ResultPlace { place, metrics })
    }
}

/// A reserved place for the result of one request.
pub struct ResultPlace<'a> {
    place: mpsc::Permit<'a, IndexMessage>,
    metrics: &'a OperatorMetrics,
}

impl ResultPlace<'_> {
    /// Counts an accepted request, and hands what it returned to the index. Without an object the watch tells.
    pub fn accepted(self, kind: WorkKind, object: Option<WrittenObject>) {
        self.metrics.wrote(kind);
        if let Some(object) = object {
            self.place.send(IndexMessage::Written(object));
        }
    }
}
