//! The simulated hardware of a node: driver folder and PCI devices.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use gpunode_scenario::Scenario;

use crate::{cluster_file::NodeSpec, files};

/// Folder of the NVML library in a driver folder.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A network card and a bridge, so that looking for any device at all does not find a GPU.
const OTHERS: [(&str, u16, u16, u32); 2] =
    [("0000:00:00.0", 0x8086, 0x1237, 0x06_00_00), ("0000:00:03.0", 0x1af4, 0x1000, 0x02_00_00)];
const NVIDIA: u16 = 0x10de;
const CONTROLLER_3D: u32 = 0x03_02_00;

/// The folder of the library in the driver folder of a node, where scenario and state files are.
pub(crate) fn library_folder(driver: &Path) -> PathBuf {
    driver.join(LIBRARY_FOLDER)
}

/// Lays out the driver: the library and, beside it, what it is to simulate.
pub(crate) fn write_driver(driver: &Path, nvml_library: &Path, gpus: &Scenario) -> Result<()> {
    let folder = library_folder(driver);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    fs::copy(nvml_library, folder.join(LIBRARY))
        .with_context(|| format!("copy {} to {}", nvml_library.display(), folder.display()))?;
    gpus.save(&folder).with_context(|| format!("write the scenario into {}", folder.display()))
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
