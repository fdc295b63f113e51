//! The simulated hardware of a node: driver folder and PCI devices.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::id,
};

use anyhow::{Context, Result};
use gpunode_scenario::{DeviceNode, KernelFiles, Scenario};
use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    io::Errno,
};

use crate::{cluster::Options, cluster_file::NodeSpec, files};

/// Folder of the NVML library in a driver folder.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
/// Folder of the programs.
const PROGRAM_FOLDER: &str = "usr/bin";
/// The control daemon, and a client for containers that mount the folder.
const MPS_PROGRAMS: [&str; 2] = ["nvidia-cuda-mps-control", "mps-client"];

/// Shows MIG instances of a node as the kernel module does: `src/bin/gpunode-kernel-files.rs`.
pub(crate) const KERNEL_PROGRAM: &str = "gpunode-kernel-files";

/// Says which GPUs the container has.
const NVIDIA_SMI: &str = "#!/bin/sh\nls /dev/nvidia[0-9]*\n";

/// Major numbers of the device nodes of GPUs, of unified memory and of MIG capabilities, as in `sandbox.sh`.
const GPU_MAJOR: u32 = 195;
const UVM_MAJOR: u32 = 400;
const CAPABILITY_MAJOR: u32 = 401;

/// A network card and a bridge, so that looking for any device at all does not find a GPU.
const OTHERS: [(&str, PciIdentity); 2] = [
    (
        "0000:00:00.0",
        PciIdentity {
            vendor: 0x8086,
            device: 0x1237,
            class: 0x06_00_00,
        },
    ),
    (
        "0000:00:03.0",
        PciIdentity {
            vendor: 0x1af4,
            device: 0x1000,
            class: 0x02_00_00,
        },
    ),
];
const NVIDIA: u16 = 0x10de;

/// Length of a function's configuration space.
const CONFIGURATION: usize = 256;
/// Lines of `resource`: six regions, the expansion ROM and those of bridges. All are empty, as nobody maps one.
const REGIONS: usize = 13;

/// Ids and class of a PCI function.
#[derive(Clone, Copy)]
struct PciIdentity {
    vendor: u16,
    device: u16,
    class: u32,
}

impl PciIdentity {
    /// The configuration space (PCI Local Bus Specification 3.0, 6.1): power management is the only capability. A virtual
    /// GPU would have one of NVIDIA's own.
    fn configuration(self) -> [u8; CONFIGURATION] {
        const STATUS: (usize, &[u8]) = (0x06, &[0x10]);
        const FIRST_CAPABILITY: (usize, &[u8]) = (0x34, &[0x60]);
        const POWER_MANAGEMENT: (usize, &[u8]) = (0x60, &[0x01, 0x00]);
        let ids = [self.vendor.to_le_bytes(), self.device.to_le_bytes()].concat();
        let [programming_interface, sub_class, base_class, _] = self.class.to_le_bytes();
        let class = [programming_interface, sub_class, base_class];
        let mut space = [0; CONFIGURATION];
        let parts = [
            (0x00, ids.as_slice()),
            STATUS,
            (0x09, class.as_slice()),
            (0x2c, ids.as_slice()),
            FIRST_CAPABILITY,
            POWER_MANAGEMENT,
        ];
        for (at, bytes) in parts {
            for (to, from) in space.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        }
        space
    }
}

/// The folder of the library in the driver folder of a node, where scenario and state files are.
pub(crate) fn library_folder(driver: &Path) -> PathBuf {
    driver.join(LIBRARY_FOLDER)
}

/// The files that stand for NVIDIA's driver.
pub(crate) struct Driver {
    nvml_library: PathBuf,
    mps_programs: PathBuf,
    kernel_program: PathBuf,
}

impl Driver {
    /// Finds them.
    pub(crate) fn find(options: &Options) -> Result<Self> {
        let find = |path: &Path, what_to_do: &str| {
            fs::canonicalize(path).with_context(|| format!("find {}: {what_to_do}", path.display()))
        };
        Ok(Driver {
            nvml_library: find(
                &options.nvml_library,
                "build the simulated NVML (cargo build --release -p gpunode-fake-nvml), or say where it is",
            )?,
            mps_programs: find(
                &options.mps_programs,
                "build the stand-in for MPS (tests/mps-control/build.sh), or say where it is",
            )?,
            kernel_program: find(
                &options.kernel_program,
                "build the programs of the cluster (cargo build --release -p gpunode-cluster)",
            )?,
        })
    }

