//! Decides which processes on GPUs no container accounts for, and says so. Pure.

use super::toolkit_config::ACCEPT_VARIABLE;
use crate::driver::nvml::DriverProcess;
use gpunode_gpu::Gpu;
use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

/// Start of the names of MPS control daemons and servers, which run in a pod of gpunode without a device. The kernel cuts names off
/// after 15 characters.
pub const MPS: &str = "nvidia-cuda-mps";
/// Most processes that a text names.
const MAX_NAMED: usize = 5;

/// UUIDs of the devices of each pod, by the UID of the pod.
pub type PodDevices = BTreeMap<String, BTreeSet<String>>;

/// MPS servers that gpunode runs.
#[derive(Clone, Debug, Default)]
pub struct MpsServers {
    /// UID of their pod; none if unknown, as of an older supervisor.
    pub pod: Option<String>,
    /// UUIDs of the devices that they serve.
    pub devices: BTreeSet<String>,
}

/// A process on a GPU, and its pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnedProcess {
    /// The process.
    pub process: DriverProcess,
    /// UID of its pod; none for a process of the host.
    pub pod: Option<String>,
    /// Name of its program.
    pub command: String,
}

/// Returns the processes that no container accounts for: those that belong to no pod, or to one that does not hold the device. The
/// MPS servers that gpunode runs belong to nobody.
pub fn unaccounted(
    processes: impl IntoIterator<Item = OwnedProcess>,
    held: &PodDevices,
    gpus: &[Gpu],
    mps: &MpsServers,
) -> BTreeSet<OwnedProcess> {
    let is_accounted = |of: &OwnedProcess| {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == of.process.gpu) else {
            return true;
        };
        let devices: Vec<&str> = devices_of(gpu, of.process.instance).collect();
        // Any process can take the name.
        let is_server = of.command.starts_with(MPS)
            && (mps.pod.is_none() || mps.pod == of.pod)
            && devices.iter().any(|device| mps.devices.contains(*device));
        let of_pod = of.pod.as_ref().and_then(|pod| held.get(pod));
        is_server || of_pod.is_some_and(|held| devices.iter().any(|device| held.contains(*device)))
    };
    processes.into_iter().filter(|of| !is_accounted(of)).collect()
}

/// Returns the devices of which one allows a process: the GPU, and the MIG device that it runs on, or any if that is unknown.
fn devices_of(gpu: &Gpu, instance: Option<(u32, u32)>) -> impl Iterator<Item = &str> {
    let mig = gpu.mig_devices.iter().map(|mig| &mig.facts);
    let mig = mig.filter(move |mig| instance.is_none_or(|of| of == (mig.gpu_instance, mig.compute_instance)));
    iter::once(gpu.uuid.as_str()).chain(mig.map(|mig| mig.uuid.as_str()))
}

/// Unaccounted processes of earlier rounds.
#[derive(Debug, Default)]
pub struct ProcessReports {
    /// Users of the last round.
    last: BTreeSet<DeviceUser>,
    /// Users, with the process of one of the host, that were reported and are still there.
    reported: BTreeSet<(DeviceUser, Option<u32>)>,
}

/// Pod that uses a GPU or MIG device, or the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceUser {
    gpu: String,
    instance: Option<(u32, u32)>,
    /// UID of the pod; none for the host.
    pod: Option<String>,
}

impl DeviceUser {
    fn of(of: &OwnedProcess) -> Self {
        Self {
            gpu: of.process.gpu.clone(),
            instance: of.process.instance,
            pod: of.pod.clone(),
        }
    }
}

impl ProcessReports {
    /// Takes in the unaccounted processes of a round. Returns those of users that the round before had too, by GPU: a process may
    /// outlive the kubelet's record of its pod for a moment.
    pub fn confirm(&mut self, found: BTreeSet<OwnedProcess>) -> BTreeMap<String, Vec<OwnedProcess>> {
        let seen = found.iter().map(DeviceUser::of).collect();
        let last = std::mem::replace(&mut self.last, seen);
        let mut confirmed: BTreeMap<String, Vec<OwnedProcess>> = BTreeMap::new();
        for of in found.into_iter().filter(|of| last.contains(&DeviceUser::of(of))) {
            confirmed.entry(of.process.gpu.clone()).or_default().push(of);
        }
        confirmed
    }

