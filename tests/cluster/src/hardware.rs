//! The simulated hardware of a node: driver folder and PCI devices.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use gpunode_scenario::Scenario;

use crate::{cluster::Options, cluster_file::NodeSpec, files};

/// Folder of the NVML library in a driver folder.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Folder of the programs.
const PROGRAM_FOLDER: &str = "usr/bin";
/// The control daemon, and a client for containers that mount the folder.
const MPS_PROGRAMS: [&str; 2] = ["nvidia-cuda-mps-control", "mps-client"];

/// The driver's file in `/proc/driver`.
const MIG_MINORS: &str = "nvidia-caps/mig-minors";

/// A network card and a bridge, so that looking for any device at all does not find a GPU.
const OTHERS: [(&str, u16, u16, u32); 2] = [
    ("0000:00:00.0", 0x8086, 0x1237, 0x06_00_00),
    ("0000:00:03.0", 0x1af4, 0x1000, 0x02_00_00),
];
const NVIDIA: u16 = 0x10de;
const CONTROLLER_3D: u32 = 0x03_02_00;

/// The folder of the library in the driver folder of a node, where scenario and state files are.
pub(crate) fn library_folder(driver: &Path) -> PathBuf {
    driver.join(LIBRARY_FOLDER)
}

/// The files that stand for NVIDIA's driver.
pub(crate) struct Driver {
    nvml_library: PathBuf,
    mps_programs: PathBuf,
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
        })
    }

    /// Lays out the driver of a node: the library with what it is to simulate beside it, and the MPS programs.
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
        copy(&self.nvml_library, &libraries.join(LIBRARY))?;
        for program in MPS_PROGRAMS {
            copy(&self.mps_programs.join(program), &programs.join(program))?;
        }
        gpus.save(&libraries)
            .with_context(|| format!("write the scenario into {}", libraries.display()))
    }
}

/// Lays out what becomes `/proc/driver` of a node: which device node stands for which MIG instance.
pub(crate) fn write_mig_minors(proc_driver: &Path, gpus: &Scenario) -> Result<()> {
    let text = gpus.mig_minors().context("simulated MIG instances")?;
    files::replace(&proc_driver.join(MIG_MINORS), text.as_bytes())
}

/// Lays out what becomes `/sys/bus` of a node.
pub(crate) fn write_sys_bus(bus: &Path, node: &NodeSpec) -> Result<()> {
    let devices = bus.join("pci/devices");
    for (address, vendor, device, class) in OTHERS {
        write_device(&devices.join(address), vendor, device, class, -1)?;
    }
    if let Some(gpus) = &node.gpus {
        for gpu in gpus.gpus().with_context(|| format!("GPUs of node {}", node.name))? {
            let folder = devices.join(&gpu.pci_bus_id);
            write_device(&folder, NVIDIA, gpu.pci_device_id, CONTROLLER_3D, gpu.numa_node)?;
        }
    }
    Ok(())
}

fn write_device(folder: &Path, vendor: u16, device: u16, class: u32, numa_node: i32) -> Result<()> {
    let write = |name: &str, value: String| files::replace(&folder.join(name), value.as_bytes());
    write("vendor", format!("{vendor:#06x}\n"))?;
    write("device", format!("{device:#06x}\n"))?;
    write("class", format!("{class:#08x}\n"))?;
    write("numa_node", format!("{numa_node}\n"))
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
