//! The description of a node's devices, and the devices that it keeps from the file before.

use crate::{
    CdiDevice, CdiDeviceNode, CdiGpu, CdiHook, CdiMount, CdiSpec, ContainerEdits, DriverContent, HookKind, HookProgram,
    HostFile, KIND, SymbolicLink, links::links, spec::is_device_name,
};
use std::collections::{BTreeMap, BTreeSet};

/// Options of files, as NVIDIA's tools mount them (`NewMounts` of `internal/discover/mounts.go`).
const FILE_OPTIONS: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Options of sockets, which clients must be able to write to (`ipcMountOptions` of `internal/discover/ipc.go`).
const SOCKET_OPTIONS: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];

/// Time of all hooks: the container's mounts are there, and its root is not yet the root of its processes
/// (`getOCIHookType` of `internal/discover/hooks.go`).
const HOOK_NAME: &str = "createContainer";
/// Name of the program of NVIDIA's toolkit that has the hooks below one subcommand.
const NVIDIA_CTK: &str = "nvidia-ctk";
/// Word between two hooks in a call of gpunode's own program.
const THEN: &str = "then";
/// Environment of a hook, as NVIDIA's tools write it (`Create` of `internal/discover/hooks.go`). With none, runc would pass on that of
/// the container, which an image can fill: `LD_PRELOAD` of an image would be loaded as root of the host (CVE-2025-23266).
const HOOK_ENVIRONMENT: &str = "NVIDIA_CTK_DEBUG=false";

/// Tells NVIDIA's container runtime to add nothing. Runtimes apply it after the variables of the pod and of the device plugin.
const NO_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES=void";
/// Folders of `libcuda.so`, which tools in containers read (`NewDriverLibraryDiscoverer` of `pkg/nvcdi/driver-nvml.go`).
const LIBRARY_FOLDERS: &str = "NVIDIA_CTK_LIBCUDA_DIR";

/// Description of the devices of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiDescription {
    /// Content of the file; none without a device, as a runtime refuses a file without one.
    pub spec: Option<CdiSpec>,
    /// UUIDs of the devices that containers can get by this file.
    pub described: BTreeSet<String>,
    /// Reasons why other devices cannot be described, by UUID.
    pub left_out: BTreeMap<String, String>,
}

/// Devices that containers hold, or may get at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicesInUse {
    /// UUIDs of devices that are assigned to a resource, which containers may get.
    pub assigned: BTreeSet<String>,
    /// Ids of devices that a pod holds or the kubelet remembers; among them are those of other device plugins.
    pub held: BTreeSet<String>,
    /// True if no other device is held: the kubelet has told its holders.
    pub is_complete: bool,
}

/// Describes the devices. One that cannot be described is left out, and the others are not.
pub fn describe(content: &DriverContent, devices: &[CdiGpu], hooks: &HookProgram) -> CdiDescription {
    let mut description = CdiDescription::default();
    let mut described = Vec::new();
    for device in devices {
        if let Some(reason) = defect(device) {
            description.left_out.insert(device.uuid.clone(), reason);
        } else if description.described.insert(device.uuid.clone()) {
            described.push(describe_device(device, hooks));
        }
    }
    if !described.is_empty() {
        let spec = CdiSpec {
            kind: KIND.to_owned(),
            devices: described,
            container_edits: common_edits(content, hooks),
            ..CdiSpec::default()
        };
        description.spec = Some(spec.with_lowest_version());
    }
    description
}

impl CdiDescription {
    /// Keeps the devices of the file before that containers may hold: the kubelet has their names, and names them again when it
    /// restarts a container. A device whose nodes belong to another one now is not kept, as its name would give that one out
    /// twice. `present` are all devices of the node. Assigned devices that the node does not have are left out with a reason.
    #[must_use]
    pub fn keep(mut self, before: Option<CdiSpec>, present: &[CdiGpu], in_use: &DevicesInUse) -> Self {
        if let Some(mut before) = before.filter(|before| before.kind == KIND) {
            before.devices.retain(|device| {
                let may_be_held =
                    !in_use.is_complete || in_use.assigned.contains(&device.name) || in_use.held.contains(&device.name);
                may_be_held && !self.described.contains(&device.name) && !is_replaced(device, present)
            });
            if !before.devices.is_empty() {
                let spec = match self.spec.take() {
                    Some(mut spec) => {
                        spec.devices.append(&mut before.devices);
                        spec
                    }
                    None => before,
                };
                self.spec = Some(spec.with_lowest_version());
            }
        }
        for uuid in in_use.assigned.difference(&self.described) {
            self.left_out
                .entry(uuid.clone())
                .or_insert_with(|| "the driver does not list it; it may have been lost or destroyed".to_owned());
        }
        self
    }
}

/// Returns the reason why a container cannot get the device.
fn defect(device: &CdiGpu) -> Option<String> {
    if !is_device_name(&device.uuid) {
        Some(format!(
            "its UUID {:?} is no name of a CDI device; driver 470 and newer give MIG devices other UUIDs",
            device.uuid
        ))
    } else if !device.missing.is_empty() {
        Some(format!(
            "the host has no device node {}; run nvidia-smi on the node, which makes it, or name the folder that has it in --dev-root",
            device.missing.join(", ")
        ))
    } else if device.nodes.is_empty() {
        Some("the driver tells no device node of it".to_owned())
    } else {
        None
    }
}

