//! Takes work on the layouts of GPUs from the main loop, and publishes the results.

use super::{
    job::MigJob,
    record_file::{MigRecords, RecordFile},
};
use crate::{
    driver::{calls::DriverCall, hardware::Hardware, hardware_probe::DriverRoots},
    health::allocations::Allocations,
    runtime::blocking_thread::BlockingThread,
};
use gpunode_crds::MigReason;
use gpunode_gpu::{AttemptResult, MigAttempt, MigWork, WorkKind};
use std::{
    collections::BTreeMap,
    path::PathBuf,
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
    /// True once a configuration has layouts. Nothing is read or written before.
    pub layouts: watch::Receiver<bool>,
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

/// Sets the flag when the executor ends, so that a job stops between two calls.
struct StopAtEnd(Arc<AtomicBool>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the driver's other sessions of this process begin again at the end.
struct DriverAlone<'a> {
    roots: &'a DriverRoots,
    alone: &'a watch::Sender<bool>,
}

impl Drop for DriverAlone<'_> {
    fn drop(&mut self) {
        self.roots.calls.reopen();
        self.alone.send_replace(false);
    }
}

impl MigExecutor {
    /// Does the work that is listed, as it comes. Never returns.
    pub async fn run(mut self) {
        // Fails only when the agent stops.
        _ = self.layouts.wait_for(|wanted| *wanted).await;
        let (state_dir, stop) = (self.state_dir.clone(), StopAtEnd(Arc::default()));
        let file = loop {
            let (folder, records) = (state_dir.clone(), self.records.clone());
            match self.thread.run(move || RecordFile::load(&folder, records)).await {
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
            let Some(work) = listed.iter().find(is_settled).cloned() else {
                tokio::select! {
                    changed = self.work.changed() => if changed.is_err() { return },
                    () = sleep(SETTLE), if !listed.is_empty() => {}
                }
                continue;
            };
            self.publish(&work, AttemptResult::Running);
            let result = self.carry_out(&work, &file, &stop.0).await;
            if !matches!(work.kind, WorkKind::Check | WorkKind::Remember) {
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

    async fn carry_out(&self, work: &MigWork, file: &Arc<Mutex<RecordFile>>, stop: &Arc<AtomicBool>) -> AttemptResult {
        let hardware = self.hardware.borrow().clone();
        let inventory = hardware.as_deref().and_then(Hardware::answering);
        let gpu = inventory.and_then(|inventory| inventory.gpus.iter().find(|gpu| gpu.uuid == work.gpu));
        let (Some(hardware), Some(gpu)) = (hardware.as_deref(), gpu) else {
            return no_driver("the driver does not answer for this GPU");
        };
        let daemons = self.devices.daemons();
        let job = MigJob {
            roots: self.roots.clone(),
            work: work.clone(),
            gpu: gpu.clone(),
            mps: daemons.into_iter().map(|daemon| daemon.device).collect(),
            run: hardware.run.clone(),
            stop: stop.clone(),
        };
        if work.kind == WorkKind::Remember {
            return self.in_job(job, file, |job, file, _| job.remember(file), None).await;
        }
        let call = self.roots.calls.begin();
        let checked = self
            .in_job(job.clone(), file, |job, _, call| job.check(call), call)
            .await;
        if work.kind == WorkKind::Check || checked != AttemptResult::Clear {
            return checked;
        }
        if !job.resets_the_gpu() {
            let call = self.roots.calls.begin();
            return self
                .in_job(job, file, |job, file, call| job.change(file, call), call)
                .await;
        }
        self.alone.send_replace(true);
        self.roots.calls.close();
        let _alone = DriverAlone {
            roots: &self.roots,
            alone: &self.alone,
        };
        if timeout(SESSIONS_TIMEOUT, self.roots.calls.ended()).await.is_err() {
            return no_driver(
                "a call of gpunode to the driver has no answer yet, and the GPU cannot be reset meanwhile",
            );
        }
        let call = Some(self.roots.calls.begin_alone());
        self.in_job(job, file, |job, file, call| job.change(file, call), call)
            .await
    }

    /// Does a part of a job on the thread. It needs a call of the driver, unless it only saves the record.
    async fn in_job(
        &self,
        job: MigJob,
        file: &Arc<Mutex<RecordFile>>,
        part: impl FnOnce(&MigJob, &mut RecordFile, &DriverCall) -> AttemptResult + Send + 'static,
        call: Option<DriverCall>,
    ) -> AttemptResult {
        let Some(call) = call.or_else(|| self.roots.calls.begin()) else {
            return no_driver("the GPUs are released, or the driver is being replaced");
        };
        let file = file.clone();
        let done = self.thread.run(move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            part(&job, &mut file, &call)
        });
        done.await.unwrap_or_else(|error| AttemptResult::Failed {
            message: format!("change MIG: the thread ended: {error}"),
        })
    }
}

fn no_driver(message: &str) -> AttemptResult {
    AttemptResult::Blocked {
        reason: MigReason::DriverError,
        message: message.to_owned(),
    }
}
