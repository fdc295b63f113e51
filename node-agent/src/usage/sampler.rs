//! Reads what containers use of the GPUs that they hold, at an interval, and publishes it.
//!
//! It asks the driver about GPUs with holders alone, on a thread of its own, within the gate and the turns of all calls. While the driver
//! hangs or is released there are no figures.

use super::owners::OwnerSearch;
use crate::{
    admin::metrics::AgentMetrics,
    devices::manager::DeviceManager,
    driver::{
        hardware::Hardware,
        hardware_probe::DriverRoots,
        nvml::{self, DriverError, GpuAddress, SampleTimes},
    },
    health::node_health::NodeHealth,
    kubelet::checkpoint::{self, CheckpointError},
    mps::supervisor_pod,
    runtime::blocking_thread::BlockingThread,
    store::assignments::Assignments,
};
use gpunode_config::UsageConfig;
use gpunode_crds::UsageReport;
use gpunode_gpu::{
    ContainerShares, Device, IdleClocks, ProcessOwner, ProcessesOnGpu, UsageHolder, UsageInputs, container_usage,
    device_of, usage_holders,
};
use gpunode_process::OnChange;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    task::JoinError,
    time::{sleep, timeout},
};
use tracing::info;

/// Longest wait for the kubelet, and for the driver and the disk.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Processes of this node, if this container has the host's PID namespace.
const PROC: &str = "/proc";
/// Process id of the first process of a PID namespace.
const FIRST_PID: u32 = 1;

/// Reason why there are no figures.
#[derive(Debug, thiserror::Error)]
enum NoFigures {
    #[error("usage.interval of the configuration is 0s")]
    Off,
    #[error("the agent has not read them yet, or does not serve the node any more")]
    NotActive,
    #[error("the agent's pod does not have hostPID, so it sees no processes of other pods")]
    OwnPidNamespace,
    #[error("the kubelet does not tell which pod holds which device")]
    HoldersUnknown,
    #[error("the driver does not answer, or the GPUs of the node are released")]
    NoDriver,
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("read what containers use: {0}")]
    Thread(#[from] JoinError),
    #[error("read what containers use: no answer within {TIMEOUT:?}")]
    NoAnswer,
}

/// Task that reads what containers use.
#[derive(Clone)]
pub struct UsageSampler {
    /// Folders of the driver.
    pub driver_roots: DriverRoots,
    /// The last reading of the hardware; none before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Health of the node's devices.
    pub health: watch::Receiver<Arc<NodeHealth>>,
    /// The device manager, which knows the holders.
    pub manager: Arc<DeviceManager>,
    /// The kubelet's folder of device plugins, which has the checkpoint.
    pub device_plugin_dir: PathBuf,
    /// Folder of the MPS control daemons.
    pub mps_dir: PathBuf,
    /// Interval, and the time after which a holder counts as idle.
    pub config: watch::Receiver<UsageConfig>,
    /// Figures by container.
    pub metrics: AgentMetrics,
    /// The last report.
    pub report: watch::Sender<Arc<UsageReport>>,
}

/// UIDs of the pods of shares, by resource and id.
type PodsOfShares = BTreeMap<(String, String), String>;

/// Result of a read.
struct UsageRead {
    holders: Vec<UsageHolder>,
    gpus: Vec<ProcessesOnGpu>,
    owners: BTreeMap<u32, ProcessOwner>,
}

/// Returns the channel of the reports, before the first read.
pub fn reports() -> watch::Sender<Arc<UsageReport>> {
    watch::Sender::new(Arc::new(without_figures(&NoFigures::NotActive)))
}