fn describe_device(device: &CdiGpu, hooks: &HookProgram) -> CdiDevice {
    let nodes = device.nodes.iter().chain(&device.graphics_nodes);
    let links = link_call(&device.graphics_links);
    CdiDevice {
        name: device.uuid.clone(),
        container_edits: ContainerEdits {
            device_nodes: device_nodes(nodes),
            hooks: links.map(|call| hook(hooks, call)).into_iter().collect(),
            ..ContainerEdits::default()
        },
    }
}

/// Returns the edits of a container with any device.
fn common_edits(content: &DriverContent, hooks: &HookProgram) -> ContainerEdits {
    let libraries = content.libraries.iter().map(|library| &library.file);
    let files = libraries.chain(&content.files).map(|file| mount(file, &FILE_OPTIONS));
    let sockets = content.sockets.iter().map(|socket| mount(socket, &SOCKET_OPTIONS));
    let mut paths = BTreeSet::new();
    let mounts = files
        .chain(sockets)
        .filter(|mount| paths.insert(mount.container_path.clone()));
    ContainerEdits {
        env: vec![
            format!("{LIBRARY_FOLDERS}={}", content.library_folders.join(":")),
            NO_VISIBLE_DEVICES.to_owned(),
        ],
        device_nodes: device_nodes(&content.device_nodes),
        mounts: mounts.collect(),
        hooks: common_hooks(content, hooks),
    }
}

/// Returns the hooks of a container with any device, in the order in which they have to run: links lead to the libraries that
/// `ldconfig` finds, and the container's own newer CUDA library comes before those. gpunode's own program runs all of them in one
/// call, as a runtime takes milliseconds to start each.
fn common_hooks(content: &DriverContent, program: &HookProgram) -> Vec<CdiHook> {
    let folders = library_folders(content);
    let folders = folders
        .iter()
        .flat_map(|folder| ["--folder".to_owned(), folder.clone()]);
    let calls = link_call(&links(content)).into_iter().chain([
        call(
            "enable-cuda-compat",
            [format!("--host-driver-version={}", content.version)],
        ),
        call("update-ldcache", folders),
        call("disable-device-node-modification", []),
    ]);
    match program.kind {
        HookKind::Nvidia => calls.map(|call| hook(program, call)).collect(),
        HookKind::Own => vec![hook(program, calls.collect::<Vec<_>>().join(&THEN.to_owned()))],
    }
}

/// Returns the folders of libraries in containers, each once.
fn library_folders(content: &DriverContent) -> BTreeSet<String> {
    let of_libraries = content
        .libraries
        .iter()
        .filter_map(|library| library.file.container.rsplit_once('/'));
    of_libraries.map(|(folder, _)| folder.to_owned()).collect()
}

fn link_call(links: &[SymbolicLink]) -> Option<Vec<String>> {
    let args = links
        .iter()
        .flat_map(|link| ["--link".to_owned(), format!("{}::{}", link.target, link.path)]);
    (!links.is_empty()).then(|| call("create-symlinks", args))
}

fn call(name: &str, args: impl IntoIterator<Item = String>) -> Vec<String> {
    [name.to_owned()].into_iter().chain(args).collect()
}

fn hook(program: &HookProgram, call: Vec<String>) -> CdiHook {
    let file_name = program.path.file_name().unwrap_or_default().to_string_lossy();
    let group = (file_name == NVIDIA_CTK).then(|| "hook".to_owned());
    let own_name = [file_name.into_owned()].into_iter();
    CdiHook {
        hook_name: HOOK_NAME.to_owned(),
        path: program.path.to_string_lossy().into_owned(),
        args: own_name.chain(group).chain(call).collect(),
        env: vec![HOOK_ENVIRONMENT.to_owned()],
    }
}

fn device_nodes<'a>(nodes: impl IntoIterator<Item = &'a HostFile>) -> Vec<CdiDeviceNode> {
    let mut paths = BTreeSet::new();
    nodes
        .into_iter()
        .filter(|node| paths.insert(node.container.as_str()))
        .map(|node| CdiDeviceNode {
            path: node.container.clone(),
            host_path: (node.host != node.container).then(|| node.host.clone()),
        })
        .collect()
}

fn mount(file: &HostFile, options: &[&str]) -> CdiMount {
    CdiMount {
        host_path: file.host.clone(),
        container_path: file.container.clone(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
    }
}

/// Returns true if another device has the nodes of a device of the file before. All MIG devices of a GPU have the GPU's node,
/// which alone lets nobody compute while MIG is on.
fn is_replaced(device: &CdiDevice, present: &[CdiGpu]) -> bool {
    let own: BTreeSet<&str> = device
        .container_edits
        .device_nodes
        .iter()
        .map(|node| node.path.as_str())
        .filter(|path| path.starts_with("/dev/nvidia"))
        .collect();
    let mut others = present.iter().filter(|other| other.uuid != device.name);
    others.any(|other| {
        let nodes = other.nodes.iter().map(|node| node.container.as_str());
        let nodes: BTreeSet<&str> = nodes.chain(other.missing.iter().map(String::as_str)).collect();
        let is_within = !nodes.is_empty() && !other.is_divided && nodes.is_subset(&own);
        is_within || own.is_subset(&nodes)
    })
}

#[cfg(test)]
mod tests;
