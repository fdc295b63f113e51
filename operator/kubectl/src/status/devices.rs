//! The GPUs and MIG devices of a node, what they are offered as, and who holds them. Pure.

use super::amount::HeldAmount;
use gpunode_crds::{
    AdvertisedDevice, DeviceHealth, GpuDevice, GpuNode, GpuNodeStatus, HealthState, Holder, MpsDaemonState,
    SharingStrategy, WaitingDevice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// One device that containers can be given, or were.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSummary {
    /// NVML index of the GPU; none for a device that is held and is not there any more.
    pub gpu: Option<i32>,
    pub uuid: String,
    /// Product of a GPU, or profile and instances of a MIG device.
    pub hardware: String,
    /// Its memory; 0 for a device that is not there.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: i64,
    pub state: DeviceAvailability,
    /// Since when its GPU has not been seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<Time>,
    /// What is wrong with it, or with its GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<DeviceHealth>,
    /// The resource that it is offered as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// How it is shared there; nothing where it is given out whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingStrategy>,
    /// Its shares in the list of that resource; none where it is not offered.
    pub shares: i32,
    /// Those of them that are healthy.
    pub healthy: i32,
    /// Which containers hold how much of it.
    pub holders: Vec<Holder>,
    /// It changes when they are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_daemon: Option<MpsDaemonState>,
}

/// What is the matter with a device; of several, the first that needs somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceAvailability {
    /// It is not in the node any more.
    Gone,
    /// Its GPU has not been seen for less than 15 minutes, or the driver does not answer.
    Missing,
    /// Nothing of it is given out before its MPS control daemon answers.
    NoMpsDaemon,
    /// It changes when its holders are gone.
    Waits,
    /// The kubelet was told not to give out anything of it.
    Unhealthy,
    /// Somebody holds a share of it.
    Held,
    /// Its free shares are withheld until something is freed.
    Withheld,
    /// Nobody holds a share of it.
    Free,
    /// No resource has it.
    NotOffered,
}

impl DeviceAvailability {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Missing => "missing",
            Self::NoMpsDaemon => "no MPS daemon",
            Self::Waits => "waits",
            Self::Unhealthy => "unhealthy",
            Self::Held => "held",
            Self::Withheld => "withheld",
            Self::Free => "free",
            Self::NotOffered => "not offered",
        }
    }
}

impl DeviceSummary {
    /// The devices of a node by index; of a GPU with MIG devices only those, or only the GPU, where nothing is to be said of
    /// the other.
    pub fn all(gpu_node: &GpuNode) -> Vec<Self> {
        let Some(status) = &gpu_node.status else {
            return Vec::new();
        };
        let mut devices: Vec<Self> = status.gpus.iter().flat_map(|gpu| of_gpu(status, gpu)).collect();
        let named = status.holders.iter().map(|holder| &holder.device);
        let named = named.chain(status.waiting.iter().map(|waiting| &waiting.device));
        for uuid in named.chain(status.mps_daemons.iter().map(|daemon| &daemon.device)) {
            if !devices.iter().any(|device| device.uuid == *uuid) {
                devices.push(device(status, None, uuid, uuid.clone(), 0));
            }
        }
        devices
    }

    /// How many of its shares containers hold, of the resource that it is offered as.
    pub fn held(&self) -> i64 {
        let of_it = self
            .holders
            .iter()
            .filter(|holder| Some(&holder.resource) == self.resource.as_ref());
        of_it.map(|holder| i64::from(holder.count)).sum()
    }

    /// Its shares, and those that are held; nothing where it is not offered.
    pub fn in_use(&self) -> Option<HeldAmount> {
        let is_there = self.gpu.is_some() && self.resource.is_some();
        is_there.then(|| HeldAmount {
            held: self.held(),
            total: i64::from(self.shares),
        })
    }

    /// Whether it is a part of a GPU.
    pub fn is_mig(&self) -> bool {
        self.uuid.starts_with("MIG-")
    }

    /// As people call it.
    pub fn name(&self) -> String {
        match self.gpu {
            Some(gpu) if self.is_mig() => format!("GPU {gpu} {}", self.hardware),
            Some(gpu) => format!("GPU {gpu}"),
            None => self.uuid.clone(),
        }
    }

    fn is_worth_a_word(&self) -> bool {
        self.state != DeviceAvailability::NotOffered
    }
}

fn of_gpu(status: &GpuNodeStatus, gpu: &GpuDevice) -> Vec<DeviceSummary> {
    let whole = device(status, Some(gpu), &gpu.uuid, gpu.product.clone(), gpu.memory_mib);
    let parts = gpu.mig_devices.iter().map(|mig| {
        let hardware = format!("{} ({}/{})", mig.profile, mig.gpu_instance, mig.compute_instance);
        device(status, Some(gpu), &mig.uuid, hardware, mig.memory_mib)
    });
    let is_whole = whole.is_worth_a_word();
    let parts = parts.filter(|part| !is_whole || part.is_worth_a_word());
    let whole = Some(&whole).filter(|_| is_whole || gpu.mig_devices.is_empty());
    whole.cloned().into_iter().chain(parts).collect()
}

/// `gpu` is the one that it is, or is a part of.
fn device(
    status: &GpuNodeStatus,
    gpu: Option<&GpuDevice>,
    uuid: &str,
    hardware: String,
    memory_mib: i64,
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
    let told = [
        part.and_then(|part| part.health.as_ref()),
        gpu.and_then(|gpu| gpu.health.as_ref()),
    ];
    let fault = told
        .into_iter()
        .flatten()
        .find(|health| health.state == HealthState::Unhealthy)
        .cloned();
    let offered = status.resources.iter().find_map(|resource| {
        let device = resource.devices.iter().find(|device| device.device == uuid)?;
        Some((resource, device))
    });
    let state = match offered {
        _ if gpu.is_none() => DeviceAvailability::Gone,
        _ if missing_since.is_some() => DeviceAvailability::Missing,
        _ if fault.is_some() => DeviceAvailability::Unhealthy,
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
