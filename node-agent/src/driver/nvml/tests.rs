//! Tests that read through the simulated library.

use super::{
    probe::{ProbeReport, ProbeTarget, probe},
    *,
};
use crate::driver::pci::PciFunction;
use gpunode_gpu::{Gpu, MigMode, ProbeResult};
use nvml_wrapper::error::NvmlError;
use std::{
    cell::RefCell,
    collections::BTreeMap,
    env, fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};
use tempfile::TempDir;

mod mig_layouts;
mod process_use;

/// A folder with the library and its scenario.
pub struct FakeDriver(TempDir);

impl FakeDriver {
    pub fn new(scenario: &str) -> Self {
        Self::within(&env::temp_dir(), scenario)
    }

    /// Puts the driver into a new folder of `parent`.
    pub fn within(parent: &Path, scenario: &str) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        fs::copy(built(), folder.path().join("libnvidia-ml.so.1")).unwrap();
        let driver = Self(folder);
        driver.scenario(scenario);
        driver
    }

    /// Folder of the library.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// Sets the hardware of the next session.
    pub fn scenario(&self, scenario: &str) {
        fs::write(self.0.path().join("gpunode-scenario.yaml"), scenario).unwrap();
    }

    /// Three GPUs; one has MIG devices, one has MIG on but no devices, one has MIG off.
    fn divided() -> Self {
        Self::new(
            "{node: n, board: NVIDIA A100-SXM4-80GB, count: 3, topology: NVSwitch, \
             mig: [{gpus: [1], instances: [1g.10gb, 1g.10gb+me, 1c.3g.40gb]}, {gpus: [2]}]}",
        )
    }

    pub fn state(&self, state: &str) {
        // In one step and with another inode: calls that wait in the driver read it all the time.
        let new = self.0.path().join("gpunode-state.new");
        fs::write(&new, state).unwrap();
        fs::rename(new, self.0.path().join("gpunode-state.yaml")).unwrap();
    }

    /// Returns the GPUs with their MIG instances.
    pub fn gpus_with_mig(&self) -> Vec<Gpu> {
        let mut gpus = self.read(Path::new("/nowhere")).inventory.gpus;
        for gpu in &mut gpus {
            gpu.mig_state = read_mig_state(&self.library(), &GpuAddress::of(gpu)).unwrap();
        }
        gpus
    }

    /// Divides each GPU by the calls that this takes, and by no others. Returns the time that they take.
    pub fn divide(&self, instances: &[gpunode_mig::PlacedInstance]) -> Duration {
        let gpus = self.read(Path::new("/nowhere")).inventory.gpus;
        let nvml = session::open(&self.library()).unwrap();
        let start = Instant::now();
        for gpu in &gpus {
            let device = lookup::find_gpu(&nvml, &GpuAddress::of(gpu)).unwrap();
            assert!(raw::mig_instances::set_mig_mode(&device, true).unwrap().is_none());
            for placed in instances {
                raw::mig_instances::create_gpu_instance(&device, placed).unwrap();
                let created = raw::mig_instances::gpu_instances(&device, placed.profile).unwrap();
                // The kind of compute instance with one slice.
                created.last().unwrap().create_compute_instance(0).unwrap();
            }
        }
        start.elapsed()
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    fn read(&self, host_root: &Path) -> DriverReading {
        read(
            &self.library(),
            host_root,
            &[],
            false,
            |_| PciFunction::default(),
            |_| (),
        )
        .unwrap()
    }

    fn read_after(&self, before: &DriverReading) -> DriverReading {
        self.read_attached(before, false)
    }

    /// Reads while the kernel driver still has every GPU, or none of those that NVML does not list.
    fn read_attached(&self, before: &DriverReading, is_attached: bool) -> DriverReading {
        let function = |_: &str| PciFunction {
            is_attached,
            ..PciFunction::default()
        };
        let nowhere = Path::new("/nowhere");
        read(
            &self.library(),
            nowhere,
            &before.inventory.gpus,
            false,
            function,
            |_| (),
        )
        .unwrap()
    }
}

/// Path of the library built from the current sources.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `make check` and `make test` have built it.
        if let Some(folder) = std::env::var_os("GPUNODE_BUILT") {
            return Path::new(&folder).join("libgpunode_fake_nvml.so");
        }
        let output = Command::new(env!("CARGO"))
            .args([
                "build",
                "--offline",
                "--quiet",
                "--package",
                "gpunode-fake-nvml",
                "--message-format",
                "json",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // Set for this test program by tests/timed.sh; with it all crates would compile again.
            .env_remove("RUSTC_BOOTSTRAP")
            .output()
            .unwrap();
        let messages = String::from_utf8(output.stdout).unwrap();
        messages
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|message| message["target"]["name"] == "gpunode_fake_nvml")
            .find_map(|message| Some(PathBuf::from(message["filenames"][0].as_str()?)))
            .unwrap_or_else(|| panic!("no library: {}", String::from_utf8_lossy(&output.stderr)))
    })
}

