//! Reads the machine's product name from DMI, and detects virtual GPUs with the driver of their host.

use crate::driver::pci;
use gpunode_gpu::{RunId, product_label};
use std::{fs, path::Path};

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
const PRODUCT_NAME: &str = "sys/class/dmi/id/product_name";

/// Offsets in the configuration space (PCI Local Bus Specification 3.0, 6.2.3 and 6.7) and the id of a vendor-specific
/// capability.
const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u8 = 0x10;
const FIRST_CAPABILITY: usize = 0x34;
const VENDOR_SPECIFIC: u8 = 0x09;
/// Length of the configuration space. An unprivileged reader gets the first 64 bytes.
const SPACE: usize = 256;

/// Layout of NVIDIA's capability in a virtual GPU: id, next, length, a signature, then records of id, length and data.
const SIGNATURE: &[u8] = b"VF";
const RECORDS: usize = 5;
/// Id of the record with version and branch of the host's driver, and the bytes of each.
const HOST_DRIVER: u8 = 0;
const TEXT: usize = 10;

/// Product name and vGPU host driver of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineInfo {
    /// Product name in label form.
    pub product: Option<String>,
    /// Driver of the host, when the GPUs are virtual.
    pub vgpu: Option<HostDriver>,
}

/// Driver of the host that provides virtual GPUs; empty when unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDriver {
    /// Version in label form, such as `550.54.16`.
    pub version: String,
    /// Branch in label form, such as `r550_40`.
    pub branch: String,
}

/// Returns the boot of the machine and the load of the driver. `module` and `version` are those of the driver; without a
/// version its part stays empty. Blocks.
pub fn run(host_root: &Path, module: Option<u64>, version: Option<&str>) -> RunId {
    // A container sees its host's boot id, except on a simulated host.
    let boot = [host_root.join(BOOT_ID), Path::new("/").join(BOOT_ID)]
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok());
    let boot = boot.unwrap_or_default().trim().to_owned();
    let driver = version.map(|version| format!("{version}/{}", module.unwrap_or_default()));
    RunId {
        boot,
        driver: driver.unwrap_or_default(),
    }
}

/// Reads DMI and the configuration space of NVIDIA's PCI `functions`. Blocks.
pub fn read(host_root: &Path, functions: &[String]) -> MachineInfo {
    let name = fs::read_to_string(host_root.join(PRODUCT_NAME)).unwrap_or_default();
    let mut spaces = functions
        .iter()
        .filter_map(|address| pci::configuration_space(host_root, address));
    MachineInfo {
        product: Some(product_label(&name)).filter(|name| !name.is_empty()),
        vgpu: spaces.find_map(|space| host_driver(&space)),
    }
}

/// Returns the host's driver when the function with that configuration space is a virtual GPU.
fn host_driver(space: &[u8]) -> Option<HostDriver> {
    let capability = vendor_capability(space)?;
    if capability.get(3..RECORDS) != Some(SIGNATURE) {
        return None;
    }
    let mut records = capability.get(RECORDS..).unwrap_or_default();
    // Each round consumes at least the two header bytes of a record.
    while let [id, length, data @ ..] = records {
        if *id == HOST_DRIVER {
            let text = |from: usize| label(data.get(from..from + TEXT).unwrap_or_default());
            return Some(HostDriver {
                version: text(0),
                branch: text(TEXT),
            });
        }
        records = records.get(usize::from(*length).max(2)..).unwrap_or_default();
    }
    Some(HostDriver::default())
}

fn vendor_capability(space: &[u8]) -> Option<&[u8]> {
    if space.len() < SPACE || space.get(STATUS)? & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = usize::from(*space.get(FIRST_CAPABILITY)?);
    // A longer list than fits must run in a circle.
    for _ in 0..SPACE / 4 {
        match space.get(at..)? {
            _ if at == 0 => return None,
            [VENDOR_SPECIFIC, _, length, ..] => return space.get(at..at + usize::from(*length)),
            [_, next, ..] => at = usize::from(*next),
            _ => return None,
        }
    }
    None
}

fn label(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    product_label(&String::from_utf8_lossy(text.get(..end).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with the capabilities at these places.
    fn space(capabilities: &[(usize, &[u8])]) -> Vec<u8> {
        let mut space = vec![0; SPACE];
        space[STATUS] = HAS_CAPABILITIES;
        space[FIRST_CAPABILITY] = u8::try_from(capabilities[0].0).unwrap();
        for (at, bytes) in capabilities {
            space[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        space
    }

    const VIRTUAL: &[u8] = b"\x09\x00\x1bVF\x00\x16550.54.16\0r550_40\0\0\0";

    #[test]
    fn a_virtual_gpu_names_the_hosts_driver() {
        let driver = HostDriver {
            version: "550.54.16".to_owned(),
            branch: "r550_40".to_owned(),
        };
        assert_eq!(host_driver(&space(&[(0xd0, VIRTUAL)])), Some(driver.clone()));
        let behind_another = space(&[(0x60, &[0x01, 0xd0]), (0xd0, VIRTUAL)]);
        assert_eq!(host_driver(&behind_another), Some(driver.clone()));
        let other_record_first = [b"\x09\x00\x20VF\x07\x05abc".as_slice(), &VIRTUAL[RECORDS..]].concat();
        assert_eq!(host_driver(&space(&[(0xb0, &other_record_first)])), Some(driver));
    }

    #[test]
    fn a_virtual_gpu_that_does_not_name_it_is_one_all_the_same() {
        assert_eq!(
            host_driver(&space(&[(0xd0, b"\x09\x00\x05VF")])),
            Some(HostDriver::default())
        );
        assert_eq!(
            host_driver(&space(&[(0xd0, b"\x09\x00\x09VF\x07\x00\x07\x00")])),
            Some(HostDriver::default())
        );
    }

    #[test]
    fn everything_else_is_no_virtual_gpu() {
        assert_eq!(host_driver(&space(&[(0xd0, b"\x09\x00\x14\x01\x00")])), None);
        assert_eq!(
            host_driver(&space(&[(0x60, &[0x01, 0x60])])),
            None,
            "a list that runs in a circle"
        );
        assert_eq!(
            host_driver(&space(&[(0xd0, VIRTUAL)])[..64]),
            None,
            "the rest may not be read"
        );
        assert_eq!(host_driver(&[]), None);
        let cut_off = space(&[(0xf8, b"\x09\x00\x1bVF")]);
        assert_eq!(host_driver(&cut_off), None);
    }

    #[test]
    fn the_machines_name_becomes_a_label_value() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(read(host.path(), &[]), MachineInfo::default());
        let path = host.path().join(PRODUCT_NAME);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "NVIDIA DGX-2H (rev. 1)\n").unwrap();
        assert_eq!(read(host.path(), &[]).product.as_deref(), Some("NVIDIA-DGX-2H-rev.-1"));
    }

    proptest::proptest! {
        #[test]
        fn no_configuration_space_is_a_reason_to_fail(bytes in proptest::collection::vec(0_u8.., 0..300)) {
            _ = host_driver(&bytes);
            let mut listed = bytes;
            listed.resize(SPACE, 9);
            listed[STATUS] = HAS_CAPABILITIES;
            _ = host_driver(&listed);
        }
    }
}
