//! Environment, mounts and device nodes of a container with devices. Pure, except for [`HostDeviceNodes::of_host`].

use crate::{
    devices::injection::InjectionRules,
    driver::{device_roots::DeviceRoots, hardware_probe::DriverRoots},
    kubelet::device_plugin_api::{ContainerAllocateResponse, DeviceSpec, Mount},
    mps::folder_path,
};
use gpunode_gpu::{AllocatedDevices, Device, DeviceSharing};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

/// Device nodes that belong to no single GPU.
const CONTROL_NODES: [&str; 4] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
];

/// Path of an IMEX channel's device node before its number.
const IMEX_NODE: &str = "/dev/nvidia-caps-imex-channels/channel";

/// Device nodes of the host for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDeviceNodes {
    /// The [`CONTROL_NODES`] that exist.
    control: Vec<String>,
    /// Numbers of the IMEX channels that exist.
    channels: Vec<u32>,
    /// Paths on the host of the nodes that do not have there the path that they have in containers.
    elsewhere: BTreeMap<String, String>,
}

/// Inputs of a response beside the devices.
#[derive(Clone, Copy, Debug)]
pub struct ResponseInputs<'a> {
    /// Ways in which containers get their devices.
    pub rules: &'a InjectionRules,
    /// UUIDs of the devices in the CDI file.
    pub described: &'a BTreeSet<String>,
    /// Device nodes of the host.
    pub nodes: &'a HostDeviceNodes,
    /// Folder with the pipes of the MPS control daemons, at the same path on the host and in this container.
    pub mps_dir: &'a Path,
}

impl HostDeviceNodes {
    /// Finds the nodes that `rules` need for these devices.
    pub fn of_host(roots: &DriverRoots, rules: &InjectionRules, granted: &AllocatedDevices) -> Self {
        if !rules.pass_device_specs && rules.imex_channels.is_empty() {
            return Self::default();
        }
        let roots = DeviceRoots::of(roots);
        let exists = |node: &str| roots.find(node, Path::exists).is_some();
        let control = CONTROL_NODES.into_iter().filter(|_| rules.pass_device_specs);
        let channels = rules.imex_channels.iter().copied();
        let mut nodes = Self {
            control: control.filter(|node| exists(node)).map(str::to_owned).collect(),
            channels: channels.filter(|number| exists(&imex_node(*number))).collect(),
            elsewhere: BTreeMap::new(),
        };
        if rules.pass_device_specs {
            nodes.elsewhere = nodes
                .paths(granted)
                .into_iter()
                .filter_map(|node| {
                    let host = roots.find(&node, Path::exists)?;
                    (host != Path::new(&node)).then(|| (node, host.display().to_string()))
                })
                .collect();
        }
        nodes
    }

    /// Returns the path in containers of each node, once: MIG devices of one GPU share its node.
    fn paths(&self, granted: &AllocatedDevices) -> Vec<String> {
        let own = granted.devices.iter().flat_map(|(device, _)| &device.device_nodes);
        let channels = self.channels.iter().map(|number| imex_node(*number));
        let mut named = BTreeSet::new();
        self.control
            .iter()
            .chain(own)
            .cloned()
            .chain(channels)
            .filter(|node| named.insert(node.clone()))
            .collect()
    }

    fn specs(&self, granted: &AllocatedDevices) -> Vec<DeviceSpec> {
        let specs = self.paths(granted).into_iter().map(|node| DeviceSpec {
            host_path: self.elsewhere.get(&node).unwrap_or(&node).clone(),
            container_path: node,
            permissions: "rw".to_owned(),
        });
        specs.collect()
    }
}

fn imex_node(number: u32) -> String {
    format!("{IMEX_NODE}{number}")
}

