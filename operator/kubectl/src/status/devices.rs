//! The GPUs and MIG devices of a node, their resources and their holders. Pure.

use super::amount::HeldAmount;
use gpunode_crds::{
    AdvertisedDevice, ConditionType, DeviceHealth, GpuDevice, GpuNode, GpuNodeStatus, HealthState, Holder,
    MpsDaemonState, Reason, SharingStrategy, WaitingDevice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// A device that containers can hold, or still hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSummary {
    /// NVML index of the GPU; none for a companion, and for a held device that no longer exists.
    pub gpu: Option<u32>,
    pub uuid: String,
    /// Product of a GPU, profile and instances of a MIG device, or files of a companion.
    pub hardware: String,
    /// Memory in MiB; 0 for a companion, and for a device that no longer exists.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// True for a companion.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub companion: bool,
    pub state: DeviceAvailability,
    /// Time at which its GPU was last seen; none while it is seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<Time>,
    /// Fault of the device, or of its GPU; also one that leaves it healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<DeviceHealth>,
    /// Resource that advertises it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Sharing within that resource; none for a whole device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingStrategy>,
    /// Shares in that resource; 0 where it is not advertised.
    pub shares: i32,
    /// Healthy shares.
    pub healthy: i32,
    /// Containers that hold shares of it.
    pub holders: Vec<Holder>,
    /// The change that waits until its holders end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_daemon: Option<MpsDaemonState>,
}

/// Availability of a device. Where several states apply, the first one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceAvailability {
    /// No longer in the node; of a companion, its file.
    Gone,
    /// Its GPU was not seen for less than 15 minutes, or the driver is missing or fails.
    Missing,
    /// The agents of the node have released its GPUs, as a label requests.
    Released,
    /// Faulty. Also the state of a device that the kubelet sees as unhealthy for none of the reasons below.
    Unhealthy,
    /// Not allocated before its MPS control daemon answers.
    NoMpsDaemon,
    /// Changes when its holders end.
    Waits,
    /// At least one share is held.
    Held,
    /// Its free shares are withheld until a share is freed.
    Withheld,
    /// No share is held.
    Free,
    /// No resource advertises it.
    NotOffered,
}

impl DeviceAvailability {
    /// Returns the text of the STATE column.
    pub fn text(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Missing => "missing",
            Self::Released => "released",
            Self::NoMpsDaemon => "no MPS daemon",
            Self::Waits => "waiting",
            Self::Unhealthy => "unhealthy",
            Self::Held => "held",
            Self::Withheld => "withheld",
            Self::Free => "free",
            Self::NotOffered => "not advertised",
        }
    }
}

impl DeviceSummary {
    /// Returns the devices of a node by index. A GPU with MIG devices appears as the GPU, as the MIG devices, or as both where
    /// both are in use.
    pub fn all(gpu_node: &GpuNode) -> Vec<Self> {
        let Some(status) = &gpu_node.status else {
            return Vec::new();
        };
        let mut devices: Vec<Self> = status.gpus.iter().flat_map(|gpu| of_gpu(status, gpu)).collect();
        devices.extend(companions(status));
        let named = status.holders.iter().map(|holder| &holder.device);
        let named = named.chain(status.waiting.iter().map(|waiting| &waiting.device));
        for uuid in named.chain(status.mps_daemons.iter().map(|daemon| &daemon.device)) {
            if !devices.iter().any(|device| device.uuid == *uuid) {
                devices.push(device(status, None, uuid, uuid.clone(), 0));
            }
        }
        devices
    }

    /// Counts the shares that containers hold of its resource.
    pub fn held(&self) -> i64 {
        let of_it = self
            .holders
            .iter()
            .filter(|holder| Some(&holder.resource) == self.resource.as_ref());
        of_it.map(|holder| i64::from(holder.count)).sum()
    }

    /// Returns its held and total shares; none where it is not advertised.
    pub fn in_use(&self) -> Option<HeldAmount> {
        let is_there = (self.gpu.is_some() || self.companion) && self.resource.is_some();
        is_there.then(|| HeldAmount {
            held: self.held(),
            total: i64::from(self.shares),
        })
    }

    /// Returns true for a MIG device.
    pub fn is_mig(&self) -> bool {
        self.uuid.starts_with("MIG-")
    }

    /// Returns the name for people, such as `GPU 1`.
    pub fn name(&self) -> String {
        match self.gpu {
            Some(gpu) if self.is_mig() => format!("GPU {gpu} {}", self.hardware),
            Some(gpu) => format!("GPU {gpu}"),
            None if self.companion => self.hardware.clone(),
            None => self.uuid.clone(),
        }
    }

    fn is_relevant(&self) -> bool {
        self.state != DeviceAvailability::NotOffered
    }
}

