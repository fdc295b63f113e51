//! Calls of this process that hold the driver: the GPU that each is about, since when, and the gate that a release closes.
//!
//! A call that hangs holds the lock of the driver's resource manager, and every later call waits for it, also one about another
//! GPU. So of all calls without an answer, only the oldest one tells which GPU hangs. To know which one that is, the calls take
//! turns, GPU by GPU, as long as the driver answers.

use std::{collections::BTreeMap, sync::Arc, thread, time::Duration};
use tokio::{sync::watch, time::Instant};

/// Longest wait for a turn. A call that takes longer hangs, or initialises its GPU.
const TURN: Duration = Duration::from_secs(2);
/// Interval between attempts to get a turn.
const POLL: Duration = Duration::from_millis(1);

/// Calls in progress. A clone stands for the same calls.
#[derive(Clone, Debug, Default)]
pub struct DriverCalls(Arc<watch::Sender<CallTable>>);

#[derive(Debug, Default)]
struct CallTable {
    /// True while the GPUs are released.
    is_closed: bool,
    last_number: u64,
    calls: BTreeMap<u64, CallProgress>,
}

/// Progress of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallProgress {
    /// UUID of the GPU that it is about; none if unknown, or if it is about several.
    pub gpu: Option<String>,
    /// Start of its turn; none while it has none, such as when it opens a session, waits for events, or has to wait.
    pub since: Option<Instant>,
}

/// A call in progress, or several in a row in one session with the driver. Ends when dropped.
#[derive(Debug)]
pub struct DriverCall {
    calls: DriverCalls,
    number: u64,
}

impl DriverCalls {
    /// Begins a call; none while the GPUs are released.
    pub fn begin(&self) -> Option<DriverCall> {
        let mut number = None;
        self.0.send_if_modified(|table| {
            if !table.is_closed {
                table.last_number += 1;
                number = Some(table.last_number);
                table.calls.insert(table.last_number, CallProgress::default());
            }
            number.is_some()
        });
        let calls = self.clone();
        number.map(|number| DriverCall { calls, number })
    }

    /// Lets no further call begin.
    pub fn close(&self) {
        self.0.send_modify(|table| table.is_closed = true);
    }

    /// Lets calls begin again.
    pub fn reopen(&self) {
        self.0.send_modify(|table| table.is_closed = false);
    }

    /// Waits until no call is in progress.
    pub async fn ended(&self) {
        // Cannot fail: `self` has the sender.
        _ = self.0.subscribe().wait_for(|table| table.calls.is_empty()).await;
    }

    /// Returns the progress of a call; none after its end.
    pub fn progress(&self, number: u64) -> Option<CallProgress> {
        self.0.borrow().calls.get(&number).cloned()
    }

    /// Returns the call whose turn began first.
    pub fn oldest(&self) -> Option<(u64, CallProgress)> {
        let table = self.0.borrow();
        let working = table.calls.iter().filter(|(_, progress)| progress.since.is_some());
        let oldest = working.min_by_key(|(_, progress)| progress.since)?;
        Some((*oldest.0, oldest.1.clone()))
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
                if may_begin {
                    let progress = CallProgress {
                        gpu: gpu.map(str::to_owned),
                        since: Some(Instant::now()),
                    };
                    table.calls.insert(self.number, progress);
                }
                may_begin
            })
        };
        while !is_begun() {
            thread::sleep(POLL);
        }
    }

    /// Ends the turn.
    pub fn end_turn(&self) {
        self.calls.0.send_modify(|table| {
            table.calls.insert(self.number, CallProgress::default());
        });
    }
}

impl Drop for DriverCall {
    fn drop(&mut self) {
        self.calls.0.send_modify(|table| {
            table.calls.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_millis(10);

    #[test]
    fn calls_take_turns_and_the_one_that_began_first_is_the_oldest() {
        let calls = DriverCalls::default();
        let [reading, probing, events] = [(); 3].map(|()| calls.begin().unwrap());
        assert_eq!(calls.oldest(), None, "to wait for events is no hang");
        let oldest = || calls.oldest().map(|(number, progress)| (number, progress.gpu));
        reading.begin_turn(Some("GPU-1"));
        assert_eq!(oldest(), Some((reading.number(), Some("GPU-1".to_owned()))));
        // It hangs, so that the other one does not wait for longer.
        let start = std::time::Instant::now();
        probing.begin_turn(Some("GPU-0"));
        assert!(start.elapsed() >= TURN);
        assert_eq!(oldest(), Some((reading.number(), Some("GPU-1".to_owned()))));
        drop(reading);
        assert_eq!(oldest(), Some((probing.number(), Some("GPU-0".to_owned()))));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| events.begin_turn(None));
            probing.end_turn();
            waiting.join().unwrap();
        });
        assert_eq!(oldest(), Some((events.number(), None)));
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
}
