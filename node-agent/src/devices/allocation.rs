//! Environment, mounts and device nodes of a container with devices. Pure, except for [`control_nodes`].

use crate::{
    kubelet::device_plugin_api::{ContainerAllocateResponse, DeviceSpec, Mount},
    mps::folder_path,
};
use gpunode_gpu::{AllocatedDevices, Device, DeviceSharing};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

/// Environment variable that tells NVIDIA's container runtime the GPUs of a container.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Device nodes that belong to no single GPU.
const CONTROL_NODES: [&str; 4] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
];

/// Returns the [`CONTROL_NODES`] that exist on the host.
pub fn control_nodes(host_root: &Path) -> Vec<String> {
    let exists = |node: &&str| host_root.join(node.trim_start_matches('/')).exists();
    CONTROL_NODES.into_iter().filter(exists).map(str::to_owned).collect()
}

/// Returns the answer for one container. With `control_nodes`, it also lists device nodes: those and the devices' own.
/// `mps_dir` has the pipes of the MPS control daemons, at the same path on the host and in this container.
pub fn response(
    granted: &AllocatedDevices,
    control_nodes: Option<&[String]>,
    mps_dir: &Path,
) -> ContainerAllocateResponse {
    let uuids: Vec<&str> = granted.devices.iter().map(|(device, _)| device.uuid.as_str()).collect();
    let mut response = ContainerAllocateResponse {
        envs: [(VISIBLE_DEVICES.to_owned(), uuids.join(","))].into(),
        devices: control_nodes
            .map(|control| device_nodes(granted, control))
            .unwrap_or_default(),
        ..ContainerAllocateResponse::default()
    };
    // Memory and MPS shares of one container come from one device.
    if let Some((device, shares)) = granted.devices.first() {
        match granted.sharing {
            DeviceSharing::Whole | DeviceSharing::TimeSlicing { .. } => {}
            DeviceSharing::Memory { units, .. } => response.envs.extend(gpushare(device, *shares, units)),
            DeviceSharing::Mps { replicas } => {
                let folder = folder_path(mps_dir, &device.uuid);
                response.envs.extend(mps_limits(device, *shares, replicas, &folder));
                let pipe = folder.join("pipe");
                response.mounts = vec![mount(&pipe, &pipe), mount(&folder.join("shm"), Path::new("/dev/shm"))];
            }
        }
    }
    response
}

/// Returns the environment variables of Aliyun's gpushare device plugin.
fn gpushare(device: &Device, shares: u32, units: u32) -> HashMap<String, String> {
    [("IDX", device.gpu), ("DEV", units), ("CONTAINER", shares)]
        .map(|(name, value)| (format!("ALIYUN_COM_GPU_MEM_{name}"), value.to_string()))
        .into()
}

/// Returns the limits that an MPS server puts on each process of the container (NVIDIA's MPS manual, "Environment
/// Variables"). The device has number 0 in its container, as the only one there. A board whose memory is unknown gets no
/// limit of it.
fn mps_limits(device: &Device, shares: u32, replicas: u32, folder: &Path) -> HashMap<String, String> {
    let (shares, replicas) = (u64::from(shares), u64::from(replicas.max(1)));
    let percentage = (100 * shares / replicas).max(1);
    let memory = u128::from(device.memory.0) * u128::from(shares) / u128::from(replicas);
    let mut limits = vec![
        ("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe").display().to_string()),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage.to_string()),
    ];
    // A limit of 0 would leave the container no memory.
    if memory > 0 {
        limits.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={memory}M")));
    }
    limits
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Returns each device node once: MIG devices of one GPU share its node.
fn device_nodes(granted: &AllocatedDevices, control: &[String]) -> Vec<DeviceSpec> {
    let own = granted.devices.iter().flat_map(|(device, _)| &device.device_nodes);
    let mut named = BTreeSet::new();
    control
        .iter()
        .chain(own)
        .filter(|node| named.insert(node.as_str()))
        .map(|node| device_spec(node))
        .collect()
}

fn device_spec(path: &str) -> DeviceSpec {
    DeviceSpec {
        container_path: path.to_owned(),
        host_path: path.to_owned(),
        permissions: "rw".to_owned(),
    }
}

