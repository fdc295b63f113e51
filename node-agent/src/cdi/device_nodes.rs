//! Finds device nodes on the host.

use super::{demand::CdiOptions, driver_folder::names};
use crate::driver::{device_roots::DeviceRoots, hardware_probe::DriverRoots};
use gpunode_cdi::{CdiGpu, CdiSpec, HostFile, SymbolicLink};
use gpunode_gpu::{Device, Gpu, Inventory, MigMode};
use std::{collections::BTreeSet, fs, os::unix::fs::FileTypeExt as _, path::Path};

/// Device nodes that belong to no single GPU (`controlDeviceNodeDiscoverer` of nvidia-container-toolkit's
/// `pkg/nvcdi/common-nvml.go`).
const CONTROL: [&str; 4] = [
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
];
/// Folder and beginning of the names of the device nodes of GPUDirect Storage (`internal/discover/gds.go`).
const GDS: (&str, &str) = ("/dev", "nvidia-fs");
/// The same of RDMA network cards (`internal/discover/mofed.go`).
const MOFED: (&str, &str) = ("/dev/infiniband", "uverbs");
const RDMA_CM: &str = "/dev/infiniband/rdma_cm";
/// Device node of GDRCopy (`internal/discover/gdrcopy.go`).
const GDRCOPY: &str = "/dev/gdrdrv";
/// Beginning of the path of an IMEX channel (`pkg/nvcdi/lib-imex.go`).
const IMEX_CHANNEL: &str = "/dev/nvidia-caps-imex-channels/channel";

/// Folder of PCI functions, below the host's root.
const PCI_DEVICES: &str = "sys/bus/pci/devices";
/// Folder of graphics nodes, and the endings of links to them by PCI address.
const GRAPHICS: &str = "/dev/dri";
const GRAPHICS_LINKS: [&str; 2] = ["card", "render"];
/// Part of the name of a MIG profile that has graphics.
const MIG_GRAPHICS: &str = "gfx";
/// Device nodes of a MIG device: that of the GPU, of the GPU instance and of the compute instance.
const MIG_NODES: usize = 3;

/// Returns true for a device node of GPUDirect Storage.
pub fn is_gds_node(path: &str) -> bool {
    let (folder, start) = GDS;
    path.strip_prefix(folder)
        .and_then(|path| path.strip_prefix('/'))
        .is_some_and(|name| name.starts_with(start))
}

/// Returns the options with which a file was written, as far as its device nodes tell.
pub fn options_of(file: &CdiSpec) -> CdiOptions {
    let paths = || file.container_edits.device_nodes.iter().map(|node| node.path.as_str());
    let channel = |path: &str| path.strip_prefix(IMEX_CHANNEL)?.parse::<u32>().ok();
    CdiOptions {
        gds: paths().any(is_gds_node),
        mofed: paths().any(|path| path.starts_with(MOFED.0)),
        gdrcopy: paths().any(|path| path == GDRCOPY),
        imex_channels: paths().filter_map(channel).collect(),
    }
}

/// The device nodes of a host.
pub struct DeviceNodeFinder<'a> {
    /// Folders that have `dev`.
    pub roots: DeviceRoots,
    /// Root of the host in this container.
    pub host_root: &'a Path,
}

impl<'a> DeviceNodeFinder<'a> {
    /// Returns the device nodes of the host. Blocks.
    pub fn of(roots: &'a DriverRoots) -> Self {
        Self {
            roots: DeviceRoots::of(roots),
            host_root: &roots.host_root,
        }
    }