impl UsageSampler {
    /// Reads again and again. Never returns.
    pub async fn run(mut self) {
        // Fails only when the agent stops.
        _ = self.hardware.wait_for(Option::is_some).await;
        let mut changes = self.manager.changes();
        while self.manager.observed_shares().is_none() && changes.changed().await.is_ok() {}
        let (thread, times) = (BlockingThread::default(), Arc::new(Mutex::new(SampleTimes::new())));
        let (mut clocks, mut reasons) = (IdleClocks::default(), OnChange::default());
        loop {
            let config = self.config.borrow_and_update().clone();
            let interval = config.interval();
            let report = match interval {
                Some(_) => self.read(&thread, &times, &config, &mut clocks).await,
                None => Err(NoFigures::Off),
            };
            let report = report.unwrap_or_else(|reason| {
                // What was not seen may have been use.
                clocks = IdleClocks::default();
                without_figures(&reason)
            });
            if let Some(reason) = reasons.set(missing(&report)) {
                info!(reason, "some figures of what containers use are missing");
            }
            self.publish(report);
            let pause = async {
                match interval {
                    Some(interval) => sleep(interval).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                Ok(()) = self.config.changed() => {}
            }
        }
    }

    /// Takes the figures back when this agent does not serve the node any more.
    pub fn end(&self) {
        self.publish(without_figures(&NoFigures::NotActive));
    }

    fn publish(&self, report: UsageReport) {
        self.metrics.set_usage(&report);
        self.report.send_replace(Arc::new(report));
    }

    async fn read(
        &self,
        thread: &BlockingThread,
        times: &Arc<Mutex<SampleTimes>>,
        config: &UsageConfig,
        clocks: &mut IdleClocks,
    ) -> Result<UsageReport, NoFigures> {
        if process::id() == FIRST_PID {
            return Err(NoFigures::OwnPidNamespace);
        }
        let hardware = self.hardware.borrow().clone();
        let inventory = hardware.as_deref().and_then(Hardware::answering);
        let devices = inventory.map(Device::all).ok_or(NoFigures::NoDriver)?;
        let (pods, (observed, assigned)) = self.holders(thread).await?;
        let held: BTreeSet<&str> = observed.iter().flat_map(|of| &of.ids).map(|id| device_of(id)).collect();
        let gpus: BTreeSet<&str> = devices
            .iter()
            .filter(|device| held.contains(device.uuid.as_str()))
            .map(|device| device.gpu_uuid.as_str())
            .collect();
        let gpus = inventory
            .iter()
            .flat_map(|inventory| &inventory.gpus)
            .filter(|gpu| gpus.contains(gpu.uuid.as_str()));
        let addresses: Vec<GpuAddress> = gpus.map(GpuAddress::of).collect();
        let read = if addresses.is_empty() {
            // Nobody has to be asked.
            UsageRead {
                holders: Vec::new(),
                gpus: Vec::new(),
                owners: BTreeMap::new(),
            }
        } else {
            let (this, times) = (self.clone(), times.clone());
            let read = thread.run(move || this.read_driver(&pods, &observed, &addresses, &times));
            timeout(TIMEOUT, read).await.map_err(|_| NoFigures::NoAnswer)???
        };
        let inputs = UsageInputs {
            holders: &read.holders,
            devices: &devices,
            assigned: &assigned,
            gpus: &read.gpus,
            owners: &read.owners,
        };
        let (containers, omitted) = container_usage(inputs, clocks, Instant::now());
        Ok(UsageReport {
            read_at: Some(Time(Timestamp::now())),
            idle_after_seconds: config.idle_after().map(|time| time.as_secs()),
            problem: None,
            containers,
            omitted,
        })
    }

    /// Reads the pods of shares, then asks the kubelet for the holders: what it told before may be about earlier pods.
    async fn holders(
        &self,
        thread: &BlockingThread,
    ) -> Result<(PodsOfShares, (Vec<ContainerShares>, Assignments)), NoFigures> {
        let folder = self.device_plugin_dir.clone();
        let read = thread.run(move || checkpoint::pods_of_shares(&folder));
        let pods = timeout(TIMEOUT, read).await.map_err(|_| NoFigures::NoAnswer)???;
        let (start, mut observed) = (Instant::now(), self.manager.observed());
        self.manager.observe_now();
        let fresh = observed.wait_for(|observed| observed.started >= Some(start));
        if timeout(TIMEOUT, fresh).await.is_err() {
            return Err(NoFigures::HoldersUnknown);
        }
        let shares = self.manager.observed_shares().ok_or(NoFigures::HoldersUnknown)?;
        Ok((pods, shares))
    }

    /// Reads the processes on these GPUs, then the pods of the shares again, which were `pods` before: a pod has its devices before its
    /// first process. Blocks.
    fn read_driver(
        &self,
        pods: &PodsOfShares,
        observed: &[ContainerShares],
        addresses: &[GpuAddress],
        times: &Mutex<SampleTimes>,
    ) -> Result<UsageRead, NoFigures> {
        let roots = &self.driver_roots;
        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = roots.ask(
            |gpu| self.health.borrow().answers(gpu),
            |library, begin| nvml::process_use(library, addresses, &mut times, begin),
        );
        let gpus = asked.ok_or(NoFigures::NoDriver)??;
        drop(times);
        let pods = held_throughout(pods, checkpoint::pods_of_shares(&self.device_plugin_dir)?);
        let holders = usage_holders(observed, &pods);
        let mps_pod = supervisor_pod(&self.mps_dir);
        let search = OwnerSearch {
            proc: Path::new(PROC),
            host_root: &roots.host_root,
            mps_pod: mps_pod.as_deref(),
            holders: &holders,
        };
        let owners = search.owners(&gpus);
        Ok(UsageRead { holders, gpus, owners })
    }
}

/// Returns the pods that held their shares from one read of the checkpoint to the other, so that holders and figures in between are
/// theirs.
fn held_throughout(before: &PodsOfShares, mut after: PodsOfShares) -> PodsOfShares {
    after.retain(|share, pod| before.get(share) == Some(pod));
    after
}

fn without_figures(reason: &NoFigures) -> UsageReport {
    UsageReport {
        problem: Some(reason.to_string()),
        ..UsageReport::default()
    }
}

/// Returns the reasons for missing figures, each once.
fn missing(report: &UsageReport) -> Option<String> {
    let of_containers = report
        .containers
        .iter()
        .filter_map(|container| container.problem.as_deref());
    let reasons: BTreeSet<&str> = report.problem.as_deref().into_iter().chain(of_containers).collect();
    let reasons: Vec<&str> = reasons.into_iter().collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        devices::manager::DeviceManagerInputs,
        driver::utilisation::Utilisation,
        kubelet::podresources::tests::{Kubelet, serve},
    };

