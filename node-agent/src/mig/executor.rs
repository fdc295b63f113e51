//! Takes work on the layouts of GPUs from the main loop, and publishes the results.

use super::{
    job::MigJob,
    record_file::{MigRecords, RecordFile},
};
use crate::{
    driver::{
        calls::{DriverCall, DriverCalls},
        hardware::Hardware,
        hardware_probe::DriverRoots,
    },
    health::allocations::Allocations,
    runtime::blocking_thread::BlockingThread,
};
use gpunode_crds::MigReason;
use gpunode_gpu::{AttemptResult, MigAttempt, MigWork, MigWorkKind};
use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::warn;

/// Time after the end of work in which the same work is not done again: the main loop has not seen the result yet. Shorter than any
/// pause that it makes before it tries again.
const SETTLE: Duration = Duration::from_secs(1);
/// Longest wait for the other sessions of this process with the driver to end, before a reset.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which work is reported as slow. A reset takes seconds, and an instance less than one.
const SLOW: Duration = Duration::from_mins(1);

/// Results of the last work on each GPU, by UUID.
pub type MigAttempts = BTreeMap<String, MigAttempt>;

/// Task that carries out work on the layouts of GPUs, one GPU after the other: the driver serialises the calls anyway.
#[derive(Clone)]
pub struct MigExecutor {
    /// Folders and calls of the driver.
    pub roots: DriverRoots,
    /// Folder of the records.
    pub state_dir: PathBuf,
    /// The last reading of the hardware.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// The work to do. Work stays listed until its result is seen.
    pub work: watch::Receiver<Vec<MigWork>>,
    /// Results.
    pub attempts: watch::Sender<MigAttempts>,
    /// Records on disk; none before they are read.
    pub records: watch::Sender<Option<Arc<MigRecords>>>,
    /// The MPS control daemons of the node.
    pub devices: Arc<dyn Allocations>,
    /// True while the events of the driver have to be closed, because a GPU is reset.
    pub alone: watch::Sender<bool>,
    /// Requests another reading of the hardware.
    pub probe_hardware: Arc<Notify>,
    /// Thread of the jobs.
    pub thread: BlockingThread,
}

/// Work with what it takes to begin.
enum Task {
    /// Drop the record of the GPU with this UUID.
    Forget(String),
    /// Save that the GPU has its layout.
    Remember(MigJob),
    /// Ask the driver. A release that closes the gate after this waits for the call.
    Drive(MigJob, Arc<DriverCall>),
}

/// Sets the flag when the executor ends, so that a job stops between two calls.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps the driver's other sessions of this process away until the end. A job has it on its thread, where it outlives the executor.
struct DriverAlone {
    calls: DriverCalls,
    alone: watch::Sender<bool>,
}

impl DriverAlone {
    fn begin(executor: &MigExecutor) -> Self {
        let (calls, alone) = (executor.roots.calls.clone(), executor.alone.clone());
        alone.send_replace(true);
        calls.close();
        Self { calls, alone }
    }
}

impl Drop for DriverAlone {
    fn drop(&mut self) {
        self.calls.reopen();
        self.alone.send_replace(false);
    }
}

impl MigExecutor {
    /// Does the work that is listed, as it comes. Never returns.
    pub async fn run(mut self) {
        let (state_dir, stop) = (self.state_dir.clone(), StopAtEnd(Arc::default()));
        // Whatever the configuration wants: an agent before this one may have left a change half done.
        let file = loop {
            let (folder, records, stop) = (state_dir.clone(), self.records.clone(), stop.0.clone());
            let loaded = self.thread.run(move || RecordFile::load(&folder, records, stop)).await;
            match loaded.map_err(io::Error::other).and_then(|loaded| loaded) {
                Ok(file) => break Arc::new(Mutex::new(file)),
                Err(error) => warn!(%error, "cannot read the MIG records; retrying"),
            }
            sleep(SETTLE).await;
        };
        let mut ended: BTreeMap<String, (MigWork, Instant)> = BTreeMap::new();
        loop {
            let listed = self.work.borrow_and_update().clone();
            let is_settled = |work: &&MigWork| {
                ended
                    .get(&work.gpu)
                    .is_none_or(|(last, at)| last != *work || at.elapsed() >= SETTLE)
            };
            let mut next = listed.iter().filter(is_settled);
            let Some((work, task)) = next.find_map(|work| Some((work.clone(), self.begin(work, &stop.0)?))) else {
                tokio::select! {
                    changed = self.work.changed() => if changed.is_err() { return },
                    () = sleep(SETTLE), if !listed.is_empty() => {}
                }
                continue;
            };
            self.publish(&work, AttemptResult::Running);
            let result = self.carry_out(task, &file).await;
            if !matches!(
                work.kind,
                MigWorkKind::Check | MigWorkKind::Remember | MigWorkKind::Forget
            ) {
                self.probe_hardware.notify_one();
            }
            self.publish(&work, result);
            ended.insert(work.gpu.clone(), (work, Instant::now()));
        }
    }

