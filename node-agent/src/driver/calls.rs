//! Calls of this process that hold the driver: the GPU that each is about, since when, and the gate that a release closes.
//!
//! A call that hangs holds the lock of the driver's resource manager, and every later call waits for it, also one about another
//! GPU. So of all calls without an answer, only the oldest one tells which GPU hangs.

use std::{collections::BTreeMap, sync::Arc};
use tokio::{sync::watch, time::Instant};

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
    /// UUID of the GPU that it is about; none if unknown.
    pub gpu: Option<String>,
    /// Start of its work on that GPU; none while it only waits for events.
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
                let progress = CallProgress {
                    gpu: None,
                    since: Some(Instant::now()),
                };
                table.calls.insert(table.last_number, progress);
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

    /// Returns the call that has worked on its GPU for the longest time.
    pub fn oldest(&self) -> Option<(u64, CallProgress)> {
        let table = self.0.borrow();
        let working = table.calls.iter().filter(|(_, progress)| progress.since.is_some());
        let oldest = working.min_by_key(|(_, progress)| progress.since)?;
        Some((*oldest.0, oldest.1.clone()))
    }

    fn set_progress(&self, number: u64, progress: CallProgress) {
        self.0.send_modify(|table| {
            table.calls.insert(number, progress);
        });
    }
}

impl DriverCall {
    /// Returns the number of the call.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Notes that the call goes on with another GPU.
    pub fn begin_gpu(&self, gpu: Option<&str>) {
        let progress = CallProgress {
            gpu: gpu.map(str::to_owned),
            since: Some(Instant::now()),
        };
        self.calls.set_progress(self.number, progress);
    }

    /// Notes that the call waits for events from now on, which takes any time.
    pub fn await_events(&self) {
        self.calls.set_progress(self.number, CallProgress::default());
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
    use std::time::Duration;
    use tokio::time::{advance, timeout};

    const SOON: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn the_oldest_call_is_the_one_that_has_been_at_its_gpu_for_the_longest_time() {
        let calls = DriverCalls::default();
        assert_eq!(calls.oldest(), None);
        let [reading, probing, events] = [(); 3].map(|()| calls.begin().unwrap());
        events.await_events();
        advance(SOON).await;
        let oldest = || calls.oldest().map(|(number, progress)| (number, progress.gpu));
        assert_eq!(oldest(), Some((reading.number(), None)));
        reading.begin_gpu(Some("GPU-1"));
        assert_eq!(oldest(), Some((probing.number(), None)), "the other one went on");
        advance(SOON).await;
        probing.begin_gpu(Some("GPU-0"));
        assert_eq!(oldest(), Some((reading.number(), Some("GPU-1".to_owned()))));
        drop(reading);
        assert_eq!(oldest(), Some((probing.number(), Some("GPU-0".to_owned()))));
        drop(probing);
        assert_eq!(oldest(), None, "to wait for events is no hang");
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