#[test]
fn mig_devices_are_read_with_profile_size_and_device_nodes() {
    let host = tempfile::tempdir().unwrap();
    let folder = host.path().join("proc/driver/nvidia-caps");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("mig-minors"),
        "gpu1/gi2/access 156\ngpu1/gi2/ci0/access 157\ngpu1/gi7/access 201\n",
    )
    .unwrap();
    let reading = FakeDriver::divided().read(host.path());
    assert_eq!(reading.unreadable, Vec::<String>::new());
    let gpus = &reading.inventory.gpus;
    assert_eq!(
        gpus.iter().map(|gpu| gpu.mig_devices.len()).collect::<Vec<_>>(),
        [0, 3, 0]
    );
    assert_eq!(gpus[0].mig_mode, Some(MigMode::Disabled));
    assert_eq!(gpus[2].mig_mode, Some(MigMode::Enabled));

    let devices = &gpus[1].mig_devices;
    let found: Vec<_> = devices
        .iter()
        .map(|mig| (mig.index, mig.facts.profile.as_str(), mig.facts.gpu_instance))
        .collect();
    assert_eq!(found, [(0, "1c.3g.40gb", 2), (1, "1g.10gb", 7), (2, "1g.10gb+me", 8)]);
    assert!(devices.iter().all(|mig| mig.facts.uuid.starts_with("MIG-")));
    let part = &devices[0].facts;
    assert_eq!((part.compute_instance, part.memory_mib), (0, 40192));
    let slices = part.slices.map(|slices| (slices.gpu_instance, slices.compute_instance));
    let copy_engines = part.engines.map(|engines| engines.copy);
    assert_eq!(
        (slices, part.multiprocessors, copy_engines),
        (Some((3, 1)), Some(14), Some(3))
    );
    assert_eq!(
        devices[0].device_nodes,
        ["/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"]
    );
    assert_eq!(devices[2].device_nodes, Vec::<String>::new());
    assert_ne!(devices[1].facts.engines, devices[2].facts.engines);
}

#[test]
fn a_fabric_is_told_where_it_reaches_beyond_the_node() {
    let host = Path::new("/nowhere");
    let driver = FakeDriver::new("{board: NVIDIA GB200, count: 2, topology: NVSwitch}");
    let registration = |driver: &FakeDriver| driver.read(host).inventory.gpus[1].fabric.clone();
    let fabric = |driver: &FakeDriver| registration(driver).and_then(|fabric| fabric.place);
    assert_eq!(fabric(&driver), None);
    driver.scenario(
        "{board: NVIDIA GB200, count: 2, topology: NVSwitch, \
         fabric: {clusterUuid: 0b968a6d-c8aa-45e1-9e07-e1e51be99c31, cliqueId: 32766}}",
    );
    let cluster_uuid = "0b968a6d-c8aa-45e1-9e07-e1e51be99c31".to_owned();
    assert_eq!(
        fabric(&driver),
        Some(gpunode_gpu::Fabric {
            cluster_uuid,
            clique_id: 32766
        })
    );
    driver.scenario("{board: Tesla T4, count: 2, topology: Pcie, fabric: {clusterUuid: 0b968a6dc8aa45e19e07e1e51be99c31, cliqueId: 1}}");
    assert_eq!(registration(&driver), None, "such a board has none");
}

#[test]
fn a_gpu_waits_for_its_fabric_and_then_has_a_clique_and_links() {
    let host = Path::new("/nowhere");
    let board = "board: NVIDIA GB200, count: 3, topology: NVSwitch, mig: [{gpus: [2]}], \
                 fabric: {clusterUuid: 0b968a6d-c8aa-45e1-9e07-e1e51be99c31, cliqueId: 7}";
    let driver = FakeDriver::new(&format!("{{{board}}}"));
    for state in ["NotStarted", "InProgress", "Failed"] {
        driver.state(&format!(
            "gpus: {{0: {{fabric: {state}}}, 1: {{fabric: {state}}}, 2: {{fabric: {state}}}}}"
        ));
        let gpus = driver.read(host).inventory.gpus;
        let waits: Vec<bool> = gpus.iter().map(gpunode_gpu::Gpu::waits_for_fabric).collect();
        assert_eq!(waits, [true, true, false], "{state}: MIG is on for the last one");
        assert_eq!(gpus[0].fabric.as_ref().and_then(|fabric| fabric.place.clone()), None);
        assert_eq!(gpus[0].links[0].nvlinks, None);
    }
    driver.state("{}");
    let gpus = driver.read(host).inventory.gpus;
    assert!(!gpus[0].waits_for_fabric() && gpus[0].links[0].nvlinks.is_some());
    let place = gpus[0].fabric.clone().and_then(|fabric| fabric.place);
    assert_eq!(place.map(|place| place.clique_id), Some(7));
    // A driver without the first version of the call.
    driver.state("gpus: {0: {failing: {nvmlDeviceGetGpuFabricInfo: FUNCTION_NOT_FOUND}}}");
    assert_eq!(driver.read(host).inventory.gpus[0].fabric, gpus[0].fabric);
    driver.state("gpus: {0: {fabric: NotSupported}}");
    assert_eq!(driver.read(host).inventory.gpus[0].fabric, None);
}

