//! `gpunode-agent mps`: one MPS control daemon for each device whose assignment is MPS.
//!
//! The supervisor uses no API server. It reads in `assignments.json` which devices are shared by MPS. The folder of each device
//! tells agents whether its daemon answers ([`answers`]). The daemons are separate processes: a new supervisor takes over
//! those that it finds.
//!
//! | module | what it does |
//! |---|---|
//! | `answers` | which daemons answer, for agents |
//! | `daemon` | decides the next action on one daemon, pure |
//! | `device` | runs the daemon of one device |
//! | `control` | runs NVIDIA's control program |
//! | `exec` | executes the control program in its root |
//! | `compute_mode` | sets and restores a GPU's compute mode |
//! | `holders` | asks the kubelet for the holders of a device |
//! | `processes` | finds, kills and reaps processes of daemons |
//! | `device_folder` | paths of one device |
//! | `folders` | creates, empties and removes that folder |
//! | `memory` | mounts a tmpfs on the folders that containers write to |
//! | `emptying` | empties a folder that containers write to, safely |
//! | `shutdown` | on SIGTERM, ends the daemons without clients |

pub mod answers;
mod compute_mode;
mod control;
mod daemon;
mod device;
mod device_folder;
mod emptying;
mod exec;
mod folders;
mod holders;
mod memory;
mod processes;
mod shutdown;

pub use device_folder::folder_path;
pub use exec::{MpsExecArgs, exec};

use crate::{
    admin::{
        metrics::AgentMetrics,
        server::{self, AgentServer, Readiness},
    },
    api_server::release,
    driver::hardware_probe::DriverRoots,
    kubelet::podresources::PodResources,
    runtime::{
        blocking_thread::BlockingThread,
        signals::{SignalRequest, Signals},
    },
    store::assignments::{self, Assignments},
};
use anyhow::{Context as _, Result};
use control::MpsControl;
use daemon::DesiredDaemon;
use device::DaemonRunner;
use device_folder::DeviceFolder;
use gpunode_gpu::DeviceSharing;
use holders::HolderQuery;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::{info, warn};

/// Interval between reads of the assignments.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a read; a slower one is awaited again in the next interval.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Lock file of the supervisor, beside the folders of the devices. It contains the UID of the supervisor's pod.
const LOCK: &str = "lock";

/// Settings of the supervisor.
#[derive(Debug)]
pub struct Settings {
    /// Roots of the host and of the driver.
    pub driver_roots: DriverRoots,
    /// Folder of the assignments.
    pub state_dir: PathBuf,
    /// Folder of the MPS control daemons.
    pub mps_dir: PathBuf,
    /// Address of /livez, /readyz and /metrics.
    pub admin_address: SocketAddr,
    /// The kubelet's PodResources API, which lists the holders.
    pub pod_resources: PodResources,
    /// UID of this pod; empty without a pod.
    pub pod_uid: String,
}

/// Supervises the daemons. Every failure is logged and retried, never fatal: the end of this process would end the daemons in
/// its container, and the CUDA contexts of all clients.
#[derive(Debug)]
struct Supervisor {
    settings: Settings,
    holders: HolderQuery,
    /// Devices shared by MPS; `None` before the first successful read.
    desired: Option<BTreeSet<String>>,
    daemons: BTreeMap<String, SupervisedDaemon>,
    /// The read in progress.
    reading: Option<JoinHandle<MpsInputs>>,
    problem: String,
}

/// One supervised daemon.
#[derive(Debug)]
struct SupervisedDaemon {
    runner: DaemonRunner,
    desired: watch::Sender<DesiredDaemon>,
    task: JoinHandle<()>,
}

/// Assignments, and the folders of devices on disk.
type MpsInputs = (
    Result<Assignments, assignments::AssignmentsError>,
    io::Result<Vec<DeviceFolder>>,
);

