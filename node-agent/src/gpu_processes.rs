//! Reports processes on GPUs that no container accounts for: NVIDIA's container runtime gives GPUs to any container that names
//! them, and a process of the host needs nobody.
//!
//! | module | what it does |
//! |---|---|
//! | `accounting` | decides which processes no container accounts for, pure |
//! | `cgroup` | finds the pod of a process, pure |
//! | `small_file` | reads small files |
//! | `toolkit_config` | reads if NVIDIA's container runtime lets containers name GPUs |

mod accounting;
mod cgroup;
pub mod small_file;
pub mod toolkit_config;

pub use cgroup::{container_of, pod_of};

use crate::{
    admin::metrics::AgentMetrics,
    api_server::events::{EventReason, NodeEventSender},
    driver::{
        hardware::Hardware,
        hardware_probe::DriverRoots,
        nvml::{self, DriverError, DriverProcess, GpuAddress},
    },
    health::{allocations::Allocations, node_health::NodeHealth},
    kubelet::checkpoint::{self, CheckpointError},
    mps::supervisor_pod,
    runtime::blocking_thread::BlockingThread,
};
pub use accounting::MPS;
use accounting::{MpsServers, OwnedProcess, PodDevices, ProcessReports, report, unaccounted};
use gpunode_gpu::Gpu;
use gpunode_process::OnChange;
use small_file::text;
use std::{
    iter,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinError,
    time::{sleep, timeout},
};
use toolkit_config::{ACCEPT_VARIABLE, accepting};
use tracing::{info, warn};

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_secs(15);
/// Longest wait for the driver and the disk.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Processes of this node, if this container has the host's PID namespace.
const PROC: &str = "/proc";

/// Error of reading the processes.
#[derive(Debug, thiserror::Error)]
enum ProcessListError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("list the processes on the GPUs: {0}")]
    Thread(#[from] JoinError),
    #[error("list the processes on the GPUs: no answer within {TIMEOUT:?}")]
    NoAnswer,
}

/// Task that reports processes on GPUs that no container accounts for.
#[derive(Clone)]
pub struct GpuProcessWatch {
    /// Folders of the driver.
    pub driver_roots: DriverRoots,
    /// The last reading of the hardware; none before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Health of the node's devices.
    pub health: watch::Receiver<Arc<NodeHealth>>,
    /// The device manager, which knows the MPS control daemons.
    pub manager: Arc<dyn Allocations>,
    /// The kubelet's folder of device plugins, which has the checkpoint.
    pub device_plugin_dir: PathBuf,
    /// Folder of the MPS control daemons.
    pub mps_dir: PathBuf,
    /// Gauge of the processes.
    pub metrics: AgentMetrics,
    /// Events of the Node.
    pub node_events: NodeEventSender,
}

/// Messages of earlier rounds.
#[derive(Debug, Default)]
struct SaidBefore {
    processes: ProcessReports,
    /// Configuration that lets containers name GPUs.
    accepting: OnChange,
}

/// Result of a round of reading.
struct ProcessesRead {
    processes: Vec<OwnedProcess>,
    held: PodDevices,
    /// UID of the pod of the MPS supervisor.
    mps_pod: Option<String>,
    /// Configuration that lets containers name GPUs.
    accepting: Option<PathBuf>,
}

impl GpuProcessWatch {
    /// Looks for processes again and again. Never returns.
    pub async fn run(mut self) {
        // Fails only when the agent stops.
        _ = self.hardware.wait_for(Option::is_some).await;
        let (thread, mut said, mut errors) = (BlockingThread::default(), SaidBefore::default(), OnChange::default());
        loop {
            let hardware = self.hardware.borrow().clone();
            // The kubelet's checkpoint has no claims of a DRA driver.
            let is_left = self.health.borrow().served_by_dra;
            if is_left {
                self.metrics.set_unaccounted_processes(iter::empty());
            }
            let gpus = hardware.as_deref().and_then(Hardware::answering).filter(|_| !is_left);
            let error = match gpus {
                Some(inventory) => self.look(&inventory.gpus, &thread, &mut said).await.err(),
                None => None,
            };
            if let Some(error) = errors.set(error.map(|error| error.to_string())) {
                warn!(error, "cannot tell which processes use the GPUs; retrying");
            }
            sleep(PAUSE).await;
        }
    }