#[test]
fn a_fabric_that_cannot_be_asked_for_stays_what_it_was_and_is_no_fault_of_the_gpu() {
    let driver = FakeDriver::new("{board: NVIDIA H200, count: 2, topology: NVSwitch}");
    driver.state("gpus: {0: {fabric: InProgress}}");
    let before = driver.read(Path::new("/nowhere"));
    driver.state("gpus: {0: {fabric: InProgress, failing: {nvmlDeviceGetGpuFabricInfo: UNKNOWN}}}");
    let now = driver.read_after(&before);
    assert_eq!((&now.inventory, now.unreadable.len()), (&before.inventory, 1));
    let gpu = &before.inventory.gpus[0];
    let target = ProbeTarget {
        gpu: gpu.uuid.clone(),
        fabric: gpu.fabric.clone(),
        ..ProbeTarget::default()
    };
    let report = probed(&driver, target);
    assert_eq!((&report.fabric, report.links), (&gpu.fabric, None));
    assert_eq!((report.probe.result, report.failed.len()), (ProbeResult::Responds, 1));
}

#[test]
fn a_mig_device_that_cannot_be_read_hides_no_other() {
    let driver = FakeDriver::divided();
    driver.state(
        "gpus: {1: {failingMig: {0: {nvmlDeviceGetUUID: UNKNOWN}, \
         1: {nvmlDeviceGetMigDeviceHandleByIndex: NO_PERMISSION}}}}",
    );
    let reading = driver.read(Path::new("/nowhere"));
    assert_eq!(reading.inventory.gpus.len(), 3);
    let left: Vec<_> = reading.inventory.gpus[1]
        .mig_devices
        .iter()
        .map(|mig| mig.facts.profile.as_str())
        .collect();
    assert_eq!(left, ["1g.10gb+me"]);
    assert_eq!(reading.unreadable.len(), 2);
    assert!(
        reading.unreadable[0].starts_with("read MIG device 0 of GPU 1: "),
        "{:?}",
        reading.unreadable
    );
    assert!(
        reading.unreadable[1].starts_with("read MIG device 1 of GPU 1: "),
        "{:?}",
        reading.unreadable
    );
}

/// A name without its `+me` would be that of another profile.
#[test]
fn a_mig_device_whose_kind_cannot_be_asked_is_not_named_without_it() {
    let driver = FakeDriver::divided();
    driver.state("gpus: {1: {failing: {nvmlDeviceGetGpuInstanceProfileInfo: UNKNOWN}}}");
    let reading = driver.read(Path::new("/nowhere"));
    let indices: Vec<u32> = reading.inventory.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(indices, [0, 2], "nor does GPU 1 look like one without MIG devices");
    assert_eq!(reading.unreadable.len(), 1);
    assert!(
        reading.unreadable[0].starts_with("read any MIG device of GPU 1: "),
        "{:?}",
        reading.unreadable
    );
}

/// Queries that decide how a GPU is advertised.
const QUESTIONS: [&str; 6] = [
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetGpuFabricInfo",
];

#[test]
fn a_gpu_that_does_not_tell_what_it_is_stays_what_it_was_and_is_left_out_where_nobody_knows() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    for question in QUESTIONS {
        driver.state(&format!("gpus: {{1: {{failing: {{{question}: UNKNOWN}}}}}}"));
        let kept = driver.read_after(&before);
        assert_eq!(kept.inventory, before.inventory, "{question}");
        let first = driver.read(Path::new("/nowhere"));
        assert_eq!(
            first.inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(),
            [0, 2],
            "{question}"
        );
        for reading in [kept, first] {
            assert!(
                matches!(reading.unreadable.as_slice(), [one] if one.contains(" of GPU 1: ")),
                "{reading:?}"
            );
        }
    }
}

