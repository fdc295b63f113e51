//! The lock of the driver's resource manager.
//!
//! A call that hangs in the driver holds it, and every other call waits: on every GPU and in every process. Only what the library
//! answers from memory does not wait.

use std::{fs::File, path::Path, sync::Arc, thread, time::Duration};

use gpunode_scenario::{ReturnCode, SCENARIO_FILE, State};

use crate::library::Answer;

/// Interval between checks of a hang.
const RECHECK: Duration = Duration::from_millis(20);

/// Lets a call take its time in the driver. Such calls wait for one another, in every process of the node in `dir`.
pub(crate) fn spend(dir: &Path, time: Duration) -> Answer {
    let lock = File::open(dir.join(SCENARIO_FILE)).map_err(|_| ReturnCode::Unknown)?;
    lock.lock().map_err(|_| ReturnCode::Unknown)?;
    thread::sleep(time);
    Ok(())
}

/// Waits until no call hangs, and returns the state then. A call on `gpu` holds the lock itself while that GPU hangs. The lock is
/// one on the scenario file in `dir`, which every process of a node can open; while no GPU hangs, only calls that take their time
/// take it.
pub(crate) fn wait(dir: &Path, gpu: Option<u32>, state: impl Fn() -> Answer<Arc<State>>) -> Answer<Arc<State>> {
    let mut opened = None;
    loop {
        let now = state()?;
        if now.gpus.values().all(|gpu| !gpu.hangs) {
            return Ok(now);
        }
        let lock = match opened.take() {
            Some(lock) => lock,
            None => File::open(dir.join(SCENARIO_FILE)).map_err(|_| ReturnCode::Unknown)?,
        };
        if gpu.is_some_and(|gpu| now.gpu(gpu).hangs) {
            // A call that does not get the lock hangs behind the one that has it.
            _ = lock.try_lock();
        } else if lock.try_lock_shared().is_ok() {
            return Ok(now);
        }
        opened = Some(lock);
        thread::sleep(RECHECK);
    }
}
