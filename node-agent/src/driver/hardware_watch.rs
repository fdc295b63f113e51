//! Probes the hardware, and again when it may have changed; publishes the results.

use crate::{
    admin::metrics::AgentMetrics,
    api_server::release::ReleaseRequest,
    driver::{
        calls::DriverCalls,
        driver_events::DriverEvents,
        hardware::{DriverState, Hardware},
        hardware_probe::{DriverRoots, HardwareTraces},
        nvml::GpuAddress,
    },
};
use gpunode_gpu::Inventory;
use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

/// First pause after a probe that found no driver; doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(250);
/// Longest pause. A driver takes minutes to build, and a GPU that came back should not wait much longer.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// Interval for comparing sysfs and the driver's file with the last probe. A replaced driver is in use again within 10 s,
/// including the end of the session with the old one.
const RECHECK: Duration = Duration::from_secs(2);
/// Interval for reading facts that only the driver shows: MIG instances that the kernel does not list, and GPUs that join
/// their NVLink fabric.
const BLIND_RECHECK: Duration = Duration::from_mins(1);
/// Time limit for the sessions of other tasks to end.
const SESSIONS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for each GPU of a probe, and for reading files: a driver call or a host file that hangs must not stop the rest of
/// the agent. Without persistence mode the driver initialises each GPU for the probe: NVIDIA says 1 to 3 s
/// (<https://docs.nvidia.com/deploy/driver-persistence/overview.html>), and 5 s were seen.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for calls to the driver to end before the report says that the release waits for them.
const RELEASE_GRACE: Duration = Duration::from_secs(5);
/// Time limit, after [`RELEASE_GRACE`], for MPS daemons to end. One with clients stays as long as they do.
const DAEMONS_TIMEOUT: Duration = Duration::from_secs(15);

/// Task that probes the hardware and publishes the result.
pub struct HardwareWatch {
    /// Folders in which to look for the driver.
    pub roots: DriverRoots,
    /// Publishes the result of each probe that finds something new; none before the first.
    pub hardware: watch::Sender<Option<Arc<Hardware>>>,
    pub probe_now: Arc<Notify>,
    /// Request to leave the driver alone.
    pub release: ReleaseRequest,
    /// Folder of the MPS control daemons, which end when the GPUs are released.
    pub mps_dir: PathBuf,
    /// Events of the driver, which follow the driver that the probes find.
    pub driver_events: Option<DriverEvents>,
    /// True while another task resets a GPU, for which no session with the driver may be open.
    pub alone: watch::Receiver<bool>,
    /// True once a configuration has MIG layouts: probes then read profiles and instances, too.
    pub layouts: watch::Receiver<bool>,
    pub metrics: AgentMetrics,
}

impl HardwareWatch {
    /// Probes again when a probe is requested, when something changed, or soon after something was missing. While the GpuNode
    /// releases the GPUs, the driver is not used. Never returns.
    pub async fn run(self) {
        let Self {
            roots,
            hardware: hardware_sender,
            probe_now,
            mut release,
            mps_dir,
            driver_events: mut events,
            mut alone,
            mut layouts,
            metrics,
        } = self;
        let roots = Arc::new(roots);
        let mut retry = MIN_RETRY;
        let mut before = None;
        loop {
            let probing = roots.clone();
            let traces = run_blocking(move || probing.traces()).await;
            let driver = traces.map(|traces| traces.driver);
            let is_other = driver != before;
            if release.is_on() || is_other {
                // Ends before the probe: while a session is open, the loader returns the old library for the same path, and
                // NVML lists the GPUs of then.
                close(&mut events).await;
            }
            if release.is_on() {
                before = None;
                roots.calls.close();
                release.save(true).await;
                if calls_ended(&roots, &hardware_sender, &mut release).await
                    && daemons_ended(&mps_dir, &roots, &hardware_sender, &mut release).await
                {
                    publish_state(&roots, &hardware_sender, DriverState::Released).await;
                    release.wait_for(false).await;
                }
                release.save(false).await;
                roots.calls.reopen();
                info!("the GPUs are no longer released");
                continue;
            }
            let has_ended = !is_other || sessions_end(&roots.calls).await;
            let (traces, hardware) = tokio::select! {
                probed = probe_within(PROBE_TIMEOUT, &roots, *layouts.borrow_and_update(), &hardware_sender) => probed,
                // The release waits for the call of this probe, too.
                () = release.wait_for(true) => continue,
                // So does the reset.
                true = is_set(&mut alone, true) => {
                    reset_ends(&mut events, &mut alone, &roots, &hardware_sender, &mut release).await;
                    continue;
                }
            };
            // A driver that changed meanwhile gets sessions of its own.
            let is_current = has_ended && Some(&traces.driver) == driver.as_ref();
            before = driver.filter(|_| is_current);
            if let Some(call) = hardware.failed {
                metrics.nvml_error(call);
            }
            let settled = is_current && hardware.problem().is_none();
            // Only the driver knows of MIG instances that come and go, and of a fabric, which brings links and a clique.
            let blind = (traces.instances.is_none() && hardware.is_divided()) || hardware.waits_for_fabric();
            publish(&hardware_sender, hardware);
            retry = if settled { MIN_RETRY } else { (retry * 2).min(MAX_RETRY) };
            let next = match (settled, blind) {
                (false, _) => Some(Instant::now() + retry),
                (true, true) => Some(Instant::now() + BLIND_RECHECK),
                (true, false) => None,
            };
            loop {
                if let Some(events) = &mut events {
                    follow(events, &traces, &hardware_sender).await;
                }
                let pause = next.map_or(RECHECK, |next| RECHECK.min(next.duration_since(Instant::now())));
                let is_requested = tokio::select! {
                    () = probe_now.notified() => true,
                    () = release.wait_for(true) => true,
                    true = is_set(&mut alone, true) => {
                        reset_ends(&mut events, &mut alone, &roots, &hardware_sender, &mut release).await;
                        true
                    }
                    Ok(()) = layouts.changed() => true,
                    () = sleep(pause) => false,
                };
                if is_requested || next.is_some_and(|next| Instant::now() >= next) {
                    break;
                }
                let probing = roots.clone();
                // Unreadable traces cause a probe too, which reports the call that hangs.
                if run_blocking(move || probing.traces())
                    .await
                    .is_none_or(|now| now != traces)
                {
                    break;
                }
            }
        }
    }
}