#[test]
fn a_gpu_that_does_not_tell_who_it_is_stays_what_it_was() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    for question in ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName"] {
        driver.state(&format!("gpus: {{1: {{failing: {{{question}: UNKNOWN}}}}}}"));
        let now = driver.read_after(&before);
        let uuids = |reading: &DriverReading| {
            reading
                .inventory
                .gpus
                .iter()
                .map(|gpu| gpu.uuid.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (uuids(&now), now.lost.len(), now.unreadable.len()),
            (uuids(&before), 0, 1),
            "{question}"
        );
        assert_eq!(
            driver.read(Path::new("/nowhere")).inventory.gpus.len(),
            2,
            "nobody knows who it was"
        );
    }
}

#[test]
fn a_gpu_that_is_lost_stays_what_it_was_and_is_said_to_be_lost() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    for lost in ["lost: true", "failing: {nvmlDeviceGetMigMode: GPU_IS_LOST}"] {
        driver.state(&format!("gpus: {{1: {{{lost}}}}}"));
        let now = driver.read_after(&before);
        let uuids = |reading: &DriverReading| {
            reading
                .inventory
                .gpus
                .iter()
                .map(|gpu| gpu.uuid.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(uuids(&now), uuids(&before), "{lost}");
        assert_eq!(now.lost, [before.inventory.gpus[1].uuid.clone()], "{lost}");
        assert_eq!(
            driver.read(Path::new("/nowhere")).inventory.gpus.len(),
            2,
            "nobody knows what it was"
        );
    }
}

fn uuids_of(reading: &DriverReading) -> Vec<(u32, &str)> {
    let gpus = reading.inventory.gpus.iter();
    gpus.map(|gpu| (gpu.index, gpu.uuid.as_str())).collect()
}

#[test]
fn a_lost_gpu_may_answer_unknown_and_stays_what_it_was() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    driver.state("gpus: {1: {lost: true, lostCode: UNKNOWN}}");
    let now = driver.read_after(&before);
    assert_eq!(uuids_of(&now), uuids_of(&before));
    assert_eq!((now.lost.len(), now.unreadable.len()), (0, 1), "{now:?}");
}

/// The indices of the others shift, and devices that are selected by index stay those that they are.
#[test]
fn a_gpu_that_a_new_session_no_longer_lists_is_lost_while_the_driver_has_it() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    driver.state("gpus: {1: {lost: true, unlisted: true}}");
    let now = driver.read_attached(&before, true);
    assert_eq!(uuids_of(&now), uuids_of(&before));
    assert_eq!(now.lost, [before.inventory.gpus[1].uuid.clone()]);
    assert_eq!(now.unreadable, ["find GPU 1: the driver no longer lists it"]);
    let links: Vec<u32> = now.inventory.gpus[0].links.iter().map(|link| link.peer).collect();
    assert_eq!(links, [2]);
    let again = driver.read_attached(&now, true);
    assert_eq!(again, now);

    let gone = driver.read_attached(&before, false);
    let uuids = |indices: [usize; 2]| indices.map(|index| before.inventory.gpus[index].uuid.as_str());
    let [first, third] = uuids([0, 2]);
    assert_eq!(uuids_of(&gone), [(0, first), (1, third)]);
    assert_eq!((gone.lost.len(), gone.unreadable.len()), (0, 0));
    driver.state("{}");
    assert_eq!(driver.read_attached(&now, true), before);
}

#[test]
fn the_first_open_session_says_which_gpus_there_are() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 2, topology: Pcie}");
    driver.state("gpus: {1: {unlisted: true}}");
    let count = || driver.read(Path::new("/nowhere")).inventory.gpus.len();
    let session = session::open(&driver.library()).unwrap();
    driver.state("{}");
    assert_eq!(count(), 1);
    drop(session);
    assert_eq!(count(), 2);
}

/// Returns the results of a probe of each GPU and MIG device, by UUID.
fn probe_all(driver: &FakeDriver, gpus: &[Gpu]) -> BTreeMap<String, bool> {
    let target = |gpu: &Gpu| probe::ProbeTarget {
        gpu: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        // As if the layout had changed since.
        instances: gpu
            .mig_devices
            .iter()
            .map(|mig| (mig.index + 1, mig.facts.uuid.clone()))
            .collect(),
        ..probe::ProbeTarget::default()
    };
    let targets: Vec<_> = gpus.iter().map(target).collect();
    let mut results = BTreeMap::new();
    let on_report = |report: probe::ProbeReport| {
        results.insert(report.probe.gpu, report.probe.result == ProbeResult::Responds);
        let instances = report.probe.instances.into_iter();
        results.extend(instances.map(|instance| (instance.uuid, instance.answers)));
        ControlFlow::Continue(())
    };
    probe::probe(&driver.library(), &targets, |_| {}, on_report).unwrap();
    results
}

