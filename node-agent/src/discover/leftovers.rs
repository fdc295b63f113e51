//! Retires the assignments that a device plugin left on a node without policy: each ends with its last holder, and its MPS
//! daemon and its entry in the CDI file after it.

use crate::{
    cdi::{
        earlier::{keep_named, options_to_keep},
        file::CdiFile,
        survey::CdiSurvey,
    },
    cli::NodeArgs,
    devices::state::{DeviceSnapshot, DeviceState},
    driver::hardware::Hardware,
    handover::NodeLock,
    kubelet::podresources::PodResources,
    mps::answers,
    runtime::blocking_thread::BlockingThread,
    store::assignments::{self, Assignments, SavedAssignments},
};
use anyhow::{Context as _, Result};
use gpunode_cdi::DevicesInUse;
use gpunode_gpu::{DesiredCompanions, DesiredDevices};
use gpunode_process::OnChange;
use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Pause between two probes.
const PAUSE: Duration = Duration::from_secs(10);
/// Longest time to read the files.
const FILES_TIMEOUT: Duration = Duration::from_secs(5);

/// State kept from the previous probe.
#[derive(Debug)]
struct LeftoverDevices {
    state: DeviceState,
    /// Assignments in the file at that time.
    assignments: Assignments,
    /// Last time an agent had taken the lock of the node. An agent that took it later may have allocated devices.
    lock_taken: Option<SystemTime>,
    /// Reason why the CDI file stays as it was.
    cdi_error: Option<String>,
}

/// Task that retires assignments without holders.
pub struct LeftoverRetirement {
    pub args: NodeArgs,
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Publishes holders and daemons; `None` before the first probe and while another agent of this node holds the lock.
    pub snapshot: watch::Sender<Option<DeviceSnapshot>>,
}

impl LeftoverRetirement {
    /// Retires. Never returns.
    pub async fn run(mut self) {
        let kubelet = self.args.pod_resources();
        _ = self.hardware.wait_for(Option::is_some).await;
        // The driver's folder may be on a file system that hangs, and the thread that reads the holders goes on then.
        let disk = BlockingThread::default();
        let mut previous = None;
        let mut errors = OnChange::default();
        loop {
            let hardware = self.hardware.borrow().clone().unwrap_or_default();
            let probed = probe(&self.args, &kubelet, &disk, hardware, &mut previous).await;
            let error = match probed {
                Ok(snapshot) => {
                    let error = snapshot.as_ref().and_then(|snapshot| snapshot.holders_unknown.clone());
                    self.snapshot.send_replace(snapshot);
                    error.or_else(|| previous.as_ref()?.cdi_error.clone())
                }
                Err(error) => Some(format!("{error:#}")),
            };
            if let Some(error) = errors.set(error) {
                warn!(
                    error,
                    "cannot retire the assignments of the earlier device plugin; retrying"
                );
            }
            sleep(PAUSE).await;
        }
    }
}

async fn probe(
    args: &NodeArgs,
    kubelet: &PodResources,
    disk: &BlockingThread,
    hardware: Arc<Hardware>,
    previous: &mut Option<LeftoverDevices>,
) -> Result<Option<DeviceSnapshot>> {
    let (state_dir, mps_dir) = (args.host.state_dir.clone(), args.host.mps_dir.clone());
    let cdi_file = CdiFile::new(&args.cdi_dir);
    let files = kubelet.files.run(move || {
        // A damaged file stays for the next device plugin, which sets it aside.
        let has_leftovers =
            assignments::read(&state_dir).is_ok_and(|assignments| !assignments.is_empty()) || cdi_file.exists();
        (has_leftovers, answers::read(&mps_dir))
    });
    let (has_leftovers, daemons) = timeout(FILES_TIMEOUT, files)
        .await
        .context("read the files of the device plugin")??;
    let (answers, now) = daemons.with_context(|| format!("read {}", args.host.mps_dir.display()))?;
    if !has_leftovers {
        *previous = None;
        let mut state = DeviceState::default();
        state.set_daemon_answers(answers, now);
        return Ok(Some(DeviceSnapshot {
            holders_unknown: None,
            ..state.snapshot()
        }));
    }
    // A starting agent waits for the lock only as long as this probe takes.
    let Some(lock) = NodeLock::try_take(&args.host.state_dir)? else {
        return Ok(None);
    };
    let state_dir = args.host.state_dir.clone();
    let mut saved = spawn_blocking(move || SavedAssignments::load(&state_dir))
        .await
        .context("read the assignments")?;
    let (assignments, lock_taken) = (saved.assignments(), lock.last_taken());
    let before = previous
        .take()
        .filter(|before| before.assignments == assignments && before.lock_taken == lock_taken);
    let mut state = before.map_or_else(
        || DeviceState::restore(assignments.clone(), saved.claimed_files()),
        |before| before.state,
    );
    state.set_daemon_answers(answers, now);
    let desired = hardware.inventory().map(DesiredDevices::nothing);
    state.set_desired(desired.unwrap_or_default(), Instant::now());
    state.set_companions(&DesiredCompanions::default(), &BTreeSet::new(), Instant::now());
    match kubelet.observe().await {
        Ok(observation) => state.observe(observation),
        Err(error) => _ = state.not_observed(&error.to_string(), Instant::now()),
    }
    let snapshot = state.snapshot();
    if snapshot.assignments != assignments {
        info!(
            left = snapshot.assignments.len(),
            "retired the assignments of devices that no container holds"
        );
    }
    saved
        .save(&snapshot.assignments, &snapshot.claimed_files)
        .await
        .context("save the assignments")?;
    let trimmed = trim_cdi_file(args, disk, hardware, snapshot.devices_in_use()).await;
    *previous = Some(LeftoverDevices {
        state,
        assignments: snapshot.assignments.clone(),
        lock_taken,
        cdi_error: trimmed.err().map(|error| format!("{error:#}")),
    });
    Ok(Some(snapshot))
}

/// Leaves the devices in the CDI file that are in use. A description that comes too late is not written: the lock may have another
/// holder then.
async fn trim_cdi_file(
    args: &NodeArgs,
    disk: &BlockingThread,
    hardware: Arc<Hardware>,
    in_use: DevicesInUse,
) -> Result<()> {
    let file = CdiFile::new(&args.cdi_dir);
    let (roots, state_dir, read) = (args.host.driver.roots(), args.host.state_dir.clone(), file.clone());
    let describe = move || {
        let before = read.read()?;
        let options = options_to_keep(before.as_ref(), &in_use);
        let survey = CdiSurvey::of(&roots, &state_dir, &hardware, options.as_ref());
        io::Result::Ok(keep_named(&survey, before, &in_use).spec)
    };
    let trim = async {
        let spec = disk.run(describe).await?.context("read the CDI file")?;
        let written = disk.run(move || file.put(spec.as_ref())).await?;
        written.context("write the CDI file")
    };
    timeout(FILES_TIMEOUT, trim).await.context("make the CDI file")?
}

#[cfg(test)]
mod tests;
