//! Reads NVIDIA's PCI functions from the host's sysfs: the GPUs, also without a driver, and the NUMA node, class and
//! configuration space of each.

use gpunode_gpu::GpuMode;
use std::{fs, os::unix::fs::DirEntryExt as _, path::Path};

const DEVICES: &str = "sys/bus/pci/devices";
/// Functions that NVIDIA's driver is bound to.
const BOUND: &str = "sys/bus/pci/drivers/nvidia";
/// GPUs that NVIDIA's driver has, by address: it makes the entry at the end of its probe (open-gpu-kernel-modules,
/// `nv_pci_probe`).
const ATTACHED: &str = "proc/driver/nvidia/gpus";
const NVIDIA: &str = "0x10de";
/// Base class "display controller", which graphics (0x0300) and 3D controllers (0x0302) share.
const DISPLAY_CLASS: &str = "0x03";

/// Returns the addresses of all PCI functions, sorted, without reading their classes.
pub fn functions(host_root: &Path) -> Vec<String> {
    let entries = entries(&host_root.join(DEVICES));
    entries.into_iter().map(|(address, _)| address).collect()
}

/// Returns the entries of NVIDIA's driver, with their inodes: a function that is removed and found again has another.
pub fn driver_entries(host_root: &Path) -> Vec<(String, u64)> {
    [BOUND, ATTACHED]
        .map(|folder| entries(&host_root.join(folder)))
        .concat()
}

/// Returns the names in a folder, sorted, with their inodes.
fn entries(folder: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut entries: Vec<_> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.ino())))
        .collect();
    entries.sort();
    entries
}

/// Returns the addresses of the NVIDIA GPUs, such as `0000:07:00.0`, sorted; none when sysfs cannot be read.
pub fn nvidia_functions(host_root: &Path) -> Vec<String> {
    let mut functions = functions(host_root);
    functions.retain(|address| {
        let device = host_root.join(DEVICES).join(address);
        let is = |file, start| attribute(&device, file).is_some_and(|value| value.starts_with(start));
        is("vendor", NVIDIA) && is("class", DISPLAY_CLASS)
    });
    functions
}

/// NUMA node and class of a GPU's PCI function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciFunction {
    /// NUMA node; none when unknown, which sysfs writes as -1.
    pub numa_node: Option<u32>,
    /// Graphics or compute, by the PCI class; none for another class.
    pub mode: Option<GpuMode>,
    /// True when NVIDIA's driver has it.
    pub is_attached: bool,
}

/// Reads the function with that address; a function that does not exist has none of the facts.
pub fn function(host_root: &Path, address: &str) -> PciFunction {
    let device = host_root.join(DEVICES).join(address);
    PciFunction {
        numa_node: attribute(&device, "numa_node").and_then(|node| node.parse().ok()),
        mode: match attribute(&device, "class").as_deref() {
            Some("0x030000") => Some(GpuMode::Graphics),
            Some("0x030200") => Some(GpuMode::Compute),
            _ => None,
        },
        is_attached: host_root.join(ATTACHED).join(address).exists(),
    }
}

/// Returns the address of the GPU with that UUID; none if the kernel driver does not show it. The kernel driver shows the UUID of
/// a GPU once it has initialised it.
pub fn address_of(host_root: &Path, uuid: &str) -> Option<String> {
    let attached = host_root.join(ATTACHED);
    let has_uuid = |address: &String| {
        let information = attribute(&attached.join(address), "information").unwrap_or_default();
        let mut uuids = information.lines().filter_map(|line| line.strip_prefix("GPU UUID:"));
        uuids.any(|found| found.trim() == uuid)
    };
    let mut addresses = entries(&attached).into_iter().map(|(address, _)| address);
    addresses.find(has_uuid)
}

/// Reads the configuration space of a function, as far as this process has permission.
pub fn configuration_space(host_root: &Path, address: &str) -> Option<Vec<u8>> {
    fs::read(host_root.join(DEVICES).join(address).join("config")).ok()
}

fn attribute(device: &Path, file: &str) -> Option<String> {
    fs::read_to_string(device.join(file))
        .ok()
        .map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvidias_display_controllers_are_gpus() {
        let host = tempfile::tempdir().unwrap();
        for (address, vendor, class, numa) in [
            ("0000:0b:00.0", "0x10de", "0x030200", "1"),
            ("0000:07:00.0", "0x10de", "0x030000", "-1"),
            ("0000:07:00.1", "0x10de", "0x040300", "0"),
            ("0000:00:02.0", "0x8086", "0x030000", "0"),
        ] {
            let device = host.path().join(DEVICES).join(address);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            fs::write(device.join("numa_node"), format!("{numa}\n")).unwrap();
        }
        fs::create_dir_all(host.path().join(ATTACHED).join("0000:0b:00.0")).unwrap();
        assert_eq!(nvidia_functions(host.path()), ["0000:07:00.0", "0000:0b:00.0"]);
        let function = |address| function(host.path(), address);
        assert_eq!(
            function("0000:0b:00.0"),
            PciFunction {
                numa_node: Some(1),
                mode: Some(GpuMode::Compute),
                is_attached: true
            }
        );
        assert_eq!(
            function("0000:07:00.0"),
            PciFunction {
                numa_node: None,
                mode: Some(GpuMode::Graphics),
                is_attached: false
            }
        );
        assert_eq!(
            function("0000:07:00.1"),
            PciFunction {
                numa_node: Some(0),
                mode: None,
                is_attached: false
            }
        );
        assert_eq!(function("0000:ff:00.0"), PciFunction::default());
    }

    #[test]
    fn a_function_that_is_removed_and_found_again_is_another_entry() {
        let host = tempfile::tempdir().unwrap();
        let gpu = host.path().join(ATTACHED).join("0000:0b:00.0");
        fs::create_dir_all(&gpu).unwrap();
        let before = driver_entries(host.path());
        assert_eq!(before.len(), 1);
        // Made before the old one goes, so that it has another inode here too.
        let new = host.path().join("new");
        fs::create_dir(&new).unwrap();
        fs::rename(&new, &gpu).unwrap();
        assert_ne!(driver_entries(host.path()), before);
        fs::remove_dir(&gpu).unwrap();
        assert!(driver_entries(host.path()).is_empty());
    }

    #[test]
    fn the_kernel_driver_tells_the_address_of_a_gpu() {
        let host = tempfile::tempdir().unwrap();
        // As `nv_procfs_read_gpu_info` of open-gpu-kernel-modules writes it, the first before the GPU is initialised.
        for (address, uuid) in [
            ("0000:07:00.0", "GPU-????????-????-????-????-????????????"),
            ("0000:0b:00.0", "GPU-8dcd427e-483b-b48f-d7e5-75fb19a52b76"),
        ] {
            let gpu = host.path().join(ATTACHED).join(address);
            fs::create_dir_all(&gpu).unwrap();
            let text = format!("Model: \t\t Tesla T4\nIRQ:   \t\t 40\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??\n");
            fs::write(gpu.join("information"), text).unwrap();
        }
        let address = |uuid| address_of(host.path(), uuid);
        assert_eq!(
            address("GPU-8dcd427e-483b-b48f-d7e5-75fb19a52b76").as_deref(),
            Some("0000:0b:00.0")
        );
        assert_eq!(address("GPU-00000000-483b-b48f-d7e5-75fb19a52b76"), None);
    }

    #[test]
    fn a_host_without_pci_has_no_gpu() {
        assert!(nvidia_functions(tempfile::tempdir().unwrap().path()).is_empty());
    }
}