/// `nvml.h` lets a look-up by UUID fail while any GPU is lost.
#[test]
fn a_lost_gpu_keeps_no_other_gpu_and_no_mig_device_from_answering() {
    let driver = FakeDriver::divided();
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    let healthy = probe_all(&driver, &gpus);
    assert_eq!(healthy.len(), 6);
    assert!(healthy.values().all(|answers| *answers), "{healthy:?}");
    for code in ["GPU_IS_LOST", "UNKNOWN"] {
        driver.state(&format!("gpus: {{0: {{lost: true, lostCode: {code}}}}}"));
        let results = probe_all(&driver, &gpus);
        let broken: Vec<&String> = results
            .iter()
            .filter(|(_, answers)| !**answers)
            .map(|(uuid, _)| uuid)
            .collect();
        assert_eq!(broken, [&gpus[0].uuid], "{code}");
    }
}

#[test]
fn a_lost_gpu_keeps_no_other_gpu_from_changing_its_mode() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 3, topology: Pcie}");
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    driver.state("gpus: {1: {lost: true}}");
    let mode = |index: usize| compute_mode(&driver.library(), &GpuAddress::of(&gpus[index]));
    assert_eq!(mode(0).unwrap(), ComputeMode::Default);
    assert_eq!(mode(2).unwrap(), ComputeMode::Default);
    assert!(matches!(
        mode(1),
        Err(DriverError::ReadComputeMode {
            source: NvmlError::GpuLost,
            ..
        })
    ));
    // Nor does one that takes its time.
    driver.state("gpus: {0: {initMs: 20000}}");
    let start = Instant::now();
    assert_eq!(mode(2).unwrap(), ComputeMode::Default);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Another board in the slot is another GPU.
#[test]
fn a_gpu_is_the_one_with_its_uuid_and_not_any_at_its_address() {
    let driver = FakeDriver::new("{node: a, board: Tesla T4, count: 1, topology: Pcie}");
    let before = driver.read(Path::new("/nowhere"));
    let gpus = &before.inventory.gpus;
    driver.scenario("{node: b, board: Tesla T4, count: 1, topology: Pcie}");
    assert_eq!(probe_all(&driver, gpus), BTreeMap::new());
    // The driver has a GPU at that address.
    let now = driver.read_attached(&before, true);
    assert_eq!(
        (now.inventory.gpus.len(), now.lost.len(), now.unreadable.len()),
        (1, 0, 0)
    );
    assert_ne!(now.inventory.gpus[0].uuid, gpus[0].uuid);
    assert_eq!(now.inventory.gpus[0].index, 0);
}

#[test]
fn links_and_mig_devices_behind_a_gap_are_read() {
    let driver = FakeDriver::new("{board: Tesla V100-SXM2-32GB, count: 8, topology: DGX-1-Volta}");
    let links = |driver: &FakeDriver| -> u32 {
        let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
        gpus[0].links.iter().filter_map(|link| link.nvlinks).sum()
    };
    assert_eq!(links(&driver), 6);
    driver.state("gpus: {0: {failingLinks: {0: NOT_SUPPORTED, 2: INVALID_ARGUMENT}}}");
    assert_eq!(links(&driver), 4);

    let driver = FakeDriver::divided();
    driver.state(
        "gpus: {1: {failingMig: {0: {nvmlDeviceGetMigDeviceHandleByIndex: NOT_SUPPORTED}, \
         1: {nvmlDeviceGetMigDeviceHandleByIndex: INVALID_ARGUMENT}}}}",
    );
    let reading = driver.read(Path::new("/nowhere"));
    let left: Vec<_> = reading.inventory.gpus[1]
        .mig_devices
        .iter()
        .map(|mig| (mig.index, mig.facts.profile.as_str()))
        .collect();
    assert_eq!(left, [(2, "1g.10gb+me")]);
    assert_eq!(reading.unreadable, Vec::<String>::new());
}

#[test]
fn a_probe_finds_links_behind_a_gap() {
    let driver = FakeDriver::new("{board: Tesla V100-SXM2-32GB, count: 8, topology: DGX-1-Volta}");
    driver.state("gpus: {0: {failingLinks: {1: NOT_SUPPORTED, 2: INVALID_ARGUMENT}}}");
    let gpu = driver.read(Path::new("/nowhere")).inventory.gpus.remove(0);
    let target = probe::ProbeTarget {
        gpu: gpu.uuid,
        pci_bus_id: gpu.pci_bus_id,
        ..probe::ProbeTarget::default()
    };
    let mut links = None;
    let on_report = |report: probe::ProbeReport| {
        links = report.links;
        ControlFlow::Continue(())
    };
    probe::probe(&driver.library(), &[target], |_| {}, on_report).unwrap();
    assert_eq!(links, Some(vec![0, 3, 4, 5]));
}

