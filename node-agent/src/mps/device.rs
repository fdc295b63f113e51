//! Runs the MPS control daemon of one device: probes it, and carries out the actions that [`DaemonState`] decides.

use super::{
    compute_mode,
    control::MpsControl,
    daemon::{DaemonAction, DaemonProbe, DaemonState, DesiredDaemon},
    device_folder::DeviceFolder,
    folders,
    holders::HolderQuery,
    processes,
};
use crate::{runtime::clock::since_boot, store::atomic_file};
use anyhow::{Context as _, Result, bail};
use std::{fs, io, time::Duration};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::{info, warn};

/// Interval between probes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Interval between probes of a daemon that starts or quits.
const SHORT_INTERVAL: Duration = Duration::from_millis(100);
/// Usual longest time of a start or a quit.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);
/// Timeout of a file system or driver call: a hung one must not keep this process from ending.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs one daemon.
#[derive(Clone, Debug)]
pub struct DaemonRunner {
    /// The device's folder.
    pub place: DeviceFolder,
    /// NVIDIA's control program.
    pub control: MpsControl,
    /// Query for the holders of devices.
    pub holders: HolderQuery,
}

impl DaemonRunner {
    /// Returns when the daemon and its folder are gone and not desired, or when the sender of `want` is dropped.
    pub async fn look_after(self, mut want: watch::Receiver<DesiredDaemon>) {
        let mut daemon = DaemonState::default();
        let mut state = LoggedState::default();
        let mut short_until = Instant::now();
        loop {
            let wanted = *want.borrow_and_update();
            let seen = self.see(wanted, &mut state).await;
            let mut asked = seen.map(|seen| (seen, daemon.next(wanted, seen, std::time::Instant::now())));
            // The start follows the preparation at once.
            while let Ok((seen, Some(step))) = asked {
                let done = self.carry_out(step, &mut daemon, &mut state).await;
                state.report(&self.place, done.as_ref().err().map(|error| format!("{error:#}")));
                match (step, done) {
                    (DaemonAction::CleanUnlessHeld, Ok(())) if *want.borrow() != DesiredDaemon::Run => return,
                    (DaemonAction::Prepare, Ok(())) => daemon.prepared(),
                    (_, Ok(())) => short_until = Instant::now() + SETTLES_WITHIN,
                    (_, Err(_)) => {}
                }
                asked = Ok((seen, daemon.next(wanted, seen, std::time::Instant::now())));
                if step != DaemonAction::Prepare {
                    break;
                }
            }
            if let Err(error) = asked {
                state.report(&self.place, Some(format!("{error:#}")));
            }
            let pause = if Instant::now() < short_until {
                SHORT_INTERVAL
            } else {
                INTERVAL
            };
            if let Ok(Err(_)) = timeout(pause, want.changed()).await {
                return;
            }
        }
    }

    async fn see(&self, want: DesiredDaemon, state: &mut LoggedState) -> Result<DaemonProbe> {
        if want == DesiredDaemon::Run {
            match self.control.ask(&self.place).await {
                Ok(()) => {
                    self.record_answer().await?;
                    state.answers(&self.place);
                    return Ok(DaemonProbe::Answers);
                }
                Err(error) => state.silent(&self.place, &error.to_string()),
            }
        }
        let place = self.place.clone();
        blocking(move || {
            let running = !processes::of(&place)?.is_empty();
            let answered = place.answered().exists();
            // The answer of a daemon that is gone, or that takes no new clients, must not count as fresh.
            if answered && (want != DesiredDaemon::Run || !running) {
                fs::remove_file(place.answered())?;
            }
            Ok(if running {
                DaemonProbe::Silent { answered }
            } else {
                DaemonProbe::Gone
            })
        })
        .await
        .with_context(|| format!("find the processes of the MPS control daemon of {}", self.place.uuid()))
    }

    async fn record_answer(&self) -> Result<()> {
        let place = self.place.clone();
        blocking(move || {
            atomic_file::replace(&place.answered(), since_boot().as_millis().to_string().as_bytes())?;
            folders::bound_logs(&place)
        })
        .await
        .with_context(|| format!("record the answer of the daemon in {}", self.place.folder().display()))
    }

