//! PCI slot and NUMA node of a device node, by the links of `/sys/dev` (Linux, `Documentation/admin-guide/sysfs-rules.rst`).

use crate::driver::library::resolve_below;
use rustix::fs::{Dev, major, minor};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// PCI slot and NUMA node of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTopology {
    /// Domain, bus and device, such as `0000:03:00`, of the PCI function that is nearest to the device.
    pub pci_slot: Option<String>,
    /// NUMA node of the nearest part that has one.
    pub numa_node: Option<u32>,
}

/// Reads the topology of the device with that number; none where sysfs shows none. Blocks.
pub fn device_topology(host_root: &Path, number: Dev, is_block: bool) -> DeviceTopology {
    let kind = if is_block { "block" } else { "char" };
    let link = format!("sys/dev/{kind}/{}:{}", major(number), minor(number));
    let Some(device) = resolve_below(host_root, Path::new(&link)) else {
        return DeviceTopology::default();
    };
    // From the device up to the root of the buses.
    let parts: Vec<&Path> = device.ancestors().take_while(|part| *part != host_root).collect();
    DeviceTopology {
        pci_slot: parts
            .iter()
            .find_map(|part| slot_of(part.file_name()?.to_str()?))
            .map(str::to_owned),
        numa_node: parts.iter().find_map(|part| numa_node(part)),
    }
}

/// Returns the slot in the address of a PCI function, such as `0000:03:00.1`.
fn slot_of(name: &str) -> Option<&str> {
    let (slot, function) = name.rsplit_once('.')?;
    let parts: Vec<&str> = slot.split(':').collect();
    let is_hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    // A domain has more than four digits behind some bridges (VMD).
    let is_slot = match parts.as_slice() {
        [domain, bus, device] => domain.len() >= 4 && bus.len() == 2 && device.len() == 2,
        _ => false,
    };
    (is_slot && parts.into_iter().all(is_hex) && is_hex(function)).then_some(slot)
}

/// Returns the NUMA node of a part; none where it is not known, which sysfs writes as -1.
fn numa_node(part: &Path) -> Option<u32> {
    let file: PathBuf = part.join("numa_node");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;
    use std::os::unix::fs::symlink;

    #[test]
    fn place_is_that_of_the_nearest_function() {
        let host = tempfile::tempdir().unwrap();
        let root = host.path();
        let bridge = root.join("sys/devices/pci0000:00/0000:00:01.0");
        let card = bridge.join("0000:03:00.1/infiniband_verbs/uverbs0");
        fs::create_dir_all(&card).unwrap();
        fs::write(bridge.join("numa_node"), "0\n").unwrap();
        fs::write(bridge.join("0000:03:00.1/numa_node"), "1\n").unwrap();
        fs::create_dir_all(root.join("sys/dev/char")).unwrap();
        let link = "../../devices/pci0000:00/0000:00:01.0/0000:03:00.1/infiniband_verbs/uverbs0";
        symlink(link, root.join("sys/dev/char/231:192")).unwrap();
        let place = |number| device_topology(root, number, false);
        let expected = DeviceTopology {
            pci_slot: Some("0000:03:00".to_owned()),
            numa_node: Some(1),
        };
        assert_eq!(place(makedev(231, 192)), expected);
        assert_eq!(place(makedev(231, 193)), DeviceTopology::default());
        assert_eq!(
            device_topology(root, makedev(231, 192), true),
            DeviceTopology::default()
        );
        fs::write(bridge.join("0000:03:00.1/numa_node"), "-1\n").unwrap();
        assert_eq!(place(makedev(231, 192)).numa_node, Some(0));
        let virtual_device = root.join("sys/devices/virtual/misc/x");
        fs::create_dir_all(virtual_device).unwrap();
        symlink("../../devices/virtual/misc/x", root.join("sys/dev/char/10:1")).unwrap();
        assert_eq!(place(makedev(10, 1)), DeviceTopology::default());
    }

    #[test]
    fn slots_are_parts_of_addresses() {
        for (name, slot) in [
            ("0000:03:00.0", Some("0000:03:00")),
            ("10000:e1:00.1f", Some("10000:e1:00")),
            ("pci0000:00", None),
            ("0000:03:00", None),
            ("uverbs0", None),
            ("0000:03:zz.0", None),
            ("3:03:00.0", None),
            ("0000:03:00.", None),
        ] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
    }
}
