//! The GPUs and MIG devices of a node, and who holds them. Pure.

use gpunode_crds::{GpuDevice, GpuNode, GpuNodeStatus, Holder, MpsDaemonState, WaitingDevice};
use serde::Serialize;

/// One device that containers can be given, or were.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    /// NVML index of the GPU; none for a device that is held and is not there any more.
    pub gpu: Option<i32>,
    pub uuid: String,
    /// Product of a GPU, or profile and instances of a MIG device.
    pub hardware: String,
    /// Which containers hold how much of it.
    pub holders: Vec<Holder>,
    /// It changes when they are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_daemon: Option<MpsDaemonState>,
}

impl DeviceState {
    /// The devices of a node by index; of a GPU with MIG devices those, and itself only where something is to be said of it.
    pub fn all(gpu_node: &GpuNode) -> Vec<Self> {
        let Some(status) = &gpu_node.status else { return Vec::new() };
        let mut devices: Vec<Self> = status.gpus.iter().flat_map(|gpu| of_gpu(status, gpu)).collect();
        let named = status.holders.iter().map(|holder| &holder.device);
        let named = named.chain(status.waiting.iter().map(|waiting| &waiting.device));
        for uuid in named.chain(status.mps_daemons.iter().map(|daemon| &daemon.device)) {
            if !devices.iter().any(|device| device.uuid == *uuid) {
                devices.push(device(status, None, uuid, format!("gone: {uuid}")));
            }
        }
        devices
    }

    /// As people call it.
    pub fn name(&self) -> String {
        match self.gpu {
            Some(gpu) if self.uuid.starts_with("MIG-") => format!("GPU {gpu} {}", self.hardware),
            Some(gpu) => format!("GPU {gpu}"),
            None => self.uuid.clone(),
        }
    }

    fn is_worth_a_word(&self) -> bool {
        !self.holders.is_empty() || self.waiting.is_some() || self.mps_daemon.is_some()
    }
}

fn of_gpu(status: &GpuNodeStatus, gpu: &GpuDevice) -> Vec<DeviceState> {
    let whole = device(status, Some(gpu.index), &gpu.uuid, gpu.product.clone());
    let whole = Some(whole).filter(|whole| gpu.mig_devices.is_empty() || whole.is_worth_a_word());
    let parts = gpu.mig_devices.iter().map(|mig| {
        let hardware = format!("{} ({}/{})", mig.profile, mig.gpu_instance, mig.compute_instance);
        device(status, Some(gpu.index), &mig.uuid, hardware)
    });
    whole.into_iter().chain(parts).collect()
}

fn device(status: &GpuNodeStatus, gpu: Option<i32>, uuid: &str, hardware: String) -> DeviceState {
    DeviceState {
        gpu,
        uuid: uuid.to_owned(),
        hardware,
        holders: status.holders.iter().filter(|holder| holder.device == uuid).cloned().collect(),
        waiting: status.waiting.iter().find(|waiting| waiting.device == uuid).cloned(),
        mps_daemon: status.mps_daemons.iter().find(|daemon| daemon.device == uuid).map(|daemon| daemon.state),
    }
}
