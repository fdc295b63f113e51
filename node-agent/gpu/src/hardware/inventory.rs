//! The GPUs of a node, their MIG devices and links.

use super::{gpu_state::GpuMigState, product::product_label};
use gpunode_config::Architecture;
use gpunode_crds::{Fabric, GpuLink, GpuMode, MigDevice, MigEngines, MigMode, MigSlices};

/// The driver's view of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Version of the driver, such as `580.95.05`.
    pub driver_version: Option<String>,
    /// Newest CUDA version that the driver supports, such as `13.0`.
    pub cuda_version: Option<String>,
    /// GPUs, ordered by index.
    pub gpus: Vec<Gpu>,
}

/// One physical GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML index, as `nvidia-smi` shows it. While a lost GPU is no longer listed, each GPU keeps the index from before.
    pub index: u32,
    /// UUID, such as `GPU-0c1b5e0a-...`.
    pub uuid: String,
    /// Product name in NVML's form, such as `Tesla V100-SXM2-32GB`.
    pub name: String,
    /// Memory in MiB, rounded down; 0 if unknown.
    pub memory_mib: u64,
    /// CUDA compute capability, major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// PCI address in sysfs form, such as `0000:07:00.0`.
    pub pci_bus_id: Option<String>,
    /// PCI device in the high and vendor in the low 16 bits, such as `0x20B2_10DE`; absent if unknown.
    pub pci_device_id: Option<u32>,
    /// NUMA node of the slot; absent if unknown.
    pub numa_node: Option<u32>,
    /// The N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Use by its PCI class; absent if sysfs does not show it.
    pub mode: Option<GpuMode>,
    /// Its NVLink fabric; absent on boards without one.
    pub fabric: Option<FabricRegistration>,
    /// MIG mode; absent if the GPU has no MIG.
    pub mig_mode: Option<MigMode>,
    /// Its mode, instances and profiles; absent if the GPU has no MIG, or no configuration asks for layouts.
    pub mig_state: Option<GpuMigState>,
    /// Its MIG devices, ordered by index.
    pub mig_devices: Vec<MigInstance>,
    /// Links to the other GPUs of the node, ordered by index.
    pub links: Vec<GpuLink>,
}

/// Registration of a GPU in an NVLink fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricRegistration {
    /// True if the GPU has joined the fabric. CUDA fails with error 802 before.
    pub is_complete: bool,
    /// Place in a fabric that spans nodes.
    pub place: Option<Fabric>,
}

/// A compute instance of a GPU divided by MIG, as NVML describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigInstance {
    /// NVML's index of the MIG device within its GPU.
    pub index: u32,
    /// Its description in `GpuNode.status`, without health.
    pub facts: MigDevice,
    /// `/dev/nvidia-caps/nvidia-capN` of the GPU instance and of the compute instance.
    pub device_nodes: Vec<String>,
}

impl MigInstance {
    /// Returns the parts of the MIG device: two with the same parts are equal.
    pub(crate) fn parts(&self) -> (u64, Option<u32>, Option<MigSlices>, Option<MigEngines>) {
        let facts = &self.facts;
        (facts.memory_mib, facts.multiprocessors, facts.slices, facts.engines)
    }
}

impl Gpu {
    /// Returns the product name in label form, such as `Tesla-V100-SXM2-32GB`.
    pub fn product(&self) -> String {
        product_label(&self.name)
    }

    /// Returns true while CUDA cannot use the GPU because it has not joined its NVLink fabric. MIG devices use no fabric.
    pub fn waits_for_fabric(&self) -> bool {
        let has_joined = self.fabric.as_ref().is_none_or(|fabric| fabric.is_complete);
        !has_joined && self.mig_mode != Some(MigMode::Enabled)
    }

    /// Returns the architecture of the compute capability, as GPU feature discovery does.
    pub fn architecture(&self) -> Architecture {
        match self.compute_capability {
            Some((3, _)) => Architecture::Kepler,
            Some((5, _)) => Architecture::Maxwell,
            Some((6, _)) => Architecture::Pascal,
            Some((7, 0..5)) => Architecture::Volta,
            Some((7, _)) => Architecture::Turing,
            Some((8, 0..9)) => Architecture::Ampere,
            Some((8, _)) => Architecture::AdaLovelace,
            Some((9, _)) => Architecture::Hopper,
            Some((10 | 12, _)) => Architecture::Blackwell,
            Some((13, _)) => Architecture::Rubin,
            _ => Architecture::Unknown,
        }
    }
}

impl Inventory {
    /// Returns a summary such as `8 x Tesla-V100-SXM2-32GB`, with products in the order of their first GPU.
    pub fn summary(&self) -> String {
        let mut products: Vec<(String, usize)> = Vec::new();
        for product in self.gpus.iter().map(Gpu::product) {
            match products.iter_mut().find(|(known, _)| *known == product) {
                Some((_, count)) => *count += 1,
                None => products.push((product, 1)),
            }
        }
        let parts: Vec<String> = products
            .iter()
            .map(|(product, count)| format!("{count} x {product}"))
            .collect();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architecture_follows_the_compute_capability() {
        let architecture = |major, minor| {
            Gpu {
                compute_capability: Some((major, minor)),
                ..Gpu::default()
            }
            .architecture()
        };
        assert_eq!(architecture(7, 0), Architecture::Volta);
        assert_eq!(architecture(7, 5), Architecture::Turing);
        assert_eq!(architecture(8, 6), Architecture::Ampere);
        assert_eq!(architecture(8, 9), Architecture::AdaLovelace);
        assert_eq!(architecture(9, 0), Architecture::Hopper);
        assert_eq!(architecture(12, 0), Architecture::Blackwell);
        assert_eq!(architecture(13, 0), Architecture::Rubin);
        assert_eq!(architecture(42, 0), Architecture::Unknown);
        assert_eq!(Gpu::default().architecture(), Architecture::Unknown);
    }

    #[test]
    fn summary_counts_each_product() {
        let gpu = |name: &str| Gpu {
            name: name.to_owned(),
            ..Gpu::default()
        };
        let gpus = vec![gpu("Tesla T4"), gpu("NVIDIA L4"), gpu("Tesla T4")];
        assert_eq!(
            Inventory {
                gpus,
                ..Inventory::default()
            }
            .summary(),
            "2 x Tesla-T4, 1 x NVIDIA-L4"
        );
        assert_eq!(Inventory::default().summary(), "");
    }
}