    /// Puts the program that shows MIG instances among the others of all clusters, where another one may run.
    pub(crate) fn install_kernel_program(&self, bin: &Path) -> Result<()> {
        let (new, path) = (bin.join(format!("{KERNEL_PROGRAM}.{}", id())), bin.join(KERNEL_PROGRAM));
        fs::copy(&self.kernel_program, &new)
            .and_then(|_| fs::rename(&new, &path))
            .with_context(|| format!("copy {} to {}", self.kernel_program.display(), path.display()))
    }

    /// Lays out the driver of a node: its files, NVML with what it is to simulate beside it, and the MPS programs.
    pub(crate) fn write(&self, root: &Path, gpus: &Scenario) -> Result<()> {
        let libraries = library_folder(root);
        let programs = root.join(PROGRAM_FOLDER);
        // An MPS daemon runs with the driver's folder as its root, and these are where its own `/run` and shared memory go.
        for folder in [&libraries, &programs, &root.join("dev/shm"), &root.join("run")] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let copy = |from: &Path, to: &Path| {
            fs::copy(from, to)
                .with_context(|| format!("copy {} to {}", from.display(), to.display()))
                .map(drop)
        };
        gpus.write_driver(root)
            .with_context(|| format!("write the driver's files into {}", root.display()))?;
        gpus.install_nvml(root, &self.nvml_library)
            .with_context(|| format!("copy {} into {}", self.nvml_library.display(), root.display()))?;
        for program in MPS_PROGRAMS {
            copy(&self.mps_programs.join(program), &programs.join(program))?;
        }
        gpus.save(&libraries)
            .with_context(|| format!("write the scenario into {}", libraries.display()))
    }
}

/// Writes the driver's `nvidia-smi`, which containers with a CDI device get.
pub(crate) fn write_nvidia_smi(root: &Path) -> Result<()> {
    let path = root.join(PROGRAM_FOLDER).join("nvidia-smi");
    files::replace(&path, NVIDIA_SMI.as_bytes())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} a program", path.display()))
}

/// Returns the files in which a node shows its GPUs and MIG instances: a folder that it sees as `/proc/driver`, and folders of device
/// nodes.
pub fn kernel_files(proc_driver: PathBuf, devices: Vec<PathBuf>) -> KernelFiles {
    KernelFiles {
        proc_driver,
        devices,
        make_node: |path, node| {
            let (major, minor) = match node {
                DeviceNode::Gpu(minor) => (GPU_MAJOR, minor),
                DeviceNode::Capability(minor) => (CAPABILITY_MAJOR, minor),
            };
            make_node(path, major, minor)
        },
    }
}

fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    match mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(major, minor)) {
        // The node was switched on before.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes the device nodes that a driver container has below its root, beside those of GPUs and MIG instances. gpunode and NVIDIA's
/// container runtime give these to containers.
pub(crate) fn write_driver_devices(root: &Path) -> Result<()> {
    let devices = root.join("dev");
    fs::create_dir_all(&devices).with_context(|| format!("create {}", devices.display()))?;
    for (name, major, minor) in [
        ("nvidiactl", GPU_MAJOR, 255),
        ("nvidia-modeset", GPU_MAJOR, 254),
        ("nvidia-uvm", UVM_MAJOR, 0),
        ("nvidia-uvm-tools", UVM_MAJOR, 1),
    ] {
        let path = devices.join(name);
        make_node(&path, major, minor).with_context(|| format!("make the device node {}", path.display()))?;
    }
    Ok(())
}

/// Lays out what becomes `/proc/driver` of a node beside the files of MIG: the driver's version, and its GPUs
/// (`nv-procfs.c` of open-gpu-kernel-modules). Its parameters are left out: a container would not show them, as the machine has no
/// such driver, and NVIDIA's hook fails where the host alone has them.
pub(crate) fn write_proc_driver(proc_driver: &Path, gpus: &Scenario) -> Result<()> {
    let version = format!(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}\n",
        gpus.driver_version
    );
    files::replace(&proc_driver.join("nvidia/version"), version.as_bytes())?;
    for gpu in gpus.gpus().context("simulated GPUs")? {
        let information = format!(
            "GPU UUID: \t {}\nBus Location: \t {}\nDevice Minor: \t {}\n",
            gpu.uuid, gpu.pci_bus_id, gpu.minor
        );
        let folder = proc_driver.join("nvidia/gpus").join(&gpu.pci_bus_id);
        files::replace(&folder.join("information"), information.as_bytes())?;
    }
    Ok(())
}

