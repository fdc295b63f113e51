//! Carries out planned writes, a few at a time, urgent ones first.

use crate::{
    index::{
        message::{FinishedWrite, IndexMessage, WriteResult},
        work::{PlannedWrite, WorkKey},
    },
    metrics::{WorkClass, WriteOutcome},
    write::{
        cluster_writer::ClusterWriter,
        daemonset::write_daemonset,
        error::WriteError,
        node::write_node,
        policy_status::{write_policy_status, write_unreadable_status},
    },
};
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use gpunode_process::within;
use std::{collections::VecDeque, time::Duration};
use tokio::sync::mpsc;

/// Writes at a time: enough to hide the latency of the API server, and no burden to it.
const MAX_CONCURRENT_WRITES: usize = 4;
/// Urgent writes at a time on top of these: they do not wait for slow ones of a change of the fleet.
const URGENT_WRITES: usize = 2;
/// Writes that are planned or under way: the next one of each worker is planned while it waits for the API server.
const MAX_PLANNED_WRITES: usize = 2 * MAX_CONCURRENT_WRITES;
/// Writes of which the last ones are urgent: no more requests wait for the worker.
pub const MAX_PLANNED_URGENT_WRITES: usize = MAX_PLANNED_WRITES + URGENT_WRITES;
/// The longest that the writes of one key may take, without the times at which the client holds them back.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    pub urgent: usize,
    pub ordinary: usize,
}

impl WriteCounts {
    /// Counts the writes of a class.
    pub fn of(&mut self, class: WorkClass) -> &mut usize {
        match class {
            WorkClass::Urgent => &mut self.urgent,
            WorkClass::Ordinary => &mut self.ordinary,
        }
    }

    fn total(self) -> usize {
        self.urgent + self.ordinary
    }
}

/// Returns the least urgent class of which another write may be planned while so many are planned or under way; none if
/// there is room for no write. Of ordinary writes one always finds room, however many urgent ones come.
pub fn class_with_room(in_flight: WriteCounts) -> Option<WorkClass> {
    let total = in_flight.total();
    let class = if total < MAX_PLANNED_WRITES || in_flight.ordinary == 0 {
        WorkClass::Ordinary
    } else {
        WorkClass::Urgent
    };
    (total < MAX_PLANNED_URGENT_WRITES).then_some(class)
}

/// A write to carry out.
#[derive(Debug)]
pub struct WriteRequest {
    pub key: WorkKey,
    pub class: WorkClass,
    pub write: PlannedWrite,
}

/// The task that carries out planned writes and sends their results to the index.
pub struct WriteWorker {
    pub writer: ClusterWriter,
    pub requests: mpsc::Receiver<WriteRequest>,
}

impl WriteWorker {
    /// Works until no task is left that could send a request, and all writes are over.
    pub async fn run(self) {
        let Self { writer, mut requests } = self;
        let (mut waiting, mut under_way) = (WaitingWrites::default(), FuturesUnordered::new());
        let (mut counts, mut is_open) = (WriteCounts::default(), true);
        loop {
            while let Some(request) = waiting.next(counts) {
                let class = request.class;
                *counts.of(class) += 1;
                under_way.push(carry_out(&writer, request).map(move |()| class));
            }
            tokio::select! {
                request = requests.recv(), if is_open => match request {
                    Some(request) => waiting.push(request),
                    None => is_open = false,
                },
                Some(class) = under_way.next() => *counts.of(class) -= 1,
                else => return,
            }
        }
    }
}

/// Requests that wait for others to end. The planner bounds their number.
#[derive(Debug, Default)]
struct WaitingWrites {
    urgent: VecDeque<WriteRequest>,
    ordinary: VecDeque<WriteRequest>,
}

impl WaitingWrites {
    fn push(&mut self, request: WriteRequest) {
        match request.class {
            WorkClass::Urgent => self.urgent.push_back(request),
            WorkClass::Ordinary => self.ordinary.push_back(request),
        }
    }

    /// Returns the request that may begin while so many are under way. Urgent ones leave one place to ordinary ones.
    fn next(&mut self, under_way: WriteCounts) -> Option<WriteRequest> {
        let places = MAX_CONCURRENT_WRITES + URGENT_WRITES;
        if under_way.total() >= places {
            return None;
        }
        if under_way.urgent < places - 1
            && let Some(request) = self.urgent.pop_front()
        {
            return Some(request);
        }
        if under_way.ordinary < MAX_CONCURRENT_WRITES {
            self.ordinary.pop_front()
        } else {
            None
        }
    }
}

/// Carries out one write. Its end is the last message about it.
pub async fn carry_out(writer: &ClusterWriter, WriteRequest { key, write, .. }: WriteRequest) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::work::DaemonSetWrite;

    fn request(name: &str, class: WorkClass) -> WriteRequest {
        let (uid, version) = (String::new(), String::new());
        WriteRequest {
            key: WorkKey::DaemonSet(name.to_owned()),
            class,
            write: PlannedWrite::DaemonSet(DaemonSetWrite::Delete { uid, version }),
        }
    }

    #[test]
    fn urgent_write_passes_those_that_wait_and_has_places_of_its_own() {
        let mut waiting = WaitingWrites::default();
        for (name, class) in [
            ("o1", WorkClass::Ordinary),
            ("o2", WorkClass::Ordinary),
            ("u1", WorkClass::Urgent),
            ("u2", WorkClass::Urgent),
        ] {
            waiting.push(request(name, class));
        }
        let mut next = |urgent, ordinary| {
            let request = waiting.next(WriteCounts { urgent, ordinary });
            request.map(|request| request.key.name().to_owned())
        };
        assert_eq!(next(2, 4), None);
        assert_eq!(next(1, 4).as_deref(), Some("u1"));
        assert_eq!(next(5, 0).as_deref(), Some("o1"), "one place is never urgent");
        assert_eq!(next(0, 0).as_deref(), Some("u2"));
        assert_eq!(next(0, 4), None, "the others wait for their own");
        assert_eq!(next(2, 3).as_deref(), Some("o2"));
        assert_eq!(next(0, 0), None);
    }

    #[test]
    fn last_writes_that_are_planned_are_urgent() {
        let room = |urgent, ordinary| class_with_room(WriteCounts { urgent, ordinary });
        assert_eq!(room(0, 7), Some(WorkClass::Ordinary));
        assert_eq!([room(0, 8), room(1, 8), room(8, 1)], [Some(WorkClass::Urgent); 3]);
        assert_eq!(room(9, 0), Some(WorkClass::Ordinary), "urgent ones leave room");
        assert_eq!([room(2, 8), room(10, 0)], [None; 2]);
    }
}