    /// Returns the device node at `path` of a container, if the host has it. Blocks.
    fn node(&self, path: &str) -> Option<HostFile> {
        let is_node = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_char_device());
        let host = self.roots.find(path, is_node)?;
        Some(HostFile {
            host: host.to_str()?.to_owned(),
            container: path.to_owned(),
        })
    }

    /// Returns the device nodes in a folder whose names begin with `start`, in order. Blocks.
    fn nodes(&self, (folder, start): (&str, &str)) -> Vec<HostFile> {
        let names: BTreeSet<String> = self.roots.mounted(folder).flat_map(|folder| names(&folder)).collect();
        let paths = names
            .into_iter()
            .filter(|name| name.starts_with(start))
            .map(|name| format!("{folder}/{name}"));
        paths.filter_map(|path| self.node(&path)).collect()
    }

    /// Returns the device nodes that belong to no single GPU. Blocks.
    pub fn common(&self, options: &CdiOptions) -> Vec<HostFile> {
        let channels = options.imex_channels.iter();
        let mut paths: Vec<String> = CONTROL.map(str::to_owned).into();
        paths.extend(channels.map(|channel| format!("{IMEX_CHANNEL}{channel}")));
        paths.extend(options.gdrcopy.then(|| GDRCOPY.to_owned()));
        paths.extend(options.mofed.then(|| RDMA_CM.to_owned()));
        let mut nodes: Vec<HostFile> = paths.iter().filter_map(|path| self.node(path)).collect();
        for (_, folder) in [(options.mofed, MOFED), (options.gds, GDS)]
            .iter()
            .filter(|(on, _)| *on)
        {
            nodes.append(&mut self.nodes(*folder));
        }
        nodes
    }

    /// Returns each GPU of the node and each of its MIG devices. Blocks.
    pub fn gpus(&self, inventory: &Inventory) -> Vec<CdiGpu> {
        let gpu_of = |device: &Device| inventory.gpus.iter().find(|gpu| gpu.uuid == device.gpu_uuid);
        let devices = Device::all(inventory).into_iter();
        devices
            .filter_map(|device| Some(self.gpu(gpu_of(&device)?, device)))
            .collect()
    }

    fn gpu(&self, gpu: &Gpu, device: Device) -> CdiGpu {
        let (mut nodes, mut missing) = (Vec::new(), Vec::new());
        for path in &device.device_nodes {
            match self.node(path) {
                Some(node) => nodes.push(node),
                None => missing.push(path.clone()),
            }
        }
        if device.mig.is_some() && device.device_nodes.len() < MIG_NODES {
            missing.push(
                "/dev/nvidia-caps/nvidia-capN of its instances, which /proc/driver/nvidia-caps/mig-minors lists"
                    .to_owned(),
            );
        }
        let has_graphics = device
            .mig
            .as_ref()
            .is_none_or(|mig| mig.facts.profile.contains(MIG_GRAPHICS));
        let address = gpu.pci_bus_id.as_deref().filter(|_| has_graphics);
        let graphics_nodes = address.map(|address| self.graphics_nodes(address)).unwrap_or_default();
        CdiGpu {
            uuid: device.uuid,
            nodes,
            graphics_links: address
                .map(|address| self.graphics_links(address, &graphics_nodes))
                .unwrap_or_default(),
            graphics_nodes,
            missing,
            is_divided: device.mig.is_none() && gpu.mig_mode == Some(MigMode::Enabled),
        }
    }

    /// Returns the graphics nodes of a PCI function (`internal/info/drm/drm_devices.go`).
    fn graphics_nodes(&self, address: &str) -> Vec<HostFile> {
        let folder = self.host_root.join(PCI_DEVICES).join(address).join("drm");
        let paths = names(&folder).into_iter().map(|name| format!("{GRAPHICS}/{name}"));
        paths.filter_map(|path| self.node(&path)).collect()
    }

    /// Returns the links of the host to these nodes (`internal/platform-support/dgpu/by-path-hooks.go`).
    fn graphics_links(&self, address: &str, nodes: &[HostFile]) -> Vec<SymbolicLink> {
        let link = |end: &str| {
            let path = format!("{GRAPHICS}/by-path/pci-{address}-{end}");
            let target = self.roots.mounted(&path).find_map(|path| fs::read_link(path).ok())?;
            let node = format!("{GRAPHICS}/{}", target.file_name()?.to_str()?);
            nodes.iter().find(|other| other.container == node)?;
            Some(SymbolicLink {
                target: target.to_str()?.to_owned(),
                path,
            })
        };
        GRAPHICS_LINKS.into_iter().filter_map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_cdi::{CdiDeviceNode, ContainerEdits};
    use gpunode_gpu::{MigDevice, MigInstance};
    use std::os::unix::fs::symlink;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new(nodes: &[&str]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for node in nodes {
                host.add_node(node);
            }
            host
        }

        /// A link to a device node, as only root can make one.
        fn add_node(&self, path: &str) {
            let path = self.0.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink("/dev/null", path).unwrap();
        }

        fn roots(&self, dev_root: &str) -> DriverRoots {
            DriverRoots {
                dev_root: dev_root.into(),
                ..DriverRoots::of_host(self.0.path())
            }
        }
    }

    fn paths(nodes: &[HostFile]) -> Vec<&str> {
        nodes.iter().map(|node| node.container.as_str()).collect()
    }

    fn inventory() -> Inventory {
        let mig = MigInstance {
            facts: MigDevice {
                uuid: "MIG-1".to_owned(),
                profile: "1g.10gb".to_owned(),
                ..MigDevice::default()
            },
            device_nodes: ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
                .map(str::to_owned)
                .into(),
            ..MigInstance::default()
        };
        let gpu = Gpu {
            uuid: "GPU-1".to_owned(),
            minor: Some(0),
            pci_bus_id: Some("0000:07:00.0".to_owned()),
            mig_mode: Some(MigMode::Enabled),
            mig_devices: vec![mig],
            ..Gpu::default()
        };
        Inventory {
            gpus: vec![gpu],
            ..Inventory::default()
        }
    }

    #[test]
    fn optional_nodes_come_only_with_their_option_and_where_the_host_has_them() {
        let host = Host::new(&[
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-fs0",
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/rdma_cm",
            "/dev/nvidia-caps-imex-channels/channel0",
        ]);
        fs::write(host.0.path().join("dev/gdrdrv"), "no device node").unwrap();
        let roots = host.roots("/");
        let common = |options: &CdiOptions| DeviceNodeFinder::of(&roots).common(options);
        assert_eq!(
            paths(&common(&CdiOptions::default())),
            ["/dev/nvidia-uvm", "/dev/nvidiactl"]
        );
        let all = CdiOptions {
            gds: true,
            mofed: true,
            gdrcopy: true,
            imex_channels: vec![0, 1],
        };
        assert_eq!(
            paths(&common(&all)),
            [
                "/dev/nvidia-uvm",
                "/dev/nvidiactl",
                "/dev/nvidia-caps-imex-channels/channel0",
                "/dev/infiniband/rdma_cm",
                "/dev/infiniband/uverbs0",
                "/dev/nvidia-fs0"
            ]
        );
        let node = |file: HostFile| CdiDeviceNode {
            path: file.container,
            host_path: None,
        };
        let file = CdiSpec {
            container_edits: ContainerEdits {
                device_nodes: common(&all).into_iter().map(node).collect(),
                ..ContainerEdits::default()
            },
            ..CdiSpec::default()
        };
        let on_host = CdiOptions {
            gdrcopy: false,
            imex_channels: vec![0],
            ..all
        };
        assert_eq!(options_of(&file), on_host);
        assert_eq!(options_of(&CdiSpec::default()), CdiOptions::default());
    }

    #[test]
    fn a_mig_device_has_the_nodes_of_its_gpu_and_of_its_instances() {
        let host = Host::new(&["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66"]);
        let roots = host.roots("/");
        let gpus = DeviceNodeFinder::of(&roots).gpus(&inventory());
        assert!(gpus[0].is_divided && !gpus[1].is_divided);
        assert_eq!(paths(&gpus[0].nodes), ["/dev/nvidia0"]);
        assert_eq!(gpus[1].missing, ["/dev/nvidia-caps/nvidia-cap67"]);
        host.add_node("/dev/nvidia-caps/nvidia-cap67");
        let gpus = DeviceNodeFinder::of(&roots).gpus(&inventory());
        assert_eq!(gpus[1].nodes.len(), 3);
        assert!(gpus[1].missing.is_empty());
        let mut without_minors = inventory();
        without_minors.gpus[0].mig_devices[0].device_nodes.clear();
        let gpus = DeviceNodeFinder::of(&roots).gpus(&without_minors);
        assert_eq!(gpus[1].missing.len(), 1, "its capabilities are not known");
    }

    #[test]
    fn graphics_nodes_are_those_of_the_pci_function_and_not_for_mig_devices_without_graphics() {
        let host = Host::new(&["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]);
        let drm = host.0.path().join("sys/bus/pci/devices/0000:07:00.0/drm");
        for name in ["card1", "renderD128", "controlD64"] {
            fs::create_dir_all(drm.join(name)).unwrap();
        }
        fs::create_dir_all(host.0.path().join("dev/dri/by-path")).unwrap();
        symlink("../card1", host.0.path().join("dev/dri/by-path/pci-0000:07:00.0-card")).unwrap();
        let roots = host.roots("/");
        let gpus = DeviceNodeFinder::of(&roots).gpus(&inventory());
        assert_eq!(
            paths(&gpus[0].graphics_nodes),
            ["/dev/dri/card1", "/dev/dri/renderD128"]
        );
        assert_eq!(
            gpus[0].graphics_links,
            [SymbolicLink {
                target: "../card1".to_owned(),
                path: "/dev/dri/by-path/pci-0000:07:00.0-card".to_owned()
            }]
        );
        assert!(gpus[1].graphics_nodes.is_empty());
    }

    #[test]
    fn another_dev_root_is_named_on_the_host_and_nowhere_in_containers() {
        let host = Host::new(&["/var/run/nvidia/driver/dev/nvidiactl"]);
        symlink("/var/run", host.0.path().join("run")).unwrap();
        let roots = host.roots("/run/nvidia/driver");
        let nodes = DeviceNodeFinder::of(&roots).common(&CdiOptions::default());
        assert_eq!(
            nodes,
            [HostFile {
                host: "/run/nvidia/driver/dev/nvidiactl".to_owned(),
                container: "/dev/nvidiactl".to_owned()
            }]
        );
    }

    #[test]
    fn a_driver_container_has_nodes_of_its_own_and_the_host_has_the_others() {
        let host = Host::new(&[
            "/run/nvidia/driver/dev/nvidiactl",
            "/run/nvidia/driver/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/dri/card1",
            "/dev/nvidia-fs0",
            "/dev/nvidia-caps-imex-channels/channel0",
        ]);
        let library = host.0.path().join("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1");
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(library, "").unwrap();
        fs::create_dir_all(host.0.path().join("sys/bus/pci/devices/0000:07:00.0/drm/card1")).unwrap();
        for dev_root in ["/", "/run/nvidia/driver"] {
            let roots = host.roots(dev_root);
            let nodes = DeviceNodeFinder::of(&roots);
            let options = CdiOptions {
                gds: true,
                imex_channels: vec![0],
                ..CdiOptions::default()
            };
            let gpu = nodes.gpus(&inventory()).remove(0);
            let found = [nodes.common(&options), gpu.nodes, gpu.graphics_nodes].concat();
            let paths: Vec<&str> = found.iter().map(|node| node.host.as_str()).collect();
            assert_eq!(
                paths,
                [
                    "/run/nvidia/driver/dev/nvidiactl",
                    "/dev/nvidia-caps-imex-channels/channel0",
                    "/dev/nvidia-fs0",
                    "/run/nvidia/driver/dev/nvidia0",
                    "/dev/dri/card1"
                ]
            );
        }
    }
}
