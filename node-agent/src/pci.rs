//! NVIDIA's PCI functions as the host's sysfs shows them: whether there is a GPU, also without a driver.

use std::{fs, path::Path};

const DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: &str = "0x10de";
/// Base class "display controller", which graphics (0x0300) and 3D controllers (0x0302) share.
const DISPLAY_CLASS: &str = "0x03";

/// Addresses of the NVIDIA GPUs, such as `0000:07:00.0`, sorted. None where sysfs cannot be read.
pub fn nvidia_functions(host_root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(host_root.join(DEVICES)) else {
        return Vec::new();
    };
    let mut functions: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let is = |file, start| attribute(&entry.path(), file).is_some_and(|value| value.starts_with(start));
            is("vendor", NVIDIA) && is("class", DISPLAY_CLASS)
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    functions.sort();
    functions
}

/// NUMA node of a PCI function; sysfs writes -1 where the machine does not say.
pub fn numa_node(host_root: &Path, address: &str) -> Option<u32> {
    attribute(&host_root.join(DEVICES).join(address), "numa_node")?.parse().ok()
}

fn attribute(device: &Path, file: &str) -> Option<String> {
    fs::read_to_string(device.join(file)).ok().map(|text| text.trim().to_owned())
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
        assert_eq!(nvidia_functions(host.path()), ["0000:07:00.0", "0000:0b:00.0"]);
        assert_eq!(numa_node(host.path(), "0000:0b:00.0"), Some(1));
        assert_eq!(numa_node(host.path(), "0000:07:00.0"), None);
        assert_eq!(numa_node(host.path(), "0000:ff:00.0"), None);
    }

    #[test]
    fn a_host_without_pci_has_no_gpu() {
        assert!(nvidia_functions(tempfile::tempdir().unwrap().path()).is_empty());
    }
}