/// On Grace NVML names the memory of the GPU, which is a node without CPUs.
#[test]
fn the_numa_node_is_that_of_the_pci_slot_not_of_gpu_memory() {
    let driver = FakeDriver::new("{board: NVIDIA GB200, count: 1, topology: NVSwitch}");
    assert_eq!(driver.read(Path::new("/nowhere")).inventory.gpus[0].numa_node, None);
    let function = |_: &str| PciFunction {
        numa_node: Some(1),
        ..PciFunction::default()
    };
    let reading = read(&driver.library(), Path::new("/nowhere"), &[], false, function, |_| ()).unwrap();
    assert_eq!(reading.inventory.gpus[0].numa_node, Some(1));
}

#[test]
fn what_a_gpu_has_not_is_no_failure() {
    let driver = FakeDriver::divided();
    let before = driver.read(Path::new("/nowhere"));
    for code in ["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"] {
        driver.state(&format!(
            "gpus: {{0: {{failing: {{nvmlDeviceGetMigMode: {code}, nvmlDeviceGetMemoryInfo: {code}, \
             nvmlDeviceGetCudaComputeCapability: {code}, nvmlDeviceGetMinorNumber: {code}}}}}}}"
        ));
        let reading = driver.read_after(&before);
        assert_eq!(reading.unreadable, Vec::<String>::new());
        let gpu = &reading.inventory.gpus[0];
        assert_eq!(
            (gpu.mig_mode, gpu.memory_mib, gpu.compute_capability, gpu.minor),
            (None, 0, None, None)
        );
    }
}

#[test]
fn a_kind_that_the_driver_does_not_list_adds_nothing_to_the_name() {
    let driver = FakeDriver::divided();
    driver.state("gpus: {1: {failing: {nvmlDeviceGetGpuInstanceProfileInfo: NOT_SUPPORTED}}}");
    let reading = driver.read(Path::new("/nowhere"));
    let profiles: Vec<_> = reading.inventory.gpus[1]
        .mig_devices
        .iter()
        .map(|mig| mig.facts.profile.as_str())
        .collect();
    assert_eq!(profiles, ["1c.3g.40gb", "1g.10gb", "1g.10gb"]);
    assert_eq!(reading.unreadable, Vec::<String>::new());
}

#[test]
fn utilisation_leaves_out_what_does_not_tell_and_has_the_indices_of_the_reading() {
    let driver = FakeDriver::divided();
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    driver.state("gpus: {0: {utilizationPercent: 70}}");
    let busy = utilisation(&driver.library(), &gpus, |_| ()).unwrap();
    assert_eq!(busy, BTreeMap::from([(0, 70)]));
    let driver = FakeDriver::new("{board: Tesla T4, count: 3, topology: Pcie}");
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    for lost in ["lost: true", "lost: true, unlisted: true"] {
        driver.state(&format!("gpus: {{0: {{{lost}}}, 2: {{utilizationPercent: 5}}}}"));
        let names = RefCell::new(Vec::new());
        let begin = |gpu: Option<&str>| names.borrow_mut().push(gpu.unwrap_or_default().to_owned());
        let busy = utilisation(&driver.library(), &gpus, begin).unwrap();
        assert_eq!(busy, BTreeMap::from([(1, 0), (2, 5)]), "{lost}");
        let uuids: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        assert_eq!(names.into_inner(), uuids, "a call that hangs is about one GPU");
    }
}

#[test]
fn a_compute_mode_is_seen_by_the_next_session() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 1, topology: Pcie}");
    let library = driver.library();
    let gpu = &GpuAddress::of(&driver.read(Path::new("/nowhere")).inventory.gpus[0]);
    assert_eq!(compute_mode(&library, gpu).unwrap(), ComputeMode::Default);
    match set_compute_mode(&library, gpu, ComputeMode::ExclusiveProcess) {
        Ok(()) => assert_eq!(compute_mode(&library, gpu).unwrap(), ComputeMode::ExclusiveProcess),
        // Only root has permission.
        Err(DriverError::SetComputeMode {
            source: NvmlError::NoPermission,
            ..
        }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn errors_name_the_gpu_and_what_was_tried() {
    let driver = FakeDriver::divided();
    let library = driver.library();
    let gpu = GpuAddress::of(&driver.read(Path::new("/nowhere")).inventory.gpus[1]);
    let error = set_compute_mode(&library, &gpu, ComputeMode::ExclusiveProcess)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("set the compute mode of {} to ExclusiveProcess: ", gpu.uuid)),
        "{error}"
    );
    let unknown = GpuAddress {
        uuid: "GPU-0".to_owned(),
        pci_bus_id: None,
    };
    let error = compute_mode(&library, &unknown).unwrap_err().to_string();
    assert!(error.starts_with("read the compute mode of GPU-0: "), "{error}");
    assert!(matches!(
        utilisation(Path::new("/nowhere/libnvidia-ml.so.1"), &[], |_| ()),
        Err(DriverError::Open { .. })
    ));
}

