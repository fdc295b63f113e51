//! One GPU of a node, with everything about it that never changes.

use sha2::{Digest, Sha256};

use crate::{Board, GpuInstance, PcieLevel};

/// The far end of an `NVLink`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvLinkEnd {
    /// Another GPU of the node.
    Gpu {
        /// Its index.
        index: u32,
    },
    /// An `NVSwitch`.
    Switch {
        /// Its PCI address, `0000:c4:00.0`.
        pci_bus_id: String,
    },
}

/// One active `NVLink` port of a GPU; its number is its place in [`Gpu::links`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvLink {
    /// `NVLink` generation.
    pub version: u32,
    /// Other end of the link.
    pub remote: NvLinkEnd,
}

/// One GPU of a simulated node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// Product data.
    pub board: &'static Board,
    /// `GPU-` and five groups of hexadecimal digits; different on every node.
    pub uuid: String,
    /// NVML name of the board.
    pub name: String,
    /// Minor number of `/dev/nvidiaN`.
    pub minor: u32,
    /// PCI address as in sysfs, `0000:07:00.0`.
    pub pci_bus_id: String,
    /// PCI device id; the vendor is 0x10de.
    pub pci_device_id: u16,
    /// NUMA node of the PCI slot.
    pub numa_node: i32,
    /// Total memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability.
    pub compute_capability: (u32, u32),
    /// Board serial number.
    pub serial: String,
    /// Active `NVLinks` by port number.
    pub links: Vec<NvLink>,
    /// Level of the `PCIe` path to each GPU of the node, by index; `Internal` to itself.
    pub pcie_levels: Vec<PcieLevel>,
    /// Its MIG instances by id; none while MIG is off.
    pub mig: Option<Vec<GpuInstance>>,
    /// UUID and clique of the `NVLink` fabric; all zero where it ends at the node. Boards without a fabric do not tell.
    pub fabric: (u128, u32),
}

/// A UUID in NVIDIA's form from a node's name and a GPU index.
pub(crate) fn uuid(node: &str, index: u32) -> String {
    in_groups("GPU", &identity(node, index))
}

/// A UUID in the form of MIG devices: stable for a GPU instance, a compute instance and what they are called.
pub(crate) fn mig_uuid(node: &str, index: u32, (gpu_instance, compute_instance): (u32, u32), profile: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(identity(node, index));
    hash.update(gpu_instance.to_le_bytes());
    hash.update(compute_instance.to_le_bytes());
    hash.update(profile.as_bytes());
    in_groups("MIG", &hash.finalize())
}

fn in_groups(prefix: &str, bytes: &[u8]) -> String {
    let mut uuid = prefix.to_owned();
    for (at, byte) in bytes.iter().take(16).enumerate() {
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            uuid.push('-');
        }
        uuid.push(hex_digit(byte >> 4));
        uuid.push(hex_digit(byte & 0xf));
    }
    uuid
}

fn hex_digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or_default()
}

/// A 13 digit serial number, as printed on data centre boards.
pub(crate) fn serial(node: &str, index: u32) -> String {
    let number = identity(node, index)
        .iter()
        .skip(16)
        .take(8)
        .fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    format!("1{:012}", number % 1_000_000_000_000)
}

fn identity(node: &str, index: u32) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(node.as_bytes());
    // No node name can run into the index: a name has no NUL.
    hash.update([0]);
    hash.update(index.to_le_bytes());
    hash.finalize().to_vec()
}
