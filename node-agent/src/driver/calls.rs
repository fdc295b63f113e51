//! Calls of this process that hold the driver: the GPU that each is about, since when, and the gate that a release and a
//! change of the driver close.
//!
//! A call that hangs holds the lock of the driver's resource manager, and every later call waits for it, also one about another
//! GPU. So of the calls that began since the driver's last answer, only the first one tells which GPU hangs. To know which one
//! that is, the calls take turns, GPU by GPU, as long as the driver answers. The end of a call is no answer of the driver: NVML may
//! answer from memory, and does not ask the driver about a GPU that it does not list.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};
use tokio::{sync::watch, time::Instant};

/// Longest wait for a turn. A call that takes longer hangs, or initialises its GPU.
const TURN: Duration = Duration::from_secs(2);
/// Time without an answer after which a call may hang.
const SLOW: Duration = Duration::from_secs(2);
/// Interval between attempts to get a turn.
const POLL: Duration = Duration::from_millis(1);

/// Calls in progress. A clone stands for the same calls.
#[derive(Clone, Debug, Default)]
pub struct DriverCalls(Arc<watch::Sender<CallTable>>);

#[derive(Debug, Default)]
struct CallTable {
    /// Number of those who keep the gate closed: a release, the end of sessions with a former driver, a reset of a GPU.
    closers: u32,
    last_number: u64,
    calls: BTreeMap<u64, CallProgress>,
    /// Start of the last turn in which the driver answered.
    last_answer: Option<Instant>,
}

/// Progress of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    /// UUID of the GPU that it is about; none if unknown, or if it is about several.
    pub gpu: Option<String>,
    /// Start of its turn; none while it has none, such as when it opens a session, waits for events, or has to wait.
    pub since: Option<Instant>,
    /// Number of turns that it has begun.
    pub turns: u32,
}

/// A call in progress, or several in a row in one session with the driver. Ends when dropped.
#[derive(Debug)]
pub struct DriverCall {
    calls: DriverCalls,
    number: u64,
}

impl DriverCalls {
    /// Begins a call; none while the gate is closed.
    pub fn begin(&self) -> Option<DriverCall> {
        let mut number = None;
        self.0.send_if_modified(|table| {
            if table.closers == 0 {
                table.last_number += 1;
                table.calls.insert(table.last_number, CallProgress::default());
                number = Some(table.last_number);
            }
            number.is_some()
        });
        let calls = self.clone();
        number.map(|number| DriverCall { calls, number })
    }

    /// Lets no further call begin.
    pub fn close(&self) {
        self.0.send_modify(|table| table.closers += 1);
    }

    /// Lets calls begin again, once everybody who closed the gate has said so.
    pub fn reopen(&self) {
        self.0
            .send_modify(|table| table.closers = table.closers.saturating_sub(1));
    }

    /// Waits until no call is in progress.
    pub async fn ended(&self) {
        // Cannot fail: `self` has the sender.
        _ = self.0.subscribe().wait_for(|table| table.calls.is_empty()).await;
    }

    /// Waits until no call is in progress but this one, of the one who has closed the gate.
    pub async fn others_ended(&self, call: &DriverCall) {
        let is_only = |table: &CallTable| table.calls.keys().all(|number| *number == call.number);
        // Cannot fail: `self` has the sender.
        _ = self.0.subscribe().wait_for(is_only).await;
    }

    /// Returns the progress of a call; none after its end.
    pub fn progress(&self, number: u64) -> Option<CallProgress> {
        self.0.borrow().calls.get(&number).cloned()
    }

    /// Returns the first of the calls whose turn began before `time`, but not before the last turn that the driver answered: if it
    /// hangs, it keeps the driver from answering a call that began at `time`.
    pub fn first_unanswered(&self, time: Instant) -> Option<CallProgress> {
        let table = self.0.borrow();
        let is_unanswered = |since: Instant| since < time && table.last_answer.is_none_or(|last| last <= since);
        let calls = table.calls.values();
        let unanswered = calls.filter(|progress| progress.since.is_some_and(is_unanswered));
        unanswered.min_by_key(|progress| progress.since).cloned()
    }

    /// Returns true while a call may hang. Another one would wait behind it, and keep the driver from answering for other GPUs if it
    /// is about the same.
    pub fn may_hang(&self) -> bool {
        let before = Instant::now().checked_sub(SLOW);
        before.is_some_and(|before| self.first_unanswered(before).is_some())
    }
}