    /// Returns the GPUs with confirmed processes that were not reported before, and notes them as reported. A pod is reported once,
    /// however many processes it starts.
    pub fn news(&mut self, confirmed: &BTreeMap<String, Vec<OwnedProcess>>) -> Vec<String> {
        let key = |of: &OwnedProcess| (DeviceUser::of(of), of.pod.is_none().then_some(of.process.pid));
        let is_new = |of: &OwnedProcess| !self.reported.contains(&key(of));
        let gpus = confirmed.iter().filter(|(_, processes)| processes.iter().any(is_new));
        let gpus = gpus.map(|(gpu, _)| gpu.clone()).collect();
        self.reported = confirmed.values().flatten().map(key).collect();
        gpus
    }
}

/// Says which processes of a GPU nobody accounts for, and what to do if a container can name GPUs: `accepting` is the configuration
/// that allows it.
pub fn report(gpu: &Gpu, processes: &[OwnedProcess], accepting: Option<&str>) -> String {
    let describe = |of: &OwnedProcess| {
        let owner = match &of.pod {
            Some(pod) => format!("pod {pod}"),
            None => "the host".to_owned(),
        };
        format!("{} ({}, of {owner})", of.process.pid, of.command)
    };
    let named: Vec<String> = processes.iter().take(MAX_NAMED).map(describe).collect();
    let more = match processes.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    // A process of the host needs no runtime.
    let accepting = accepting.filter(|_| processes.iter().any(|of| of.pod.is_some()));
    let remedy = accepting.map(|file| format!("; set {ACCEPT_VARIABLE} = false in {file} of the node"));
    format!(
        "GPU {} is used by processes of no container that holds it: {}{more}{}",
        gpu.index,
        named.join(", "),
        remedy.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::{MigDevice, MigInstance};

    fn gpu(index: u32) -> Gpu {
        let mig = |number: u32| MigInstance {
            facts: MigDevice {
                uuid: format!("MIG-{index}-{number}"),
                gpu_instance: number,
                compute_instance: 0,
                ..MigDevice::default()
            },
            ..MigInstance::default()
        };
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            // GPU 1 is divided.
            mig_devices: if index == 1 { vec![mig(7), mig(8)] } else { Vec::new() },
            ..Gpu::default()
        }
    }

    fn process(gpu: u32, pid: u32, pod: &str) -> OwnedProcess {
        OwnedProcess {
            process: DriverProcess {
                gpu: format!("GPU-{gpu}"),
                pid,
                instance: None,
            },
            pod: (!pod.is_empty()).then(|| pod.to_owned()),
            command: "python".to_owned(),
        }
    }

    fn on_instance(number: u32, of: OwnedProcess) -> OwnedProcess {
        OwnedProcess {
            process: DriverProcess {
                instance: Some((number, 0)),
                ..of.process
            },
            ..of
        }
    }

    fn named(program: &str, of: OwnedProcess) -> OwnedProcess {
        OwnedProcess {
            command: program.to_owned(),
            ..of
        }
    }

    /// Returns the ids of the processes that nobody accounts for where pod `a` holds GPU 0 and pod `b` a part of GPU 1.
    fn pids(processes: impl IntoIterator<Item = OwnedProcess>) -> Vec<u32> {
        let held = [("a", "GPU-0"), ("b", "MIG-1-7")];
        let held = held.map(|(pod, device)| (pod.to_owned(), BTreeSet::from([device.to_owned()])));
        let mps = MpsServers {
            pod: Some("mps".to_owned()),
            devices: BTreeSet::from(["GPU-2".to_owned()]),
        };
        let found = unaccounted(processes, &held.into(), &[gpu(0), gpu(1), gpu(2)], &mps);
        found.into_iter().map(|of| of.process.pid).collect()
    }

    #[test]
    fn a_process_is_accounted_for_by_a_pod_that_holds_its_gpu_and_by_no_other() {
        let processes = [
            process(0, 1, "a"),
            process(0, 2, "b"),
            process(0, 3, "c"),
            process(0, 4, ""),
            process(2, 5, "a"),
            // The driver has a GPU that the agent does not know yet.
            process(9, 6, "a"),
        ];
        assert_eq!(pids(processes), [2, 3, 4, 5]);
    }

    #[test]
    fn a_process_on_a_mig_device_needs_that_one() {
        let processes = [
            on_instance(7, process(1, 1, "b")),
            on_instance(8, process(1, 2, "b")),
            process(1, 3, "b"),
            process(1, 4, "a"),
        ];
        assert_eq!(pids(processes), [2, 4]);
    }

    #[test]
    fn mps_servers_belong_to_nobody_where_gpunode_runs_them() {
        let processes = [
            named("nvidia-cuda-mps", process(2, 1, "mps")),
            named("nvidia-cuda-mps", process(0, 2, "mps")),
            process(2, 3, "mps"),
            // Processes that only take the name.
            named("nvidia-cuda-mps", process(2, 4, "c")),
            named("nvidia-cuda-mps", process(2, 5, "")),
        ];
        assert_eq!(pids(processes), [2, 3, 4, 5]);
    }

    /// Returns the number of confirmed processes of a round, and the GPUs with news.
    fn round(reports: &mut ProcessReports, found: impl IntoIterator<Item = OwnedProcess>) -> (usize, Vec<String>) {
        let confirmed = reports.confirm(found.into_iter().collect());
        let count = confirmed.values().map(Vec::len).sum();
        (count, reports.news(&confirmed))
    }

    #[test]
    fn a_process_is_reported_when_its_owner_is_seen_twice_and_once_for_as_long_as_it_runs() {
        let mut reports = ProcessReports::default();
        let mut round = |found: Vec<OwnedProcess>| round(&mut reports, found);
        let (one, two) = (process(0, 1, ""), process(0, 2, ""));
        let gpu = || vec!["GPU-0".to_owned()];
        assert_eq!(round(vec![one.clone()]), (0, vec![]), "it may be ending");
        assert_eq!(round(vec![named("renamed", one.clone())]), (1, gpu()));
        assert_eq!(
            round(vec![one.clone(), two.clone()]),
            (2, gpu()),
            "the second one is new"
        );
        assert_eq!(round(vec![one.clone(), two]), (2, vec![]));
        assert_eq!(round(vec![]), (0, vec![]));
        assert_eq!(round(vec![one.clone()]), (0, vec![]));
        assert_eq!(round(vec![one]), (1, gpu()), "it is another one with this id");
    }

    #[test]
    fn a_pod_is_reported_once_however_often_its_process_changes() {
        let mut reports = ProcessReports::default();
        let mut round = |pid, pod| round(&mut reports, [process(0, pid, pod)]);
        assert_eq!(round(1, "x"), (0, vec![]));
        assert_eq!(round(2, "x"), (1, vec!["GPU-0".to_owned()]));
        assert_eq!(round(3, "x"), (1, vec![]));
        assert_eq!(round(4, "y"), (0, vec![]), "this pod may be ending");
    }

    #[test]
    fn the_text_names_some_processes_and_counts_the_others() {
        let processes: Vec<_> = (1..=7).map(|pid| process(3, pid, "")).collect();
        assert_eq!(
            report(&gpu(3), &processes, Some("/etc/config.toml")),
            "GPU 3 is used by processes of no container that holds it: 1 (python, of the host), 2 (python, of the host), \
             3 (python, of the host), 4 (python, of the host), 5 (python, of the host) and 2 more"
        );
        assert_eq!(
            report(&gpu(0), &[process(0, 9, "c-d")], None),
            "GPU 0 is used by processes of no container that holds it: 9 (python, of pod c-d)"
        );
        assert!(
            report(&gpu(0), &[process(0, 9, "c-d")], Some("/etc/config.toml")).ends_with(
                "of pod c-d); set accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/config.toml of the node"
            )
        );
    }
}
