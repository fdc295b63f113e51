//! Runs the MPS control daemon of one device: probes it, and carries out the actions that [`DaemonState`] decides.

use super::{
    compute_mode,
    control::MpsControl,
    daemon::{DaemonAction, DaemonObservation, DaemonProbe, DaemonState, DesiredDaemon},
    device_folder::DeviceFolder,
    folders,
    holders::HolderQuery,
    processes::DaemonProcesses,
};
use crate::{
    driver::hardware_probe::{DriverRoots, module},
    runtime::{blocking_thread::BlockingThread, clock::since_boot},
    store::atomic_file,
};
use anyhow::{Context as _, Result, bail};
use std::{fs, io, time::Duration};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::{info, warn};

/// Interval between questions to a daemon that answers and whose processes run. Each question runs NVIDIA's program in a mount
/// namespace of its own, so a daemon that hangs is noticed within this time, and one that died within [`INTERVAL`].
const ASK_INTERVAL: Duration = Duration::from_mins(1);
/// Interval between probes. With the timeouts of a question it is shorter than the life of a fresh answer.
const INTERVAL: Duration = Duration::from_secs(2);
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
    pub folder: DeviceFolder,
    /// NVIDIA's control program.
    pub control: MpsControl,
    /// Query for the holders of devices.
    pub holders: HolderQuery,
    /// Changes the compute mode. The changes keep their order, also when NVML hangs.
    pub driver_thread: BlockingThread,
}

impl DaemonRunner {
    /// Returns when the daemon and its folder are gone and not desired, or when the sender of `desired` is dropped.
    pub async fn run(self, mut desired: watch::Receiver<DesiredDaemon>) {
        let mut daemon = DaemonState::default();
        let mut logged = LoggedState::default();
        let mut last_answer = None;
        let mut short_until = Instant::now();
        loop {
            let target = *desired.borrow_and_update();
            let observed = self.observe(daemon.target(target), &mut last_answer, &mut logged).await;
            let mut next = observed.map(|observed| {
                let action = daemon.next_action(target, observed, std::time::Instant::now());
                (observed, action)
            });
            // A start follows its preparation at once.
            while let Ok((observed, Some(action))) = next {
                let result = self.carry_out(action, &mut daemon, &mut logged).await;
                logged.problem(&self.folder, result.as_ref().err().map(|error| format!("{error:#}")));
                match (action, result) {
                    (DaemonAction::CleanUnlessHeld, Ok(())) if *desired.borrow() != DesiredDaemon::Run => return,
                    (DaemonAction::Prepare, Ok(())) => daemon.prepared(observed.load),
                    (_, Ok(())) => short_until = Instant::now() + SETTLES_WITHIN,
                    (_, Err(_)) => {}
                }
                if action != DaemonAction::Prepare {
                    break;
                }
                let action = daemon.next_action(target, observed, std::time::Instant::now());
                next = Ok((observed, action));
            }
            if let Err(error) = next {
                logged.problem(&self.folder, Some(format!("{error:#}")));
            }
            let pause = if Instant::now() < short_until {
                SHORT_INTERVAL
            } else {
                INTERVAL
            };
            if let Ok(Err(_)) = timeout(pause, desired.changed()).await {
                return;
            }
        }
    }

    /// Observes the daemon and the driver.
    async fn observe(
        &self,
        desired: DesiredDaemon,
        last_answer: &mut Option<DaemonAnswer>,
        logged: &mut LoggedState,
    ) -> Result<DaemonObservation> {
        let before = last_answer.take().filter(|_| desired == DesiredDaemon::Run);
        let (folder, control) = (self.folder.clone(), self.control.clone());
        let (answer, load, is_validated) = blocking(move || {
            let load = module(&control.roots().host_root);
            if let Some(answer) = before.filter(DaemonAnswer::is_fresh) {
                record_answer(&folder)?;
                return Ok((Ok(answer), load, true));
            }
            let running = DaemonProcesses::find(&folder)?;
            // Only a start asks for it, and it costs more than all else.
            let is_validated = !running.is_empty() || control.driver_is_validated();
            Ok((Err(running), load, is_validated))
        })
        .await
        .with_context(|| format!("observe the MPS control daemon of {}", self.folder.uuid()))?;
        let probe = match answer {
            Ok(answer) => {
                *last_answer = Some(answer);
                DaemonProbe::Answers
            }
            Err(running) => self.probe(desired, running, last_answer, logged).await?,
        };
        Ok(DaemonObservation {
            probe,
            load,
            is_validated,
        })
    }

    /// Probes the daemon with these processes by a question, if it is desired.
    async fn probe(
        &self,
        desired: DesiredDaemon,
        running: DaemonProcesses,
        last_answer: &mut Option<DaemonAnswer>,
        logged: &mut LoggedState,
    ) -> Result<DaemonProbe> {
        let (folder, is_gone) = (self.folder.clone(), running.is_empty());
        if desired == DesiredDaemon::Run
            && let Some(at) = self.ask(logged).await?
        {
            logged.answers(&self.folder);
            *last_answer = Some(DaemonAnswer { at, running });
            return Ok(DaemonProbe::Answers);
        }
        let answered = blocking(move || {
            let answered = folder.answered().exists();
            // The answer of a daemon that is gone, or that takes no new clients, must not count as fresh.
            if answered && (desired != DesiredDaemon::Run || is_gone) {
                fs::remove_file(folder.answered())?;
            }
            Ok(answered)
        })
        .await
        .with_context(|| format!("withdraw the answer of the daemon in {}", self.folder.path().display()))?;
        Ok(if is_gone {
            DaemonProbe::Gone
        } else {
            DaemonProbe::Silent { answered }
        })
    }