/// Returns the answer for one container.
pub fn response(granted: &AllocatedDevices, inputs: ResponseInputs<'_>) -> ContainerAllocateResponse {
    let ResponseInputs {
        rules,
        described,
        nodes,
        mps_dir,
    } = inputs;
    let uuids: Vec<&str> = granted.devices.iter().map(|(device, _)| device.uuid.as_str()).collect();
    let mut response = rules.response(&uuids, described, &nodes.channels);
    if rules.pass_device_specs {
        response.devices = nodes.specs(granted);
    }
    // Memory and MPS shares of one container come from one device.
    if let Some((device, shares)) = granted.devices.first() {
        match granted.sharing {
            DeviceSharing::Whole | DeviceSharing::TimeSlicing { .. } => {}
            DeviceSharing::Memory { units, .. } => response.envs.extend(gpushare(device, *shares, units)),
            DeviceSharing::Mps { replicas } => {
                let folder = folder_path(mps_dir, &device.uuid);
                response.envs.extend(mps_limits(device, *shares, replicas, &folder));
                let pipe = folder.join("pipe");
                let shm = mount(&folder.join("shm"), Path::new("/dev/shm"));
                response.mounts.extend([mount(&pipe, &pipe), shm]);
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
    use crate::devices::injection::VISIBLE_DEVICES;
    use gpunode_config::{MemoryMiB, load};
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
            companions: Vec::new(),
            sharing,
        }
    }

    fn rules(document: &str) -> InjectionRules {
        InjectionRules::of(&load(document).unwrap(), None)
    }

    /// Returns the response by the variable alone, on a host with these nodes.
    fn answer(
        granted: &AllocatedDevices,
        rules: &InjectionRules,
        nodes: &HostDeviceNodes,
    ) -> ContainerAllocateResponse {
        let inputs = ResponseInputs {
            rules,
            described: &BTreeSet::new(),
            nodes,
            mps_dir: Path::new(MPS_DIR),
        };
        response(granted, inputs)
    }

    fn plain(granted: &AllocatedDevices) -> ContainerAllocateResponse {
        answer(granted, &rules("{}"), &HostDeviceNodes::default())
    }

    fn envs(granted: &AllocatedDevices) -> Vec<(String, String)> {
        let mut envs: Vec<_> = plain(granted).envs.into_iter().collect();
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
            let response = plain(&granted(sharing, &[(0, 1), (3, 2)]));
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
    fn a_board_of_unknown_memory_gets_no_limit_of_it() {
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
        let response = plain(&granted(DeviceSharing::Mps { replicas: 2 }, &[(1, 1)]));
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
    fn mps_clients_get_their_mounts_beside_those_that_name_devices() {
        let granted = granted(DeviceSharing::Mps { replicas: 2 }, &[(1, 1)]);
        let response = answer(
            &granted,
            &rules("deviceListStrategy: [VolumeMounts]"),
            &HostDeviceNodes::default(),
        );
        let paths: Vec<&str> = response
            .mounts
            .iter()
            .map(|mount| mount.container_path.as_str())
            .collect();
        assert_eq!(
            paths,
            [
                "/var/run/nvidia-container-devices/GPU-1",
                "/run/gpunode/mps/GPU-1/pipe",
                "/dev/shm"
            ]
        );
        assert!(response.envs.contains_key("CUDA_MPS_PIPE_DIRECTORY"));
    }

    #[test]
    fn device_nodes_are_named_once_with_their_paths_on_the_host() {
        let mut both = granted(DeviceSharing::Whole, &[(0, 1), (1, 1)]);
        both.devices[1].0.device_nodes = vec!["/dev/nvidia4".to_owned(), "/dev/nvidia-caps/nvidia-cap3".to_owned()];
        let (driver, host) = ("/driver/dev/nvidiactl", "/dev/nvidia-caps-imex-channels/channel0");
        let nodes = HostDeviceNodes {
            control: vec!["/dev/nvidiactl".to_owned()],
            channels: vec![0],
            elsewhere: [("/dev/nvidiactl".to_owned(), driver.to_owned())].into(),
        };
        let response = answer(&both, &rules("passDeviceSpecs: true"), &nodes);
        let paths: Vec<_> = response
            .devices
            .iter()
            .map(|node| (node.container_path.as_str(), node.host_path.as_str()))
            .collect();
        assert_eq!(
            paths,
            [
                ("/dev/nvidiactl", driver),
                ("/dev/nvidia4", "/dev/nvidia4"),
                ("/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap3"),
                (host, host),
            ]
        );
        assert!(response.devices.iter().all(|node| node.permissions == "rw"));
        assert!(answer(&both, &rules("{}"), &nodes).devices.is_empty());
    }

    #[test]
    fn only_nodes_of_the_host_that_the_rules_need_are_found() {
        let host = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = host.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        make("var/driver/dev/nvidia-uvm");
        std::os::unix::fs::symlink("/var/driver", host.path().join("driver")).unwrap();
        make("dev/nvidiactl");
        make("dev/nvidia-caps-imex-channels/channel0");
        let mut granted = granted(DeviceSharing::Whole, &[(0, 1)]);
        granted.devices[0].0.device_nodes = vec!["/dev/nvidia4".to_owned()];
        make("var/driver/dev/nvidia4");
        let find = |root: &str, document: &str| {
            let roots = DriverRoots {
                dev_root: root.into(),
                ..DriverRoots::of_host(host.path())
            };
            HostDeviceNodes::of_host(&roots, &rules(document), &granted)
        };
        let of_host = find("/", "passDeviceSpecs: true");
        assert_eq!(of_host.control, ["/dev/nvidiactl"]);
        assert!(of_host.elsewhere.is_empty());
        let of_driver = find("/driver", "passDeviceSpecs: true");
        assert_eq!(of_driver.control, ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
        let elsewhere = ["/dev/nvidia-uvm", "/dev/nvidia4"].map(|node| (node.to_owned(), format!("/driver{node}")));
        assert_eq!(of_driver.elsewhere, elsewhere.into());
        assert_eq!(find("/", "{}"), HostDeviceNodes::default());
        assert_eq!(find("/", "imexChannels: [0]").channels, [0]);
        assert_eq!(find("/driver", "imexChannels: [0]").channels, [0]);
    }
}
