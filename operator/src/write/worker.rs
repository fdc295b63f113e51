//! Carries out planned writes, a few at a time.

use crate::{
    index::{
        message::{FinishedWrite, IndexMessage, WriteResult},
        work::{PlannedWrite, WorkKey},
    },
    metrics::WriteOutcome,
    write::{
        cluster_writer::ClusterWriter,
        daemonset::write_daemonset,
        error::WriteError,
        node::write_node,
        policy_status::{write_policy_status, write_unreadable_status},
    },
};
use futures::{StreamExt, stream};
use gpunode_process::within;
use std::time::Duration;
use tokio::sync::mpsc;

/// Writes at a time: enough to hide the latency of the API server, and no burden to it.
const MAX_CONCURRENT_WRITES: usize = 4;
/// Writes that are planned or under way: the next one of each worker is planned while it waits for the API server.
pub const MAX_PLANNED_WRITES: usize = 2 * MAX_CONCURRENT_WRITES;
/// The longest that the writes of one key may take, without the times at which the client holds them back.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A write to carry out.
#[derive(Debug)]
pub struct WriteRequest {
    pub key: WorkKey,
    pub write: PlannedWrite,
}

/// The task that carries out planned writes and sends their results to the index.
pub struct WriteWorker {
    pub writer: ClusterWriter,
    pub requests: mpsc::Receiver<WriteRequest>,
}

impl WriteWorker {
    /// Works until no task is left that could send a request.
    pub async fn run(self) {
        let Self { writer, mut requests } = self;
        stream::poll_fn(|context| requests.poll_recv(context))
            .for_each_concurrent(MAX_CONCURRENT_WRITES, |request| carry_out(&writer, request))
            .await;
    }
}

/// Carries out one write. Its end is the last message about it.
pub async fn carry_out(writer: &ClusterWriter, WriteRequest { key, write }: WriteRequest) {
    let requests = Box::pin(async {
        match write {
            PlannedWrite::Node(write) => write_node(writer, key.name(), *write).await,
            PlannedWrite::DaemonSet(write) => write_daemonset(writer, key.name(), write).await,
            PlannedWrite::PolicyStatus(write) => write_policy_status(writer, key.name(), write).await,
            PlannedWrite::UnreadableStatus(write) => write_unreadable_status(writer, key.name(), *write).await,
        }
    });
    let result = within(TIMEOUT, requests).await.unwrap_or(Err(WriteError::TimedOut));
    let metrics = &writer.results.metrics;
    metrics.reconciled(key.kind());
    let result = match result {
        // Each accepted request was counted.
        Ok(()) => WriteResult::Accepted,
        Err(error) if error.is_conflict() => {
            tracing::debug!(?key, error = error.one_line(), "object changed meanwhile");
            metrics.writes.ended(key.kind(), WriteOutcome::Conflict);
            WriteResult::Conflict
        }
        Err(error) => {
            metrics.failed(key.kind());
            tracing::warn!(?key, error = error.one_line(), "cannot reconcile");
            if let Some(refusal) = error.refusal() {
                metrics.writes.ended(key.kind(), WriteOutcome::Refused);
                WriteResult::Refused(refusal)
            } else {
                metrics.writes.ended(key.kind(), WriteOutcome::Failed);
                WriteResult::Failed
            }
        }
    };
    let finished = IndexMessage::Finished(FinishedWrite { key, result });
    // Fails only while the process is stopping.
    let _ = writer.results.messages.send(finished).await;
}