    #[tokio::test]
    async fn the_kubelet_tells_the_holders_after_the_checkpoint_was_read() {
        let folder = tempfile::tempdir().unwrap();
        let (driver_roots, health) = (DriverRoots::of_host(folder.path()), watch::Sender::default());
        let manager = Arc::new(DeviceManager::new(DeviceManagerInputs {
            roots: driver_roots.clone(),
            mps_dir: folder.path().to_owned(),
            utilisation: Utilisation::new(driver_roots.clone(), watch::channel(None).1),
            node: None,
            health: health.subscribe(),
            cdi: watch::Sender::default().subscribe(),
            metrics: AgentMetrics::new(),
        }));
        tokio::spawn(manager.clone().watch_holders(serve(folder.path(), Kubelet::Held)));
        let mut observed = manager.observed();
        let told_before = observed.wait_for(|observed| observed.started.is_some()).await;
        let told_before = told_before.unwrap().started;
        let sampler = UsageSampler {
            driver_roots,
            hardware: watch::channel(None).1,
            health: health.subscribe(),
            manager,
            device_plugin_dir: folder.path().to_owned(),
            mps_dir: folder.path().to_owned(),
            config: watch::Sender::default().subscribe(),
            metrics: AgentMetrics::new(),
            report: reports(),
        };
        let (_, (shares, _)) = sampler.holders(&BlockingThread::default()).await.unwrap();
        assert!(observed.borrow().started > told_before);
        assert_eq!(shares[0].pod, "train");
    }

    #[test]
    fn a_share_that_goes_from_pod_to_pod_during_a_read_has_none() {
        let pods = |pods: [&str; 2]| -> PodsOfShares {
            let shares = ["GPU-0", "GPU-1"].map(|id| ("nvidia.com/gpu".to_owned(), id.to_owned()));
            shares.into_iter().zip(pods.map(str::to_owned)).collect()
        };
        let held = held_throughout(&pods(["a", "b"]), pods(["a", "c"]));
        assert_eq!(held.into_values().collect::<Vec<_>>(), ["a"]);
        assert!(held_throughout(&PodsOfShares::new(), pods(["a", "b"])).is_empty());
    }
}