fn of_gpu(status: &GpuNodeStatus, gpu: &GpuDevice) -> Vec<DeviceSummary> {
    let whole = device(status, Some(gpu), &gpu.uuid, gpu.product.clone(), gpu.memory_mib);
    let parts = gpu.mig_devices.iter().map(|mig| {
        let hardware = format!("{} ({}/{})", mig.profile, mig.gpu_instance, mig.compute_instance);
        device(status, Some(gpu), &mig.uuid, hardware, mig.memory_mib)
    });
    let is_whole = whole.is_relevant();
    let parts = parts.filter(|part| !is_whole || part.is_relevant());
    let whole = Some(&whole).filter(|_| is_whole || gpu.mig_devices.is_empty());
    whole.cloned().into_iter().chain(parts).collect()
}

/// Returns the devices of companions, by resource. One without a healthy share has no file.
fn companions(status: &GpuNodeStatus) -> impl Iterator<Item = DeviceSummary> {
    let resources = status.resources.iter().filter(|resource| resource.companion);
    let devices = resources.flat_map(|resource| &resource.devices);
    devices.map(|advertised| {
        let files = advertised.name.clone().unwrap_or_else(|| advertised.device.clone());
        let mut summary = device(status, None, &advertised.device, files, 0);
        summary.companion = true;
        summary.state = match (&summary.waiting, advertised.healthy) {
            (Some(_), _) => DeviceAvailability::Waits,
            (None, 0) => DeviceAvailability::Gone,
            (None, _) if summary.holders.is_empty() => DeviceAvailability::Free,
            (None, _) => DeviceAvailability::Held,
        };
        summary
    })
}

/// Summarises one device; `gpu` is the device itself or the GPU that it is a part of.
fn device(
    status: &GpuNodeStatus,
    gpu: Option<&GpuDevice>,
    uuid: &str,
    hardware: String,
    memory_mib: u64,
) -> DeviceSummary {
    let missing_since = gpu.and_then(|gpu| gpu.missing_since.clone());
    let holders: Vec<Holder> = status
        .holders
        .iter()
        .filter(|holder| holder.device == uuid)
        .cloned()
        .collect();
    let waiting = status.waiting.iter().find(|waiting| waiting.device == uuid).cloned();
    let mps_daemon = status
        .mps_daemons
        .iter()
        .find(|daemon| daemon.device == uuid)
        .map(|daemon| daemon.state);
    let part = gpu.and_then(|gpu| gpu.mig_devices.iter().find(|mig| mig.uuid == uuid));
    let healths = [
        part.and_then(|part| part.health.as_ref()),
        gpu.and_then(|gpu| gpu.health.as_ref()),
    ];
    let healths = || healths.into_iter().flatten();
    let is_unhealthy = |health: &&DeviceHealth| health.state == HealthState::Unhealthy;
    let degraded = || healths().find(|health| health.grade.is_some());
    let fault = healths().find(is_unhealthy).or_else(degraded).cloned();
    let offered = status.resources.iter().find_map(|resource| {
        let device = resource.devices.iter().find(|device| device.device == uuid)?;
        Some((resource, device))
    });
    let state = match offered {
        _ if gpu.is_none() => DeviceAvailability::Gone,
        _ if missing_since.is_some() => DeviceAvailability::Missing,
        _ if is_released(status) => DeviceAvailability::Released,
        _ if fault.as_ref().is_some_and(|fault| is_unhealthy(&fault)) => DeviceAvailability::Unhealthy,
        _ if mps_daemon == Some(MpsDaemonState::NotAnswering) => DeviceAvailability::NoMpsDaemon,
        _ if waiting.is_some() => DeviceAvailability::Waits,
        Some((resource, AdvertisedDevice { healthy: 0, .. }))
            if resource.withheld.is_none() || mps_daemon == Some(MpsDaemonState::Stopping) =>
        {
            DeviceAvailability::Unhealthy
        }
        _ if !holders.is_empty() => DeviceAvailability::Held,
        Some((_, AdvertisedDevice { healthy: 0, .. })) => DeviceAvailability::Withheld,
        Some(_) => DeviceAvailability::Free,
        None => DeviceAvailability::NotOffered,
    };
    DeviceSummary {
        gpu: gpu.map(|gpu| gpu.index),
        uuid: uuid.to_owned(),
        hardware,
        memory_mib,
        companion: false,
        state,
        missing_since,
        fault,
        sharing: offered.and_then(|(resource, _)| resource.sharing),
        resource: offered.map(|(resource, _)| resource.name.clone()),
        shares: offered.map(|(_, device)| device.shares).unwrap_or_default(),
        healthy: offered.map(|(_, device)| device.healthy).unwrap_or_default(),
        holders,
        waiting,
        mps_daemon,
    }
}

/// Returns true if the agent has let go of the driver, as a label of the node requests.
fn is_released(status: &GpuNodeStatus) -> bool {
    let driver = ConditionType::DriverAvailable.find(&status.conditions);
    driver.is_some_and(|condition| condition.reason == Reason::Released.as_str())
}