/// Probes one GPU.
fn probed(driver: &FakeDriver, target: ProbeTarget) -> ProbeReport {
    let mut reports = Vec::new();
    let on_report = |report| {
        reports.push(report);
        ControlFlow::Continue(())
    };
    probe(&driver.library(), &[target], |_| {}, on_report).unwrap();
    reports.pop().unwrap()
}

#[test]
fn a_driver_before_510_reports_memory_and_processes() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 1, topology: Pcie, driverVersion: 470.256.02}");
    driver.state("gpus: {0: {processes: [{pid: 7, memoryMib: 100}, {pid: 8, memoryMib: 1, kind: Graphics}]}}");
    let reading = driver.read(Path::new("/nowhere"));
    assert_eq!(reading.unreadable, Vec::<String>::new());
    assert_eq!(reading.inventory.gpus[0].memory_mib, 15_360);
    let target = ProbeTarget {
        gpu: reading.inventory.gpus[0].uuid.clone(),
        processes: true,
        ..ProbeTarget::default()
    };
    let report = probed(&driver, target);
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(report.probe.processes, Some(2));
}

#[test]
fn processes_of_every_kind_are_listed_with_their_gpu_by_old_and_new_drivers() {
    for version in ["", ", driverVersion: 470.256.02"] {
        let driver = FakeDriver::new(&format!("{{board: Tesla T4, count: 2, topology: Pcie{version}}}"));
        driver.state(
            "gpus: {0: {processes: [{pid: 7, memoryMib: 100}, {pid: 8, memoryMib: 1, kind: Graphics}]}, \
             1: {processes: [{pid: 7, memoryMib: 1}]}}",
        );
        let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
        let addresses: Vec<GpuAddress> = gpus.iter().map(GpuAddress::of).collect();
        let begun = RefCell::new(Vec::new());
        let found = processes(&driver.library(), &addresses, |gpu| {
            begun.borrow_mut().push(gpu.to_owned());
            true
        });
        let found: Vec<(String, u32)> = found.unwrap().into_iter().map(|of| (of.gpu, of.pid)).collect();
        let [one, two] = [0, 1].map(|index: usize| gpus[index].uuid.clone());
        let mut expected = vec![(one.clone(), 7), (one.clone(), 8), (two.clone(), 7)];
        expected.sort();
        assert_eq!(found, expected, "{version}");
        assert_eq!(*begun.borrow(), [one, two]);
    }
}

#[test]
fn a_gpu_that_does_not_answer_has_no_processes_and_the_others_have_theirs() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 2, topology: Pcie}");
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    let addresses: Vec<GpuAddress> = gpus.iter().map(GpuAddress::of).collect();
    driver.state(
        "gpus: {0: {processes: [{pid: 7, memoryMib: 1}], failing: {nvmlDeviceGetComputeRunningProcesses: UNKNOWN}}, \
         1: {processes: [{pid: 9, memoryMib: 1}]}}",
    );
    let found = processes(&driver.library(), &addresses, |_| true).unwrap();
    assert_eq!(found.into_iter().map(|of| of.pid).collect::<Vec<_>>(), [9]);
    let none = processes(&driver.library(), &addresses, |gpu| gpu != gpus[1].uuid).unwrap();
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn a_board_without_graphics_has_no_graphics_processes() {
    let driver = FakeDriver::new("{board: NVIDIA H200, count: 1, topology: NVSwitch}");
    driver.state("gpus: {0: {processes: [{pid: 7, memoryMib: 100}]}}");
    let target = ProbeTarget {
        gpu: driver.read(Path::new("/nowhere")).inventory.gpus[0].uuid.clone(),
        processes: true,
        ..ProbeTarget::default()
    };
    assert_eq!(probed(&driver, target.clone()).probe.processes, Some(1));
    // Any other failure tells nothing.
    driver.state("gpus: {0: {failing: {nvmlDeviceGetGraphicsRunningProcesses: UNKNOWN}}}");
    assert_eq!(probed(&driver, target).probe.processes, None);
}

#[test]
fn the_board_that_draws_on_a_monitor_is_no_gpu() {
    let driver = FakeDriver::new(
        "{board: NVIDIA DGX Display, count: 1, topology: Pcie, \
         additional: [{board: NVIDIA A100-SXM4-80GB, count: 4, topology: Pcie}]}",
    );
    let reading = driver.read(Path::new("/nowhere"));
    let indices: Vec<u32> = reading.inventory.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!((indices, reading.unreadable), (vec![1, 2, 3, 4], Vec::new()));
    assert!(
        reading
            .inventory
            .gpus
            .iter()
            .all(|gpu| gpu.links.iter().all(|link| link.peer > 0))
    );
}

