//! Devices that containers hold: `podDevices` of the device manager, and its checkpoint.
//!
//! A pod that has ended keeps its devices until the kubelet next allocates or lists (`UpdateAllocatedDevices` of
//! pkg/kubelet/cm/devicemanager/manager.go), and stays in the checkpoint until that is next written: after an allocation
//! or a device list.

use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

type Ids = BTreeSet<String>;

/// Kind of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    /// Ends before the containers of the pod start.
    Init,
    /// An ordinary one.
    App,
}

#[derive(Debug)]
pub struct Container {
    pub name: String,
    pub kind: ContainerKind,
    /// By resource.
    pub devices: BTreeMap<String, Ids>,
    /// Devices of claims: driver and name.
    pub claimed: Vec<(String, String)>,
}

#[derive(Debug, Default)]
pub struct Pod {
    pub containers: Vec<Container>,
    /// Devices of init containers that the next container takes first, by resource.
    reusable: BTreeMap<String, Ids>,
    ended: bool,
}

impl Pod {
    /// Returns the container of this name, which it makes if there is none.
    fn container(&mut self, name: &str, kind: ContainerKind) -> Option<&mut Container> {
        if !self.containers.iter().any(|known| known.name == name) {
            self.containers.push(Container {
                name: name.to_owned(),
                kind,
                devices: BTreeMap::new(),
                claimed: Vec::new(),
            });
        }
        self.containers.iter_mut().find(|known| known.name == name)
    }
}

/// The pods of the node that hold devices, by name.
#[derive(Debug, Default)]
pub struct Pods(BTreeMap<String, Pod>);

impl Pods {
    /// Those that have not ended.
    pub fn active(&self) -> impl Iterator<Item = (&String, &Pod)> {
        self.0.iter().filter(|(_, pod)| !pod.ended)
    }

    /// The pod has ended, well or not.
    pub fn end(&mut self, pod: &str) {
        if let Some(pod) = self.0.get_mut(pod) {
            pod.ended = true;
        }
    }

    /// Takes back what ended pods held.
    pub fn collect(&mut self) {
        self.0.retain(|_, pod| !pod.ended);
    }

    /// Devices of a resource that containers of active pods hold.
    pub fn in_use(&self, resource: &str) -> Ids {
        let containers = self.active().flat_map(|(_, pod)| &pod.containers);
        containers
            .filter_map(|container| container.devices.get(resource))
            .flatten()
            .cloned()
            .collect()
    }

    /// Returns the devices that the pod's init containers leave to its next container.
    pub fn reusable(&self, pod: &str, resource: &str) -> Ids {
        self.0
            .get(pod)
            .and_then(|pod| pod.reusable.get(resource))
            .cloned()
            .unwrap_or_default()
    }

    /// `Allocate` of manager.go: what an init container holds can be taken again, what another takes cannot.
    pub fn insert(&mut self, pod: &str, container: &str, kind: ContainerKind, resource: &str, ids: Ids) {
        let pod = self.0.entry(pod.to_owned()).or_default();
        let reusable = pod.reusable.entry(resource.to_owned()).or_default();
        match kind {
            ContainerKind::Init => reusable.extend(ids.iter().cloned()),
            ContainerKind::App => reusable.retain(|id| !ids.contains(id)),
        }
        if let Some(container) = pod.container(container, kind) {
            container.devices.insert(resource.to_owned(), ids);
        }
    }

    /// A DRA driver has prepared a device for a container. No plugin takes part, and no checkpoint of device plugins has it.
    pub fn claim(&mut self, pod: &str, container: &str, driver: &str, device: &str) {
        let pod = self.0.entry(pod.to_owned()).or_default();
        if let Some(container) = pod.container(container, ContainerKind::App) {
            container.claimed.push((driver.to_owned(), device.to_owned()));
        }
    }

    /// Replaces the checkpoint in the folder of device plugins: `checkpointData` of
    /// pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go without the plugins' answers, the registered devices and the
    /// checksum, and with every device under no NUMA node.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let entries = self
            .0
            .iter()
            .flat_map(|(pod, held)| held.containers.iter().map(move |container| (pod, container)));
        let entries = entries.flat_map(|(pod, container)| {
            container.devices.iter().map(move |(resource, ids)| {
                json!({"PodUID": pod, "ContainerName": container.name, "ResourceName": resource, "DeviceIDs": {"-1": ids}, "AllocResp": ""})
            })
        });
        let entries: Vec<_> = entries.collect();
        // Go's empty list is null.
        let entries = if entries.is_empty() {
            json!(null)
        } else {
            json!(entries)
        };
        let data = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0});
        let new = folder.join(".kubelet_internal_checkpoint.new");
        fs::write(&new, data.to_string())?;
        fs::rename(new, folder.join("kubelet_internal_checkpoint"))
    }
}
