//! The links of one node's GPUs, who holds them, and the answer to a request. Pure.

use super::{
    links::{self, LinkedGpu},
    request::{self, RequestAnswer},
};
use gpunode_crds::{GpuNode, GpuNodeStatus, Holder};
use kube::ResourceExt;
use serde::Serialize;

/// The GPUs of one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopology {
    pub node: String,
    pub gpus: Vec<LinkedGpu>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<CompanionTopology>,
    /// Indices of missing GPUs, whose links are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<u32>,
    /// True where the agent lists only some holders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestAnswer>,
}

/// A companion with its NUMA node and holders.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CompanionTopology {
    pub resource: String,
    pub device: String,
    /// Its files.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    pub holders: Vec<Holder>,
}

fn companions(status: &GpuNodeStatus) -> Vec<CompanionTopology> {
    let resources = status.resources.iter().filter(|resource| resource.companion);
    let devices = resources.flat_map(|resource| resource.devices.iter().map(move |device| (resource, device)));
    let placed = devices.map(|(resource, device)| CompanionTopology {
        resource: resource.name.clone(),
        device: device.device.clone(),
        name: device.name.clone().unwrap_or_else(|| device.device.clone()),
        numa_node: device.numa_node,
        holders: status
            .holders
            .iter()
            .filter(|holder| holder.device == device.device)
            .cloned()
            .collect(),
    });
    placed.collect()
}

/// Collects links and holders from a GpuNode, and answers a request.
pub fn topology(gpu_node: &GpuNode, request: Option<u32>, resource: Option<&str>) -> anyhow::Result<NodeTopology> {
    let status = gpu_node.status.clone().unwrap_or_default();
    let missing = status
        .gpus
        .iter()
        .filter(|gpu| gpu.missing_since.is_some())
        .map(|gpu| gpu.index)
        .collect();
    Ok(NodeTopology {
        node: gpu_node.name_any(),
        gpus: links::gpus(&status),
        companions: companions(&status),
        missing,
        holders_truncated: status.holders_truncated,
        request: request
            .map(|size| request::answer(gpu_node, &status, resource, size))
            .transpose()?,
    })
}