    /// Looks once, and reports processes that were there the last time too.
    async fn look(&self, gpus: &[Gpu], thread: &BlockingThread, said: &mut SaidBefore) -> Result<(), ProcessListError> {
        let (roots, health) = (self.driver_roots.clone(), self.health.clone());
        let (folder, mps_dir) = (self.device_plugin_dir.clone(), self.mps_dir.clone());
        let addresses: Vec<GpuAddress> = gpus.iter().map(GpuAddress::of).collect();
        let read = thread.run(move || read(&roots, &health, &addresses, &folder, &mps_dir));
        let read = timeout(TIMEOUT, read).await.map_err(|_| ProcessListError::NoAnswer)?;
        let Some(ProcessesRead {
            processes,
            held,
            mps_pod,
            accepting,
        }) = read??
        else {
            return Ok(());
        };
        let accepting = accepting.map(|path| path.display().to_string());
        if let Some(file) = said.accepting.set(accepting.clone()) {
            info!(
                file,
                "unprivileged containers can name GPUs that they did not request: {ACCEPT_VARIABLE} is on"
            );
        }
        let mps = MpsServers {
            pod: mps_pod,
            devices: self.manager.daemons().into_iter().map(|daemon| daemon.device).collect(),
        };
        let confirmed = said.processes.confirm(unaccounted(processes, &held, gpus, &mps));
        let on = |gpu: &Gpu| confirmed.get(&gpu.uuid).map(Vec::as_slice).unwrap_or_default();
        self.metrics
            .set_unaccounted_processes(gpus.iter().map(|gpu| (gpu.index, on(gpu).len())));
        let news = said.processes.news(&confirmed);
        for gpu in gpus.iter().filter(|gpu| news.contains(&gpu.uuid)) {
            let text = report(gpu, on(gpu), accepting.as_deref());
            warn!(gpu = gpu.index, "{text}");
            self.node_events
                .send(EventReason::UnaccountedProcess, gpu.uuid.clone(), text);
        }
        Ok(())
    }
}

/// Reads the processes, then the devices that pods hold: a pod has its devices before its first process. Returns none while the driver
/// must not be called, or has no library. Blocks.
fn read(
    roots: &DriverRoots,
    health: &watch::Receiver<Arc<NodeHealth>>,
    gpus: &[GpuAddress],
    device_plugin_dir: &Path,
    mps_dir: &Path,
) -> Result<Option<ProcessesRead>, ProcessListError> {
    let asked = roots.ask(
        |gpu| health.borrow().answers(gpu),
        |library, begin| nvml::processes(library, gpus, begin),
    );
    let Some(processes) = asked.transpose()? else {
        return Ok(None);
    };
    let processes = processes.into_iter();
    Ok(Some(ProcessesRead {
        processes: processes
            .filter_map(|process| owner(process, Path::new(PROC)))
            .collect(),
        held: checkpoint::devices_of_pods(device_plugin_dir)?,
        mps_pod: supervisor_pod(mps_dir),
        accepting: accepting(&roots.host_root),
    }))
}

/// Returns a process with its pod; none if it has ended. Blocks.
fn owner(process: DriverProcess, proc: &Path) -> Option<OwnedProcess> {
    let folder = proc.join(process.pid.to_string());
    let cgroups = text(&folder.join("cgroup")).ok()?;
    let command = text(&folder.join("comm")).unwrap_or_default();
    Some(OwnedProcess {
        process,
        pod: cgroup::pod_of(&cgroups),
        // A process chooses its name.
        command: command.trim_end().replace(char::is_control, "?"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_process_is_read_with_its_pod_and_one_that_ended_is_left_out() {
        let proc = tempfile::tempdir().unwrap();
        let folder = proc.path().join("7");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("comm"), "mi\x1bner\n").unwrap();
        let uid = "1b4d2f6a-0c8e-4f3b-9a77-5d1e2c3b4a59";
        fs::write(folder.join("cgroup"), format!("0::/kubepods/pod{uid}/c\n")).unwrap();
        let process = |pid| DriverProcess {
            gpu: "GPU-0".to_owned(),
            pid,
            instance: None,
        };
        let found = owner(process(7), proc.path()).unwrap();
        assert_eq!((found.pod.as_deref(), found.command.as_str()), (Some(uid), "mi?ner"));
        assert_eq!(owner(process(8), proc.path()), None);
    }
}