fn mount(host: &Path, container: &Path) -> Mount {
    Mount {
        container_path: container.display().to_string(),
        host_path: host.display().to_string(),
        read_only: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::MemoryMiB;
    use gpunode_gpu::Gpu;

    const MPS_DIR: &str = "/run/gpunode/mps";

    fn device(index: u32) -> Device {
        let (uuid, minor) = (format!("GPU-{index}"), Some(index + 4));
        Device::full(&Gpu {
            index,
            uuid,
            minor,
            memory_mib: 16_160,
            ..Gpu::default()
        })
    }

    fn granted(sharing: DeviceSharing, shares: &[(u32, u32)]) -> AllocatedDevices {
        AllocatedDevices {
            devices: shares.iter().map(|(index, shares)| (device(*index), *shares)).collect(),
            sharing,
        }
    }

    fn envs(granted: &AllocatedDevices) -> Vec<(String, String)> {
        let mut envs: Vec<_> = response(granted, None, Path::new(MPS_DIR)).envs.into_iter().collect();
        envs.sort();
        envs
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn whole_and_time_sliced_devices_are_named_in_the_order_given() {
        for sharing in [DeviceSharing::Whole, DeviceSharing::TimeSlicing { replicas: 4 }] {
            let response = response(&granted(sharing, &[(0, 1), (3, 2)]), None, Path::new(MPS_DIR));
            assert_eq!(
                response.envs,
                [(VISIBLE_DEVICES.to_owned(), "GPU-0,GPU-3".to_owned())].into()
            );
            assert!(response.devices.is_empty() && response.mounts.is_empty());
        }
    }

    #[test]
    fn memory_units_come_with_the_variables_of_gpushare() {
        let sharing = DeviceSharing::Memory {
            unit: MemoryMiB(1024),
            units: 15,
        };
        let expected = pairs(&[
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "5"),
            ("ALIYUN_COM_GPU_MEM_DEV", "15"),
            ("ALIYUN_COM_GPU_MEM_IDX", "2"),
            (VISIBLE_DEVICES, "GPU-2"),
        ]);
        assert_eq!(envs(&granted(sharing, &[(2, 5)])), expected);
    }

    #[test]
    fn mps_shares_come_with_their_part_of_threads_and_memory() {
        let limits = |shares, replicas| {
            let envs = envs(&granted(DeviceSharing::Mps { replicas }, &[(1, shares)]));
            let value = |at: usize| envs[at].1.clone();
            assert_eq!(value(2), "/run/gpunode/mps/GPU-1/pipe");
            (value(0), value(1))
        };
        let pair = |percentage: &str, memory: &str| (percentage.to_owned(), memory.to_owned());
        assert_eq!(limits(1, 10), pair("10", "0=1616M"));
        assert_eq!(limits(2, 10), pair("20", "0=3232M"));
        assert_eq!(limits(10, 10), pair("100", "0=16160M"));
        assert_eq!(limits(1, 48), pair("2", "0=336M"));
        assert_eq!(limits(1, 200), pair("1", "0=80M"), "0 would mean no limit");
    }

    #[test]
    fn a_board_of_unknown_memory_gets_no_memory_limit() {
        let mut granted = granted(DeviceSharing::Mps { replicas: 10 }, &[(1, 1)]);
        granted.devices[0].0.memory = MemoryMiB(0);
        let names: Vec<String> = envs(&granted).into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                "CUDA_MPS_PIPE_DIRECTORY",
                VISIBLE_DEVICES
            ]
        );
    }

    #[test]
    fn mps_clients_get_the_pipe_and_the_shared_memory_of_their_daemon() {
        let response = response(
            &granted(DeviceSharing::Mps { replicas: 2 }, &[(1, 1)]),
            None,
            Path::new(MPS_DIR),
        );
        let mounts: Vec<_> = response
            .mounts
            .iter()
            .map(|mount| (mount.host_path.as_str(), mount.container_path.as_str()))
            .collect();
        let pipe = "/run/gpunode/mps/GPU-1/pipe";
        assert_eq!(mounts, [(pipe, pipe), ("/run/gpunode/mps/GPU-1/shm", "/dev/shm")]);
        assert!(response.mounts.iter().all(|mount| !mount.read_only));
    }

    #[test]
    fn device_nodes_are_named_once() {
        let control = ["/dev/nvidiactl".to_owned()];
        let mut both = granted(DeviceSharing::Whole, &[(0, 1), (1, 1)]);
        both.devices[1].0.device_nodes = vec!["/dev/nvidia4".to_owned(), "/dev/nvidia-caps/nvidia-cap3".to_owned()];
        let response = response(&both, Some(&control), Path::new(MPS_DIR));
        let nodes: Vec<_> = response.devices.iter().map(|node| node.host_path.as_str()).collect();
        assert_eq!(
            nodes,
            ["/dev/nvidiactl", "/dev/nvidia4", "/dev/nvidia-caps/nvidia-cap3"]
        );
        assert!(
            response
                .devices
                .iter()
                .all(|node| node.permissions == "rw" && node.container_path == node.host_path)
        );
    }

    #[test]
    fn only_control_nodes_of_the_host_are_named() {
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir(host.path().join("dev")).unwrap();
        std::fs::write(host.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(control_nodes(host.path()), ["/dev/nvidia-uvm"]);
    }
}
