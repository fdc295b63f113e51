//! What a container gets with its devices: environment and device nodes. Pure.

use crate::device_plugin_api::{ContainerAllocateResponse, DeviceSpec};
use gpunode_gpu::{Resource, ResourceGpu};
use std::{collections::BTreeMap, path::Path};

/// Environment variable by which NVIDIA's container runtime learns which GPUs a container sees.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Device nodes that belong to no single GPU.
const CONTROL_NODES: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Why a request is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Nothing was asked for.
    #[error("allocate {resource}: the request names no device")]
    Empty {
        /// The resource.
        resource: String,
    },
    /// Ids that are in no list of this resource.
    #[error("allocate {resource}: unknown devices {}; they are not in the list that is in force", .ids.join(", "))]
    Unknown {
        /// The resource.
        resource: String,
        /// The ids.
        ids: Vec<String>,
    },
    /// `failRequestsGreaterThanOne`.
    #[error(
        "allocate {resource}: the container asks for {asked} replicas, and two replicas do not give twice the GPU; \
         ask for 1 (sharing.failRequestsGreaterThanOne is on)"
    )]
    MoreThanOne {
        /// The resource.
        resource: String,
        /// Devices asked for.
        asked: usize,
    },
}

/// Those of the [`CONTROL_NODES`] that the host has.
pub fn control_nodes(host_root: &Path) -> Vec<String> {
    let exists = |node: &&str| host_root.join(node.trim_start_matches('/')).exists();
    CONTROL_NODES.into_iter().filter(exists).map(str::to_owned).collect()
}

/// What one container gets for `ids`. With `control_nodes`, device nodes are named too: those and the GPUs' own.
pub fn allocate(
    resource: &Resource,
    control_nodes: Option<&[String]>,
    ids: &[String],
) -> Result<ContainerAllocateResponse, Error> {
    let name = || resource.name.clone();
    if ids.is_empty() {
        return Err(Error::Empty { resource: name() });
    }
    let unknown: Vec<String> = ids.iter().filter(|id| resource.gpu(id).is_none()).cloned().collect();
    if !unknown.is_empty() {
        return Err(Error::Unknown { resource: name(), ids: unknown });
    }
    if resource.fail_requests_greater_than_one && ids.len() > 1 {
        return Err(Error::MoreThanOne { resource: name(), asked: ids.len() });
    }
    // By index: two replicas of one GPU are one GPU, and the order does not depend on the request's.
    let gpus: BTreeMap<u32, &ResourceGpu> =
        ids.iter().filter_map(|id| resource.gpu(id)).map(|gpu| (gpu.index, gpu)).collect();
    let uuids: Vec<&str> = gpus.values().map(|gpu| gpu.uuid.as_str()).collect();
    let nodes = control_nodes.map(|control| {
        let own = gpus.values().filter_map(|gpu| gpu.minor).map(|minor| format!("/dev/nvidia{minor}"));
        control.iter().cloned().chain(own).map(device_spec).collect()
    });
    Ok(ContainerAllocateResponse {
        envs: [(VISIBLE_DEVICES.to_owned(), uuids.join(","))].into(),
        devices: nodes.unwrap_or_default(),
        ..ContainerAllocateResponse::default()
    })
}

fn device_spec(path: String) -> DeviceSpec {
    DeviceSpec { container_path: path.clone(), host_path: path, permissions: "rw".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(replicas: u32, fail_requests_greater_than_one: bool) -> Resource {
        let gpu = |index| ResourceGpu { index, uuid: format!("GPU-{index}"), minor: Some(index + 4), numa_node: None };
        Resource { name: "a.b/c".to_owned(), gpus: vec![gpu(0), gpu(1)], replicas, fail_requests_greater_than_one }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn uuids_are_distinct_and_in_the_order_of_the_index() {
        let response = allocate(&resource(2, false), None, &ids(&["GPU-1::1", "GPU-0::0", "GPU-1::0"])).unwrap();
        assert_eq!(response.envs, [(VISIBLE_DEVICES.to_owned(), "GPU-0,GPU-1".to_owned())].into());
        assert!(response.devices.is_empty());
    }

    #[test]
    fn device_nodes_are_named_once() {
        let control = ids(&["/dev/nvidiactl"]);
        let response = allocate(&resource(2, false), Some(&control), &ids(&["GPU-1::1", "GPU-1::0"])).unwrap();
        let nodes: Vec<_> = response.devices.iter().map(|node| node.host_path.as_str()).collect();
        assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia5"]);
        assert!(response.devices.iter().all(|node| node.permissions == "rw" && node.container_path == node.host_path));
    }

    #[test]
    fn only_control_nodes_of_the_host_are_named() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("dev")).unwrap();
        std::fs::write(host.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(control_nodes(host.path()), ["/dev/nvidia-uvm"]);
    }

    #[test]
    fn bad_requests_say_what_is_wrong() {
        let message =
            |resource: &Resource, wanted: &[&str]| allocate(resource, None, &ids(wanted)).unwrap_err().to_string();
        assert_eq!(
            message(&resource(1, false), &["GPU-0", "GPU-7", "GPU-1::0"]),
            "allocate a.b/c: unknown devices GPU-7, GPU-1::0; they are not in the list that is in force"
        );
        assert_eq!(message(&resource(1, false), &[]), "allocate a.b/c: the request names no device");
        let greedy = message(&resource(2, true), &["GPU-0::0", "GPU-1::0"]);
        assert!(greedy.starts_with("allocate a.b/c: the container asks for 2 replicas"), "{greedy}");
        assert!(allocate(&resource(2, true), None, &ids(&["GPU-0::0"])).is_ok());
    }
}