/// Follows the events of the GPUs in the last probe.
async fn follow(
    events: &mut DriverEvents,
    traces: &HardwareTraces,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
) {
    let hardware = hardware_sender.borrow().clone();
    let inventory = hardware.as_deref().and_then(Hardware::answering);
    if let (Some((library, ..)), Some(inventory)) = (&traces.driver.library, inventory) {
        let gpus: Vec<GpuAddress> = inventory.gpus.iter().map(GpuAddress::of).collect();
        events.follow(library, &gpus).await;
    }
}

/// Waits until this process has no session with the driver, and lets none begin meanwhile: NVML counts its initialisations
/// (nvml.h, `nvmlInit_v2`), and lists the GPUs that the first of them found until the last session has ended. Returns false
/// when one hangs.
async fn sessions_end(calls: &DriverCalls) -> bool {
    calls.close();
    let ended = timeout(SESSIONS_TIMEOUT, calls.ended()).await;
    calls.reopen();
    ended.is_ok()
}

/// Waits until the flag has this value; false if nobody sets it any more.
async fn is_set(flag: &mut watch::Receiver<bool>, value: bool) -> bool {
    flag.wait_for(|now| *now == value).await.is_ok()
}

/// Follows no events until the reset of a GPU is over, which makes their handles useless. Says so if that takes long.
async fn reset_ends(
    events: &mut Option<DriverEvents>,
    alone: &mut watch::Receiver<bool>,
    roots: &Arc<DriverRoots>,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
    release: &mut ReleaseRequest,
) {
    if let Some(events) = events {
        events.close_for_reset().await;
    }
    if timeout(PROBE_TIMEOUT, is_set(alone, false)).await.is_ok() {
        return;
    }
    let message = format!(
        "change the MIG mode of a GPU: no answer within {PROBE_TIMEOUT:?}; if the driver gives none, reboot the node (see its \
         kernel log)"
    );
    publish_state(roots, hardware_sender, DriverState::Waiting(message)).await;
    tokio::select! {
        _ = is_set(alone, false) => {}
        () = release.wait_for(true) => {}
    }
}

async fn close(events: &mut Option<DriverEvents>) {
    if let Some(events) = events {
        events.close().await;
    }
}

/// Waits until no call of this process holds the driver, and says so while one does. Returns false when the GPUs need not be
/// released any more.
async fn calls_ended(
    roots: &Arc<DriverRoots>,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
    release: &mut ReleaseRequest,
) -> bool {
    if timeout(RELEASE_GRACE, roots.calls.ended()).await.is_ok() {
        return true;
    }
    let message = "release the GPUs: a call to the driver has no answer yet; if it gets none, reboot the node (see its \
                   kernel log)";
    publish_state(roots, hardware_sender, DriverState::Waiting(message.to_owned())).await;
    tokio::select! {
        () = roots.calls.ended() => true,
        () = release.wait_for(false) => false,
    }
}