/// Lays out what becomes `/sys/bus` of a node.
pub(crate) fn write_sys_bus(bus: &Path, node: &NodeSpec) -> Result<()> {
    let devices = bus.join("pci/devices");
    for (address, identity) in OTHERS {
        write_device(&devices.join(address), identity, -1)?;
    }
    if let Some(gpus) = &node.gpus {
        for gpu in gpus.gpus().with_context(|| format!("GPUs of node {}", node.name))? {
            let identity = PciIdentity {
                vendor: NVIDIA,
                device: gpu.pci_device_id,
                class: gpu.board.pci_class(),
            };
            write_device(&devices.join(&gpu.pci_bus_id), identity, gpu.numa_node)?;
        }
    }
    Ok(())
}

/// Writes the attributes of a function that gpunode, GPU feature discovery and NVIDIA's operator read
/// (`getNvidiaDeviceByPciBusID` in go-nvlib's `pkg/nvpci/nvpci.go`, `Devices` in k8s-device-plugin's
/// `internal/vgpu/pciutil.go`).
fn write_device(folder: &Path, identity: PciIdentity, numa_node: i32) -> Result<()> {
    let PciIdentity { vendor, device, class } = identity;
    let write = |name: &str, value: &[u8]| files::replace(&folder.join(name), value);
    for (name, id) in [
        ("vendor", vendor),
        ("device", device),
        ("subsystem_vendor", vendor),
        ("subsystem_device", device),
    ] {
        write(name, format!("{id:#06x}\n").as_bytes())?;
    }
    write("class", format!("{class:#08x}\n").as_bytes())?;
    write("numa_node", format!("{numa_node}\n").as_bytes())?;
    let region = format!("{0:#018x} {0:#018x} {0:#018x}\n", 0);
    write("resource", region.repeat(REGIONS).as_bytes())?;
    write("config", &identity.configuration())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterFile;

    #[test]
    fn pci_devices_are_those_of_the_scenario_and_others() {
        let file = ClusterFile::parse(include_str!("../clusters/default.yaml")).unwrap();
        let bus = tempfile::tempdir().unwrap();
        write_sys_bus(bus.path(), &file.nodes[0]).unwrap();
        let vendors: Vec<_> = fs::read_dir(bus.path().join("pci/devices"))
            .unwrap()
            .map(|entry| fs::read_to_string(entry.unwrap().path().join("vendor")).unwrap())
            .collect();
        assert_eq!(vendors.iter().filter(|vendor| *vendor == "0x10de\n").count(), 8);
        assert_eq!(vendors.len(), 10);
    }

    /// As GPU feature discovery reads them: it takes a missing file or a short configuration space for a failure.
    #[test]
    fn gpu_feature_discovery_can_read_a_gpus_pci_function() {
        let file = ClusterFile::parse(include_str!("../clusters/default.yaml")).unwrap();
        let bus = tempfile::tempdir().unwrap();
        write_sys_bus(bus.path(), &file.nodes[0]).unwrap();
        let gpu = &file.nodes[0].gpus.as_ref().unwrap().gpus().unwrap()[0];
        let function = bus.path().join("pci/devices").join(&gpu.pci_bus_id);
        let read = |name: &str| fs::read_to_string(function.join(name)).unwrap();
        assert_eq!(
            ["vendor", "class", "subsystem_vendor"].map(read),
            ["0x10de\n", "0x030200\n", "0x10de\n"]
        );
        assert_eq!(read("device"), read("subsystem_device"));
        for line in read("resource").lines() {
            let numbers: Vec<_> = line
                .split(' ')
                .map(|number| u64::from_str_radix(&number[2..], 16).unwrap())
                .collect();
            assert_eq!(numbers, [0, 0, 0]);
        }
        let space = fs::read(function.join("config")).unwrap();
        assert_eq!(
            (space.len(), &space[..2], &space[9..12]),
            (256, &[0xde, 0x10][..], &[0, 2, 3][..])
        );
        let mut capabilities = Vec::new();
        let mut at = usize::from(space[0x34]);
        while at != 0 {
            capabilities.push(space[at]);
            at = usize::from(space[at + 1]);
        }
        assert_eq!(capabilities, [1], "no capability of a virtual GPU");
    }

    #[test]
    fn a_node_without_gpus_has_other_devices_only() {
        let file = ClusterFile::parse("nodes: [{name: cpu}]").unwrap();
        let bus = tempfile::tempdir().unwrap();
        write_sys_bus(bus.path(), &file.nodes[0]).unwrap();
        let class = fs::read_to_string(bus.path().join("pci/devices/0000:00:03.0/class")).unwrap();
        assert_eq!(class, "0x020000\n");
        assert_eq!(fs::read_dir(bus.path().join("pci/devices")).unwrap().count(), 2);
    }
}