/// Input that the supervisor cannot read.
#[derive(Debug, thiserror::Error)]
enum InputError {
    /// The file system does not answer.
    #[error("read the assignments: no answer from the file system within {READ_TIMEOUT:?}")]
    Slow,
    /// The read panicked.
    #[error("read the assignments: {0}")]
    Panicked(#[from] JoinError),
    /// The file is damaged or unreadable.
    #[error(transparent)]
    Assignments(#[from] assignments::AssignmentsError),
    /// The folder of the daemons is unreadable.
    #[error("list the folder {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A key of the assignments could not become a path.
    #[error("{0:?} in the assignments is not the UUID of a device")]
    NotUuid(String),
}

/// Runs until SIGTERM.
pub async fn supervise(settings: Settings) -> Result<()> {
    let mut signals = Signals::new().context("install the signal handlers")?;
    let (readiness_sender, readiness) = watch::channel(Err("the assignments have not been read yet".into()));
    let address = settings.admin_address;
    let listener = server::bind(address).await?;
    let server = AgentServer {
        readiness,
        liveness: server::always_live(),
        metrics: AgentMetrics::new(),
        usage: None,
    };
    let mut serving = tokio::spawn(server.clone().run(listener));

    let (mps_dir, pod_uid) = (settings.mps_dir.clone(), settings.pod_uid.clone());
    let locked = spawn_blocking(move || lock(&mps_dir, &pod_uid));
    let _lock = tokio::select! {
        locked = locked => locked??,
        () = stop(&mut signals) => return Ok(()),
    };
    let mut supervisor = Supervisor::new(settings);
    let mut tick = interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let work = async {
        loop {
            tick.tick().await;
            supervisor.reconcile().await;
            _ = readiness_sender.send_replace(supervisor.readiness());
            if serving.is_finished() {
                match server::bind(address).await {
                    Ok(listener) => serving = tokio::spawn(server.clone().run(listener)),
                    Err(error) => warn!(
                        reason = format!("{error:#}"),
                        "cannot serve /livez and /readyz; retrying"
                    ),
                }
            }
        }
    };
    tokio::select! {
        () = stop(&mut signals) => {}
        () = work => {}
    }
    info!("stopping");
    supervisor.shut_down().await;
    Ok(())
}

async fn stop(signals: &mut Signals) {
    while signals.next().await != SignalRequest::Stop {}
}

/// Waits until no other supervisor uses the folder; blocks. The kernel releases the lock when the process ends.
fn lock(mps_dir: &Path, pod_uid: &str) -> Result<File> {
    fs::create_dir_all(mps_dir).with_context(|| format!("create {}; is it mounted writable?", mps_dir.display()))?;
    let path = mps_dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    let written = file.set_len(0).and_then(|()| (&file).write_all(pod_uid.as_bytes()));
    if let Err(error) = written {
        warn!(%error, file = %path.display(), "cannot write the UID of this pod");
    }
    Ok(file)
}

/// Returns the UID of the supervisor's pod; none if no supervisor told it. Blocks.
pub fn supervisor_pod(mps_dir: &Path) -> Option<String> {
    fs::read_to_string(mps_dir.join(LOCK))
        .ok()
        .filter(|uid| !uid.is_empty())
}

impl Supervisor {
    fn new(settings: Settings) -> Self {
        let holders = HolderQuery::new(settings.pod_resources.clone());
        Self {
            settings,
            holders,
            desired: None,
            daemons: BTreeMap::new(),
            reading: None,
            problem: String::new(),
        }
    }

    /// Ready once the desired daemons are known.
    fn readiness(&self) -> Readiness {
        if self.desired.is_some() {
            Ok(())
        } else {
            Err(self.problem.as_str().into())
        }
    }

    /// Aligns the supervised daemons with the assignments, and with the folders that an earlier supervisor left. The future may
    /// be dropped at any point.
    async fn reconcile(&mut self) {
        processes::reap();
        self.remove_ended();
        let problems = match self.read().await {
            Ok(inputs) => self.apply(inputs),
            Err(problem) => vec![problem],
        };
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        self.set_problem(problems.join("; "));
        let Some(desired) = &self.desired else { return };
        for (uuid, daemon) in &self.daemons {
            set_desired(
                &daemon.desired,
                if desired.contains(uuid) {
                    DesiredDaemon::Run
                } else {
                    DesiredDaemon::Gone
                },
            );
        }
    }

    /// Reads assignments and folders, one read at a time, however long it takes.
    async fn read(&mut self) -> Result<MpsInputs, InputError> {
        let reading = self.reading.get_or_insert_with(|| {
            let (state_dir, mps_dir) = (self.settings.state_dir.clone(), self.settings.mps_dir.clone());
            let holders = self.holders.clone();
            spawn_blocking(move || {
                holders.note_checkpoint();
                // With released GPUs no daemon is desired; each ends after its last client.
                let in_use = |all: Assignments| {
                    if release::is_saved(&state_dir) {
                        Assignments::new()
                    } else {
                        all
                    }
                };
                (assignments::read(&state_dir).map(in_use), DeviceFolder::all(&mps_dir))
            })
        });
        let Ok(read) = timeout(READ_TIMEOUT, reading).await else {
            return Err(InputError::Slow);
        };
        self.reading = None;
        Ok(read?)
    }

    /// Supervises each device that is desired or has a folder. An unreadable input changes nothing.
    fn apply(&mut self, (assignments, folders): MpsInputs) -> Vec<InputError> {
        let mut problems = Vec::new();
        let on_disk: Option<BTreeSet<String>> = folders
            .map(|folders| folders.iter().map(|folder| folder.uuid().to_owned()).collect())
            .map_err(|source| {
                let folder = self.settings.mps_dir.clone();
                problems.push(InputError::Folder { folder, source });
            })
            .ok();
        match assignments {
            Ok(assignments) => self.desired = Some(mps_devices(&assignments)),
            // A damaged file ends no daemon.
            Err(error) => {
                problems.push(error.into());
                self.desired = self.desired.take().or_else(|| on_disk.clone());
            }
        }
        let known: BTreeSet<String> = self.desired.iter().chain(&on_disk).flatten().cloned().collect();
        for uuid in known {
            match DeviceFolder::of(&self.settings.mps_dir, &uuid) {
                Some(folder) if !self.daemons.contains_key(&uuid) => self.add(folder),
                Some(_) => {}
                None => problems.push(InputError::NotUuid(uuid)),
            }
        }
        problems
    }

    fn add(&mut self, folder: DeviceFolder) {
        let uuid = folder.uuid().to_owned();
        let control = MpsControl::new(self.settings.driver_roots.clone());
        let runner = DaemonRunner {
            folder,
            control,
            holders: self.holders.clone(),
            driver_thread: BlockingThread::default(),
        };
        // The task acts only after the first update of the channel.
        let (desired, receiver) = watch::channel(DesiredDaemon::Rest);
        let task = tokio::spawn(runner.clone().run(receiver));
        self.daemons.insert(uuid, SupervisedDaemon { runner, desired, task });
    }

    /// Removes daemons whose task has ended. A desired one, or one with a folder, gets a new task.
    fn remove_ended(&mut self) {
        self.daemons.retain(|_, daemon| !daemon.task.is_finished());
    }

    fn set_problem(&mut self, problem: String) {
        if !problem.is_empty() && problem != self.problem {
            warn!(problem, "cannot supervise all MPS control daemons");
        }
        self.problem = problem;
    }
}

fn set_desired(sender: &watch::Sender<DesiredDaemon>, desired: DesiredDaemon) {
    sender.send_if_modified(|current| std::mem::replace(current, desired) != desired);
}

fn mps_devices(assignments: &Assignments) -> BTreeSet<String> {
    let mps = assignments
        .iter()
        .filter(|(_, assignment)| matches!(assignment.sharing, DeviceSharing::Mps { .. }));
    mps.map(|(uuid, _)| uuid.clone()).collect()
}

#[cfg(test)]
mod tests;
