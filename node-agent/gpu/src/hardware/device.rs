//! A full GPU or a MIG device: one thing that containers can get, whole or in part.

use super::inventory::{Gpu, Inventory, MigInstance};
use gpunode_config::{Architecture, MemoryMiB};

/// A full GPU or a MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// UUID, such as `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU; that of the device itself for a full GPU.
    pub gpu_uuid: String,
    /// The MIG device; none for a full GPU.
    pub mig: Option<MigInstance>,
    /// Product name of the GPU in label form.
    pub product: String,
    /// Architecture of the GPU.
    pub architecture: Architecture,
    /// CUDA compute capability, major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Memory of the device itself.
    pub memory: MemoryMiB,
    /// NUMA node of the GPU's slot.
    pub numa_node: Option<u32>,
    /// `/dev/nvidiaN` of the GPU, then the capabilities of the MIG device.
    pub device_nodes: Vec<String>,
}

impl Device {
    /// Returns a GPU as one device.
    pub fn full(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            gpu: gpu.index,
            gpu_uuid: gpu.uuid.clone(),
            mig: None,
            product: gpu.product(),
            architecture: gpu.architecture(),
            compute_capability: gpu.compute_capability,
            memory: MemoryMiB(gpu.memory_mib),
            numa_node: gpu.numa_node,
            device_nodes: gpu
                .minor
                .map(|minor| format!("/dev/nvidia{minor}"))
                .into_iter()
                .collect(),
        }
    }

    /// Returns a MIG device of `gpu`.
    pub fn mig(gpu: &Gpu, mig: &MigInstance) -> Self {
        let whole = Self::full(gpu);
        Self {
            uuid: mig.facts.uuid.clone(),
            memory: MemoryMiB(mig.facts.memory_mib),
            device_nodes: whole
                .device_nodes
                .into_iter()
                .chain(mig.device_nodes.iter().cloned())
                .collect(),
            mig: Some(mig.clone()),
            ..whole
        }
    }

    /// Returns all devices of a node: each full GPU, then its MIG devices.
    pub fn all(inventory: &Inventory) -> Vec<Self> {
        let of_gpu = |gpu: &Gpu| {
            let mig: Vec<Self> = gpu.mig_devices.iter().map(|mig| Self::mig(gpu, mig)).collect();
            std::iter::once(Self::full(gpu)).chain(mig)
        };
        inventory.gpus.iter().flat_map(of_gpu).collect()
    }

    /// Returns the index in NVIDIA's notation: `3`, or `3:1` for MIG device 1 of GPU 3.
    pub fn index(&self) -> String {
        self.mig
            .as_ref()
            .map_or_else(|| self.gpu.to_string(), |mig| format!("{}:{}", self.gpu, mig.index))
    }

    /// Returns the UUID of the GPU of a MIG device; none for a full GPU.
    pub(crate) fn part_of(&self) -> Option<String> {
        self.mig.as_ref().map(|_| self.gpu_uuid.clone())
    }

    /// Returns the sort key among the devices of its node.
    pub fn order(&self) -> (u32, Option<u32>) {
        (self.gpu, self.mig.as_ref().map(|mig| mig.index))
    }

    /// Returns true if containers cannot hold both at the same time: one is a full GPU, the other a MIG device of it.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.gpu_uuid == other.gpu_uuid && self.uuid != other.uuid && (self.mig.is_none() || other.mig.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::MigDevice;

    fn gpu() -> Gpu {
        let mig = |index: u32| MigInstance {
            index,
            facts: MigDevice {
                uuid: format!("MIG-{index}"),
                memory_mib: 9984,
                ..MigDevice::default()
            },
            device_nodes: vec![format!("/dev/nvidia-caps/nvidia-cap{index}")],
        };
        Gpu {
            index: 3,
            uuid: "GPU-3".to_owned(),
            memory_mib: 81559,
            minor: Some(5),
            mig_devices: vec![mig(0), mig(1)],
            ..Gpu::default()
        }
    }

    #[test]
    fn a_mig_device_has_its_own_memory_and_the_nodes_of_its_gpu_first() {
        let mig = Device::mig(&gpu(), &gpu().mig_devices[1]);
        assert_eq!((mig.index().as_str(), mig.memory), ("3:1", MemoryMiB(9984)));
        assert_eq!(mig.device_nodes, ["/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap1"]);
        let full = Device::full(&gpu());
        assert_eq!((full.index().as_str(), full.memory), ("3", MemoryMiB(81559)));
    }

    #[test]
    fn a_gpu_overlaps_its_own_mig_devices_and_nothing_else() {
        let other = Device::full(&Gpu {
            uuid: "GPU-4".to_owned(),
            ..gpu()
        });
        let all = Device::all(&Inventory {
            gpus: vec![gpu()],
            ..Inventory::default()
        });
        let [full, one, two] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert!(full.overlaps(one) && two.overlaps(full));
        assert!(!one.overlaps(two) && !full.overlaps(full) && !other.overlaps(one));
    }
}