    /// Asks the daemon; returns the time of the answer, none without one. Each question adds lines to the logs.
    async fn ask(&self, logged: &mut LoggedState) -> Result<Option<Instant>> {
        if let Err(error) = self.control.probe(&self.folder).await {
            logged.silent(&self.folder, &error.to_string());
            return Ok(None);
        }
        let (at, folder) = (Instant::now(), self.folder.clone());
        blocking(move || {
            folders::truncate_logs(&folder)?;
            record_answer(&folder)
        })
        .await
        .with_context(|| format!("record the answer of the daemon in {}", self.folder.path().display()))?;
        Ok(Some(at))
    }

    async fn carry_out(&self, action: DaemonAction, daemon: &mut DaemonState, logged: &mut LoggedState) -> Result<()> {
        let (device, folder) = (self.folder.uuid(), self.folder.clone());
        match action {
            DaemonAction::AwaitDriver => bail!("the driver's container is not ready; the daemon starts when it is"),
            DaemonAction::Prepare => self.prepare().await,
            DaemonAction::Start => {
                blocking(move || folders::clear(&folder))
                    .await
                    .context("remove the files of the former daemon")?;
                self.control.start(&self.folder).await?;
                info!(device, "MPS control daemon started");
                Ok(())
            }
            DaemonAction::QuitUnlessHeld => {
                self.ensure_free().await?;
                daemon.quit_requested(std::time::Instant::now());
                self.control.quit(&self.folder).await?;
                info!(device, "MPS control daemon told to quit");
                Ok(())
            }
            DaemonAction::Kill | DaemonAction::KillUnlessHeld => {
                if action == DaemonAction::KillUnlessHeld {
                    self.ensure_free().await?;
                }
                logged.kills(&self.folder);
                blocking(move || DaemonProcesses::find(&folder)?.kill())
                    .await
                    .with_context(|| format!("kill the daemon of {device}"))
            }
            DaemonAction::CleanUnlessHeld => {
                self.ensure_free().await?;
                self.restore_compute_mode().await?;
                let removed = blocking(move || folders::remove(&folder)).await;
                removed.with_context(|| format!("remove {}", self.folder.path().display()))?;
                info!(device, "MPS control daemon gone, compute mode restored");
                Ok(())
            }
        }
    }

    async fn ensure_free(&self) -> Result<()> {
        let device = self.folder.uuid();
        if self.holders.is_held(device).await? {
            bail!(
                "the MPS control daemon of {device} stays until no container holds the device; no assignment needs it any more"
            );
        }
        Ok(())
    }

    async fn prepare(&self) -> Result<()> {
        let (folder, host_root) = (self.folder.clone(), self.control.roots().host_root.clone());
        let folders = blocking(move || folders::create(&folder, &host_root));
        folders.await.with_context(|| {
            let folder = self.folder.path().display();
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
        change: fn(&DeviceFolder, &DriverRoots) -> Result<(), compute_mode::ComputeModeError>,
    ) -> Result<()> {
        let (folder, roots) = (self.folder.clone(), self.control.roots().clone());
        let change = self.driver_thread.run(move || change(&folder, &roots));
        Ok(timeout(CALL_TIMEOUT, change)
            .await
            .context("set the compute mode: NVML does not answer")???)
    }
}

/// Last answer of a daemon to a question.
struct DaemonAnswer {
    at: Instant,
    /// Processes of the daemon at that time.
    running: DaemonProcesses,
}

impl DaemonAnswer {
    /// Returns true while the daemon runs and need not be asked again.
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < ASK_INTERVAL && !self.running.is_empty() && self.running.all_run()
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
    fn answers(&mut self, folder: &DeviceFolder) {
        self.killed = false;
        if !std::mem::replace(&mut self.answering, true) {
            info!(device = folder.uuid(), "MPS control daemon answers");
        }
    }

    fn silent(&mut self, folder: &DeviceFolder, error: &str) {
        if std::mem::replace(&mut self.answering, false) {
            warn!(device = folder.uuid(), error, "MPS control daemon does not answer");
        }
    }

    fn kills(&mut self, folder: &DeviceFolder) {
        if !std::mem::replace(&mut self.killed, true) {
            warn!(
                device = folder.uuid(),
                "the MPS control daemon does not answer; killing it, repeatedly if necessary"
            );
        }
    }

    fn problem(&mut self, folder: &DeviceFolder, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.problem.as_ref() != Some(problem)
        {
            warn!(
                device = folder.uuid(),
                problem, "cannot bring the MPS control daemon to its desired state; retrying"
            );
        }
        self.problem = problem;
    }
}

/// Records the time of an answer, for agents; blocks. No sync: after a power cut there is no daemon.
fn record_answer(folder: &DeviceFolder) -> io::Result<()> {
    atomic_file::replace_unsynced(&folder.answered(), &since_boot().as_millis().to_string())
}

/// Runs work on files or processes on another thread: the runtime has only one.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    Ok(timeout(CALL_TIMEOUT, spawn_blocking(work))
        .await
        .context("no answer from the file system")???)
}
