//! Which GPUs are offered under which resource name, and by which device ids.

use crate::{Gpu, Inventory, MigMode};
use globset::{Glob, GlobMatcher};
use gpunode_config::{AgentConfig, DeviceSelector};

/// Largest device list in bytes: gRPC's default receive limit, which the kubelet does not raise.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Between a UUID and the number of a replica, as in NVIDIA's device plugin.
const REPLICA_SEPARATOR: &str = "::";

/// Why a configuration cannot be put in force with the GPUs of this node.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The kubelet would refuse the device list.
    #[error(
        "offer {resource}: the list of {devices} devices takes {bytes} bytes, more than the {MAX_LIST_BYTES} that a \
         kubelet receives; lower sharing.replicas"
    )]
    ListTooLong {
        /// The resource.
        resource: String,
        /// Devices in its list.
        devices: usize,
        /// Size of the list.
        bytes: usize,
    },
    /// A glob that the loader let through cannot be compiled.
    #[error("offer {resource}: devices.products: {reason}")]
    Glob {
        /// The resource.
        resource: String,
        /// What is wrong with the glob.
        reason: String,
    },
}

/// One extended resource and the GPUs behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// Name of the extended resource.
    pub name: String,
    /// The GPUs, ordered by index.
    pub gpus: Vec<ResourceGpu>,
    /// How often each GPU is offered; 1 when it is not shared.
    pub replicas: u32,
    /// Whether a container that asks for more than one replica is refused.
    pub fail_requests_greater_than_one: bool,
}

/// What an allocation has to know of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceGpu {
    /// NVML index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// The N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// NUMA node of the slot.
    pub numa_node: Option<u32>,
}

/// One device of a resource's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    /// The GPU's UUID, with `::N` behind it when the GPU is shared.
    pub id: String,
    /// NUMA node of the GPU.
    pub numa_node: Option<u32>,
}

/// The resources of a node, in the order of the configuration; those that select no GPU are left out.
///
/// A GPU belongs to the first entry that selects it. A GPU with MIG enabled belongs to none: as a whole it cannot run
/// anything.
pub fn resources(inventory: &Inventory, config: &AgentConfig) -> Result<Vec<Resource>, Error> {
    let mut left: Vec<&Gpu> = inventory.gpus.iter().filter(|gpu| gpu.mig_mode != Some(MigMode::Enabled)).collect();
    let mut resources = Vec::new();
    for entry in config.effective_resources() {
        let globs = product_globs(&entry.name, entry.devices.as_ref())?;
        let (taken, rest) = left.into_iter().partition(|gpu| selects(entry.devices.as_ref(), &globs, gpu));
        left = rest;
        let taken: Vec<&Gpu> = taken;
        if taken.is_empty() {
            continue;
        }
        let resource = Resource {
            replicas: u32::try_from(entry.sharing.as_ref().and_then(|sharing| sharing.replicas).unwrap_or(1))
                .unwrap_or(1),
            fail_requests_greater_than_one: entry.fail_requests_greater_than_one(),
            gpus: taken.iter().map(|gpu| ResourceGpu::of(gpu)).collect(),
            name: entry.name,
        };
        let bytes = resource.list_bytes();
        if bytes > MAX_LIST_BYTES {
            return Err(Error::ListTooLong { devices: resource.len(), resource: resource.name, bytes });
        }
        resources.push(resource);
    }
    Ok(resources)
}

fn product_globs(resource: &str, devices: Option<&DeviceSelector>) -> Result<Vec<GlobMatcher>, Error> {
    let globs = devices.and_then(|devices| devices.products.as_deref()).unwrap_or_default();
    globs
        .iter()
        .map(|glob| Glob::new(glob).map(|glob| glob.compile_matcher()))
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Glob { resource: resource.to_owned(), reason: error.to_string() })
}

fn selects(devices: Option<&DeviceSelector>, globs: &[GlobMatcher], gpu: &Gpu) -> bool {
    let Some(devices) = devices else { return true };
    let index = devices.indices.as_ref().is_none_or(|wanted| wanted.iter().any(|i| u32::try_from(*i) == Ok(gpu.index)));
    let uuid = devices.uuids.as_ref().is_none_or(|wanted| wanted.contains(&gpu.uuid));
    let product = gpu.product();
    let product = devices.products.is_none() || globs.iter().any(|glob| glob.is_match(&product));
    index && uuid && product
}

impl Resource {
    /// How many devices its list has.
    pub fn len(&self) -> usize {
        self.gpus.len().saturating_mul(self.replicas as usize)
    }

    /// Whether it has no device.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its devices: replica 0 of each GPU, then replica 1, so that a reader of the first few sees different GPUs.
    pub fn devices(&self) -> impl Iterator<Item = ListedDevice> {
        (0..self.replicas).flat_map(move |replica| {
            self.gpus.iter().map(move |gpu| ListedDevice { id: self.id(gpu, replica), numa_node: gpu.numa_node })
        })
    }

    /// The GPU behind a device id; none for an id that is not in the list.
    pub fn gpu(&self, id: &str) -> Option<&ResourceGpu> {
        self.place(id).and_then(|(at, _)| self.gpus.get(at))
    }

    /// Where the GPU of a device id is in `gpus`, and the number of the replica.
    pub(crate) fn place(&self, id: &str) -> Option<(usize, u32)> {
        let (uuid, replica) = match id.split_once(REPLICA_SEPARATOR) {
            Some((uuid, number)) => (uuid, number.parse().ok()?),
            None => (id, 0),
        };
        let at = self.gpus.iter().position(|gpu| gpu.uuid == uuid)?;
        let known = replica < self.replicas && self.gpus.get(at).is_some_and(|gpu| self.id(gpu, replica) == id);
        known.then_some((at, replica))
    }

    fn id(&self, gpu: &ResourceGpu, replica: u32) -> String {
        if self.replicas == 1 { gpu.uuid.clone() } else { format!("{}{REPLICA_SEPARATOR}{replica}", gpu.uuid) }
    }

    /// Upper bound of the encoded `ListAndWatchResponse`.
    fn list_bytes(&self) -> usize {
        // Tag and length of the device (4), of the id (2), of the health with its longest value (2 + 9), of the
        // topology with one node and its number (2 + 2 + 11).
        const AROUND_ID: usize = 4 + 2 + 11 + 15;
        const LONGEST_REPLICA: usize = REPLICA_SEPARATOR.len() + 10;
        let ids: usize = self.gpus.iter().map(|gpu| gpu.uuid.len() + LONGEST_REPLICA + AROUND_ID).sum();
        ids.saturating_mul(self.replicas as usize)
    }
}

impl ResourceGpu {
    fn of(gpu: &Gpu) -> Self {
        Self { index: gpu.index, uuid: gpu.uuid.clone(), minor: gpu.minor, numa_node: gpu.numa_node }
    }
}