impl DriverCall {
    /// Returns the number of the call.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Begins a turn with calls about `gpu`, or about several GPUs, once no other call has one or after [`TURN`]. Blocks.
    pub fn begin_turn(&self, gpu: Option<&str>) {
        self.end_turn();
        let start = std::time::Instant::now();
        let is_begun = || {
            self.calls.0.send_if_modified(|table| {
                let may_begin =
                    start.elapsed() >= TURN || table.calls.values().all(|progress| progress.since.is_none());
                if may_begin && let Some(progress) = table.calls.get_mut(&self.number) {
                    (progress.gpu, progress.since) = (gpu.map(str::to_owned), Some(Instant::now()));
                    progress.turns += 1;
                }
                may_begin
            })
        };
        while !is_begun() {
            thread::sleep(POLL);
        }
    }

    /// Notes that the driver has answered a query of this turn that needs the GPU: no call from before the turn holds the driver.
    pub fn answered(&self) {
        self.calls.0.send_modify(|table| {
            let since = table.calls.get(&self.number).and_then(|progress| progress.since);
            table.last_answer = table.last_answer.max(since);
        });
    }

    /// Ends the turn.
    pub fn end_turn(&self) {
        self.calls.0.send_modify(|table| {
            if let Some(progress) = table.calls.get_mut(&self.number) {
                (progress.gpu, progress.since) = (None, None);
            }
        });
    }
}

impl Drop for DriverCall {
    fn drop(&mut self) {
        self.calls.0.send_modify(|table| _ = table.calls.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_millis(10);

    #[test]
    fn calls_take_turns_and_the_first_since_the_last_answer_may_block_the_others() {
        let calls = DriverCalls::default();
        let [reading, probing, events] = [(); 3].map(|()| calls.begin().unwrap());
        let first = || calls.first_unanswered(Instant::now()).map(|progress| progress.gpu);
        assert_eq!(first(), None, "to wait for events is no hang");
        reading.begin_turn(Some("GPU-1"));
        assert_eq!(first(), Some(Some("GPU-1".to_owned())));
        // It hangs, so that the other one does not wait for longer.
        let start = Instant::now();
        probing.begin_turn(Some("GPU-0"));
        assert!(start.elapsed() >= TURN);
        assert_eq!(first(), Some(Some("GPU-1".to_owned())));
        let began = calls.progress(reading.number()).and_then(|progress| progress.since);
        assert_eq!(calls.first_unanswered(began.unwrap()), None, "nothing is before it");
        probing.end_turn();
        assert_eq!(first(), Some(Some("GPU-1".to_owned())), "a call that ends is no answer");
        probing.begin_turn(None);
        assert_eq!(first(), Some(Some("GPU-1".to_owned())));
        probing.answered();
        assert_eq!(first(), Some(None), "the driver answers other calls than the first");
        drop(reading);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| events.begin_turn(Some("GPU-2")));
            probing.end_turn();
            waiting.join().unwrap();
        });
        assert_eq!(first(), Some(Some("GPU-2".to_owned())));
    }

    #[test]
    fn each_turn_is_progress() {
        let calls = DriverCalls::default();
        let call = calls.begin().unwrap();
        let mut seen = vec![calls.progress(call.number())];
        for _ in 0..2 {
            call.begin_turn(Some("GPU-0"));
            seen.push(calls.progress(call.number()));
            call.end_turn();
            seen.push(calls.progress(call.number()));
        }
        for (place, progress) in seen.iter().enumerate() {
            assert!(!seen.iter().skip(place + 1).any(|later| later == progress), "{seen:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_lets_no_call_begin_and_waits_for_those_in_progress() {
        let calls = DriverCalls::default();
        let call = calls.begin().unwrap();
        calls.close();
        assert!(calls.begin().is_none());
        assert!(timeout(SOON, calls.ended()).await.is_err());
        drop(call);
        timeout(SOON, calls.ended()).await.unwrap();
        calls.reopen();
        assert!(calls.begin().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_alone_behind_the_gate_and_the_gate_opens_after_all_who_closed_it() {
        let calls = DriverCalls::default();
        let [own, other] = [(); 2].map(|()| calls.begin().unwrap());
        calls.close();
        assert!(timeout(SOON, calls.others_ended(&own)).await.is_err());
        drop(other);
        timeout(SOON, calls.others_ended(&own)).await.unwrap();
        calls.close();
        assert!(timeout(SOON, calls.ended()).await.is_err(), "a release waits for it");
        calls.reopen();
        assert!(calls.begin().is_none());
        calls.reopen();
        assert!(calls.begin().is_some());
    }
}
