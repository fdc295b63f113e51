//! The GPUs of a node and their links. Pure.

use gpunode_crds::{GpuDevice, GpuNodeStatus, Holder, LinkLevel, MigDevice, MigStatus};
use gpunode_gpu::PairScores;
use gpunode_plan::inventory;
use serde::Serialize;

/// One GPU with its links.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkedGpu {
    pub index: u32,
    pub uuid: String,
    pub product: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    pub links: Vec<PairLink>,
    /// Containers that hold the GPU or one of its MIG devices.
    pub holders: Vec<Holder>,
    /// Progress towards the MIG layout of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_devices: Vec<MigDevice>,
}

/// The link to another GPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PairLink {
    pub peer: u32,
    pub level: LinkLevel,
    /// Active NVLinks, directly or through NVSwitch.
    pub nvlinks: u32,
    /// Score of the pair when GPUs are chosen.
    pub score: u32,
}

/// Returns the GPUs that are not missing, by index.
pub fn gpus(status: &GpuNodeStatus) -> Vec<LinkedGpu> {
    let scores = PairScores::new(&inventory(status));
    let there: Vec<&GpuDevice> = status.gpus.iter().filter(|gpu| gpu.missing_since.is_none()).collect();
    let place = |index: u32| {
        there
            .iter()
            .find(|gpu| gpu.index == index)
            .and_then(|gpu| scores.place(&gpu.uuid))
    };
    let link = |from: &GpuDevice, link: &gpunode_crds::GpuLink| {
        let pair = place(from.index).zip(place(link.peer));
        Some(PairLink {
            peer: link.peer,
            level: link.level,
            nvlinks: link.nvlinks.unwrap_or_default(),
            score: pair.map(|(one, other)| scores.pair(one, other))?,
        })
    };
    let gpu = |gpu: &&GpuDevice| LinkedGpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        product: gpu.product.clone(),
        numa_node: gpu.numa_node,
        links: gpu.links.iter().filter_map(|to| link(gpu, to)).collect(),
        holders: status
            .holders
            .iter()
            .filter(|holder| is_part(gpu, &holder.device))
            .cloned()
            .collect(),
        mig: gpu.mig.clone(),
        mig_devices: gpu.mig_devices.clone(),
    };
    there.iter().map(gpu).collect()
}

/// Returns true where a device is the GPU or one of its MIG devices.
pub fn is_part(gpu: &GpuDevice, device: &str) -> bool {
    gpu.uuid == device || gpu.mig_devices.iter().any(|mig| mig.uuid == device)
}

/// Returns the symbol of `nvidia-smi topo -m`.
pub fn symbol(link: &PairLink) -> String {
    if link.nvlinks > 0 {
        format!("NV{}", link.nvlinks)
    } else {
        level(link.level).to_owned()
    }
}

/// Returns the abbreviation of `nvidia-smi`; `?` where the driver does not report the level.
pub fn level(level: LinkLevel) -> &'static str {
    match level {
        LinkLevel::Internal => "PSB",
        LinkLevel::Pix => "PIX",
        LinkLevel::Pxb => "PXB",
        LinkLevel::Phb => "PHB",
        LinkLevel::Node => "NODE",
        LinkLevel::Sys => "SYS",
        LinkLevel::Unknown => "?",
    }
}