/// Waits until the supervisor has ended the MPS daemons without clients and restored their compute modes. Returns false when the
/// GPUs need not be released any more.
async fn daemons_ended(
    mps_dir: &Path,
    roots: &Arc<DriverRoots>,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
    release: &mut ReleaseRequest,
) -> bool {
    let ended = async {
        loop {
            let folder = mps_dir.to_owned();
            if run_blocking(move || has_daemons(&folder)).await != Some(true) {
                return;
            }
            sleep(MIN_RETRY).await;
        }
    };
    let mut ended = pin!(ended);
    if timeout(RELEASE_GRACE, &mut ended).await.is_ok() {
        return true;
    }
    let message = "release the GPUs: MPS control daemons still run; they end after the pods that use them";
    publish_state(roots, hardware_sender, DriverState::Waiting(message.to_owned())).await;
    tokio::select! {
        _ = timeout(DAEMONS_TIMEOUT, ended) => true,
        () = release.wait_for(false) => false,
    }
}

/// Returns true while a device has a folder of the MPS supervisor, who removes it last. Blocks.
fn has_daemons(mps_dir: &Path) -> bool {
    let mut entries = fs::read_dir(mps_dir).into_iter().flatten().filter_map(Result::ok);
    entries.any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

/// Publishes a state in which the driver is not used, and keeps the last probe's GPUs.
async fn publish_state(
    roots: &Arc<DriverRoots>,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
    driver: DriverState,
) {
    let last = hardware_sender.borrow().as_deref().cloned();
    let hardware = if let Some(last) = last {
        last
    } else {
        let probing = roots.clone();
        run_blocking(move || probing.read_sysfs()).await.unwrap_or_default()
    };
    publish(
        hardware_sender,
        Hardware {
            driver,
            failed: None,
            ..hardware
        },
    );
}

/// Probes once. While the calls about a GPU take longer than `limit`, the agent waits for the driver.
async fn probe_within(
    limit: Duration,
    roots: &Arc<DriverRoots>,
    with_layouts: bool,
    hardware_sender: &watch::Sender<Option<Arc<Hardware>>>,
) -> (HardwareTraces, Hardware) {
    loop {
        let probing = roots.clone();
        let before = hardware_sender.borrow().clone();
        // This task opens the gate before it probes again; another one has closed it to reset a GPU.
        let Some(call) = roots.calls.begin() else {
            sleep(MIN_RETRY).await;
            continue;
        };
        let number = call.number();
        let mut task = tokio::task::spawn_blocking(move || probing.probe(before.as_deref(), with_layouts, &call));
        let result = loop {
            let begun = roots.calls.progress(number);
            let since = begun.as_ref().and_then(|progress| progress.since);
            let deadline = since.unwrap_or_else(Instant::now) + limit;
            if let Ok(result) = timeout_at(deadline, &mut task).await {
                break result;
            }
            if roots.calls.progress(number) == begun {
                let message = format!(
                    "query the driver: no answer within {limit:?}; if it gives none, reboot the node (see its kernel log)"
                );
                publish_state(roots, hardware_sender, DriverState::Waiting(message)).await;
                // A second probe beside a hanging call would only block another thread.
                break task.await;
            }
        };
        match result {
            Ok(probed) => return probed,
            Err(error) => {
                warn!(%error, "cannot probe the hardware");
                sleep(MAX_RETRY).await;
            }
        }
    }
}

/// Runs `ask` on a blocking thread, up to [`PROBE_TIMEOUT`]. The runtime has one thread, which must not wait for a file.
async fn run_blocking<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    timeout(PROBE_TIMEOUT, tokio::task::spawn_blocking(ask))
        .await
        .ok()?
        .ok()
}

fn publish(hardware_sender: &watch::Sender<Option<Arc<Hardware>>>, mut hardware: Hardware) {
    hardware_sender.send_if_modified(|last| {
        if hardware.driver.problem().is_some() && hardware.reading.is_none() {
            // The GPUs stay known while their driver is replaced.
            hardware.reading = last.as_ref().and_then(|last| last.reading.clone());
        }
        if last.as_deref() == Some(&hardware) {
            return false;
        }
        let summary = hardware.inventory().map(Inventory::summary).unwrap_or_default();
        if let Some(problem) = hardware.problem() {
            warn!(
                problem,
                hardware = summary,
                functions = hardware.functions,
                "hardware has a problem"
            );
        } else if hardware.driver == DriverState::Released {
            info!("the GPUs are released: the driver is no longer used");
        } else {
            info!(hardware = summary, functions = hardware.functions, "hardware found");
        }
        *last = Some(Arc::new(hardware));
        true
    });
}

#[cfg(test)]
mod tests;