    fn publish(&self, work: &MigWork, result: AttemptResult) {
        let attempt = MigAttempt {
            work: work.clone(),
            result,
        };
        self.attempts
            .send_modify(|attempts| _ = attempts.insert(work.gpu.clone(), attempt));
    }

    /// Begins work; none while the driver may not be asked, or does not show the GPU: a release is no failed attempt.
    fn begin(&self, work: &MigWork, stop: &Arc<AtomicBool>) -> Option<Task> {
        if work.kind == MigWorkKind::Forget {
            return Some(Task::Forget(work.gpu.clone()));
        }
        let hardware = self.hardware.borrow().clone()?;
        let gpu = hardware.answering()?.gpus.iter().find(|gpu| gpu.uuid == work.gpu)?;
        let daemons = self.devices.daemons();
        let job = MigJob {
            roots: self.roots.clone(),
            work: work.clone(),
            gpu: gpu.clone(),
            mps: daemons.into_iter().map(|daemon| daemon.device).collect(),
            run: hardware.run.clone(),
            stop: stop.clone(),
        };
        if work.kind == MigWorkKind::Remember {
            return Some(Task::Remember(job));
        }
        Some(Task::Drive(job, Arc::new(self.roots.calls.begin()?)))
    }

    async fn carry_out(&self, task: Task, file: &Arc<Mutex<RecordFile>>) -> AttemptResult {
        let (job, call) = match task {
            Task::Forget(gpu) => return self.on_thread(file, move |file| forget(file, &gpu)).await,
            Task::Remember(job) => return self.on_thread(file, move |file| job.remember(file)).await,
            Task::Drive(job, call) => (job, call),
        };
        let (checking, checks) = (job.clone(), call.clone());
        let checked = self.on_thread(file, move |_| checking.check(&checks)).await;
        if job.work.kind == MigWorkKind::Check || checked != AttemptResult::Clear {
            return checked;
        }
        let alone = job.resets_the_gpu().then(|| DriverAlone::begin(self));
        if alone.is_some() && !self.others_end(&call).await {
            // No error of the driver: a probe of all GPUs takes longer without persistence mode.
            return AttemptResult::Blocked {
                reason: MigReason::InUse,
                message: "a call of gpunode to the driver has no answer yet, and no GPU can be reset meanwhile"
                    .to_owned(),
            };
        }
        self.on_thread(file, move |file| {
            let _alone = alone;
            job.change(file, &call)
        })
        .await
    }

    /// Waits until no other session of this process holds the driver; false if one stays.
    async fn others_end(&self, call: &DriverCall) -> bool {
        timeout(SESSIONS_TIMEOUT, self.roots.calls.others_ended(call))
            .await
            .is_ok()
    }

    /// Does a part of a job on the thread.
    async fn on_thread(
        &self,
        file: &Arc<Mutex<RecordFile>>,
        part: impl FnOnce(&mut RecordFile) -> AttemptResult + Send + 'static,
    ) -> AttemptResult {
        let file = file.clone();
        let mut done = pin!(
            self.thread
                .run(move || part(&mut file.lock().unwrap_or_else(PoisonError::into_inner)))
        );
        let result = if let Ok(result) = timeout(SLOW, &mut done).await {
            result
        } else {
            warn!(
                "work on MIG takes longer than {SLOW:?}; if the driver gives no answer, reboot the node (see its kernel log)"
            );
            // Other work would only wait for the driver, too.
            done.await
        };
        result.unwrap_or_else(|error| AttemptResult::Failed {
            message: format!("change MIG: the thread ended: {error}"),
        })
    }
}

/// Drops the record of a GPU. Blocks.
fn forget(file: &mut RecordFile, gpu: &str) -> AttemptResult {
    file.forget(gpu).map_or_else(
        |error| AttemptResult::Failed {
            message: format!(
                "drop the MIG record of {gpu}: {error}; is the state folder on the node full or read-only?"
            ),
        },
        |()| AttemptResult::Done,
    )
}

#[cfg(test)]
mod tests;