    async fn carry_out(&self, step: DaemonAction, daemon: &mut DaemonState, state: &mut LoggedState) -> Result<()> {
        let (device, place) = (self.place.uuid(), self.place.clone());
        match step {
            DaemonAction::Prepare => self.prepare().await,
            DaemonAction::Start => {
                blocking(move || folders::empty_for_a_start(&place))
                    .await
                    .context("remove the files of the former daemon")?;
                self.control.start(&self.place).await?;
                info!(device, "MPS control daemon started");
                Ok(())
            }
            DaemonAction::QuitUnlessHeld => {
                self.is_free().await?;
                daemon.told(std::time::Instant::now());
                self.control.quit(&self.place).await?;
                info!(device, "MPS control daemon told to quit");
                Ok(())
            }
            DaemonAction::Kill | DaemonAction::KillUnlessHeld => {
                if step == DaemonAction::KillUnlessHeld {
                    self.is_free().await?;
                }
                state.kills(&self.place);
                blocking(move || processes::kill(&place))
                    .await
                    .with_context(|| format!("kill the daemon of {device}"))
            }
            DaemonAction::CleanUnlessHeld => {
                self.is_free().await?;
                self.restore_compute_mode().await?;
                let removed = blocking(move || folders::remove(&place)).await;
                removed.with_context(|| format!("remove {}", self.place.folder().display()))?;
                info!(device, "MPS control daemon gone, compute mode restored");
                Ok(())
            }
        }
    }

    async fn is_free(&self) -> Result<()> {
        let device = self.place.uuid();
        if self.holders.hold(device).await? {
            bail!(
                "the MPS control daemon of {device} stays until no container holds the device; no assignment needs it any more"
            );
        }
        Ok(())
    }

    async fn prepare(&self) -> Result<()> {
        let place = self.place.clone();
        let folders = blocking(move || folders::provide(&place));
        folders.await.with_context(|| {
            let folder = self.place.folder().display();
            format!("create the folders in {folder} and mount a tmpfs on two; does the container run privileged?")
        })?;
        self.compute_mode(compute_mode::set).await
    }

    /// Restores the compute mode, whether the daemon runs or not.
    pub async fn restore_compute_mode(&self) -> Result<()> {
        self.compute_mode(compute_mode::restore).await
    }

    async fn compute_mode(
        &self,
        change: fn(&DeviceFolder, &[std::path::PathBuf]) -> Result<(), compute_mode::ComputeModeError>,
    ) -> Result<()> {
        let place = self.place.clone();
        let roots = self.control.roots();
        let change = spawn_blocking(move || change(&place, &roots));
        Ok(timeout(CALL_TIMEOUT, change)
            .await
            .context("set the compute mode: NVML does not answer")???)
    }
}

/// Last logged state, so that only changes are logged.
#[derive(Default)]
struct LoggedState {
    answering: bool,
    killed: bool,
    problem: Option<String>,
}

impl LoggedState {
    fn answers(&mut self, place: &DeviceFolder) {
        self.killed = false;
        if !std::mem::replace(&mut self.answering, true) {
            info!(device = place.uuid(), "MPS control daemon answers");
        }
    }

    fn silent(&mut self, place: &DeviceFolder, error: &str) {
        if std::mem::replace(&mut self.answering, false) {
            warn!(device = place.uuid(), error, "MPS control daemon does not answer");
        }
    }

    fn kills(&mut self, place: &DeviceFolder) {
        if !std::mem::replace(&mut self.killed, true) {
            warn!(
                device = place.uuid(),
                "the MPS control daemon does not answer; killing it, repeatedly if necessary"
            );
        }
    }

    fn report(&mut self, place: &DeviceFolder, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.problem.as_ref() != Some(problem)
        {
            warn!(
                device = place.uuid(),
                problem, "cannot bring the MPS control daemon to its desired state; retrying"
            );
        }
        self.problem = problem;
    }
}

/// Runs work on files or processes on another thread: the runtime has only one.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    Ok(timeout(CALL_TIMEOUT, spawn_blocking(work))
        .await
        .context("no answer from the file system")???)
}