#[test]
fn mig_devices_are_named_by_their_place_before_driver_470() {
    let driver = FakeDriver::new(
        "{board: NVIDIA A30, count: 1, topology: Pcie, driverVersion: 460.106.00, \
         mig: [{gpus: [0], instances: [1g.6gb, 1g.6gb]}]}",
    );
    let reading = driver.read(Path::new("/nowhere"));
    assert_eq!(reading.unreadable, Vec::<String>::new());
    let gpu = &reading.inventory.gpus[0];
    let uuids: Vec<&str> = gpu.mig_devices.iter().map(|mig| mig.facts.uuid.as_str()).collect();
    assert_eq!(uuids, [3, 4].map(|instance| format!("MIG-{}/{instance}/0", gpu.uuid)));
    let results = probe_all(&driver, &reading.inventory.gpus);
    assert!(
        results.len() == 3 && results.values().all(|answers| *answers),
        "{results:?}"
    );
}

/// A hang is blamed on the GPU that a call is about.
#[test]
fn a_read_names_the_gpu_of_each_call_unless_indices_may_have_shifted() {
    let driver = FakeDriver::new("{board: Tesla T4, count: 3, topology: Pcie}");
    let before = driver.read(Path::new("/nowhere")).inventory.gpus;
    let names = |before: &[Gpu]| {
        let names = RefCell::new(Vec::new());
        read(
            &driver.library(),
            Path::new("/nowhere"),
            before,
            false,
            |_| PciFunction::default(),
            |gpu| names.borrow_mut().push(gpu.map(str::to_owned)),
        )
        .unwrap();
        names.into_inner()
    };
    let unknown: [Option<String>; 2] = [None, None];
    assert_eq!(names(&[])[..2], unknown);
    let known = names(&before);
    assert_eq!(known[..2], [0, 1].map(|index: usize| Some(before[index].uuid.clone())));
    assert!(known[..known.len() - 1].iter().all(Option::is_some), "{known:?}");
    driver.state("gpus: {0: {lost: true, unlisted: true}}");
    assert_eq!(names(&before)[..2], unknown);
}

#[test]
fn a_link_to_a_gpu_with_mig_on_is_not_down() {
    let bridged = "board: NVIDIA A30, count: 2, topology: Bridge";
    let driver = FakeDriver::new(&format!("{{{bridged}}}"));
    let gpu = driver.read(Path::new("/nowhere")).inventory.gpus[0].uuid.clone();
    let first = probed(
        &driver,
        ProbeTarget {
            gpu: gpu.clone(),
            ..ProbeTarget::default()
        },
    );
    assert_eq!(
        (first.probe.link_down, first.links.as_deref()),
        (None, Some(&[0, 1, 2, 3][..]))
    );
    let target = ProbeTarget {
        gpu,
        links: first.links,
        link_ends: first.link_ends,
        ..ProbeTarget::default()
    };
    driver.state("gpus: {0: {linksDown: [2]}}");
    assert_eq!(probed(&driver, target.clone()).probe.link_down, Some(true));
    driver.state("{}");
    driver.scenario(&format!("{{{bridged}, mig: [{{gpus: [1]}}]}}"));
    assert_eq!(probed(&driver, target.clone()).probe.link_down, Some(false));
    // The ends are what tells it.
    let link_ends = Vec::new();
    assert_eq!(
        probed(&driver, ProbeTarget { link_ends, ..target }).probe.link_down,
        Some(true)
    );
}

#[test]
fn a_link_to_a_gpu_that_is_lost_is_not_down() {
    let driver = FakeDriver::new("{board: NVIDIA A30, count: 2, topology: Bridge}");
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    let target = |gpu: &Gpu| ProbeTarget {
        gpu: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        ..ProbeTarget::default()
    };
    let first = probed(&driver, target(&gpus[0]));
    let linked = ProbeTarget {
        links: first.links,
        link_ends: first.link_ends,
        ..target(&gpus[0])
    };
    let targets = [linked, target(&gpus[1])];
    let link_down = |targets: &[ProbeTarget]| {
        let mut down = Vec::new();
        let on_report = |report: ProbeReport| {
            down.push(report.probe.link_down);
            ControlFlow::Continue(())
        };
        probe(&driver.library(), targets, |_| {}, on_report).unwrap();
        down[0]
    };
    for lost in ["", ", lostCode: UNKNOWN", ", unlisted: true"] {
        driver.state(&format!("gpus: {{1: {{lost: true{lost}}}}}"));
        assert_eq!(link_down(&targets), Some(false), "{lost}");
    }
    // The end of a link that is no GPU of the node excuses nothing.
    assert_eq!(link_down(&targets[..1]), Some(true));
}
