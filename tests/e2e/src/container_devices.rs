//! Devices that a container really has: nodes below its `/dev`, and what opening them says.

use crate::Lab;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

/// The agent's CDI file on a node.
const CDI_FILE: &str = "/run/cdi/gpunode.dev-gpu.json";
/// Major number of GPUs.
const GPU_MAJOR: u32 = 195;

/// Answer of the kernel to an attempt to open a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The container may: there is no driver behind the node, so that the kernel says ENXIO; with one, the node is opened.
    Allowed,
    /// The container may not: EPERM.
    Refused,
}

impl Lab {
    /// Returns the UUIDs of the devices whose nodes a container has, by the CDI file of its node.
    pub fn visible(&self, pod: &str) -> Result<BTreeSet<String>> {
        let object = self.get(&["pod", pod])?;
        let node = object["spec"]["nodeName"].as_str().context("find the pod's node")?;
        let nodes = self.device_nodes(pod)?;
        let file = self.cdi_file(node)?;
        let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
        for device in file["devices"].as_array().into_iter().flatten() {
            let name = device["name"].as_str().context("find the name of a device")?;
            let own: BTreeSet<String> = device["containerEdits"]["deviceNodes"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|node| node["path"].as_str())
                .filter(|path| path.starts_with("/dev/nvidia"))
                .map(str::to_owned)
                .collect();
            if own.is_subset(&nodes) {
                found.push((name.to_owned(), own));
            }
        }
        // A MIG device has the node of its GPU too, which alone is no device.
        let is_part = |own: &BTreeSet<String>| found.iter().any(|(_, other)| own != other && own.is_subset(other));
        let visible = found.iter().filter(|(_, own)| !is_part(own));
        Ok(visible.map(|(name, _)| name.clone()).collect())
    }

    /// Returns the CDI file of a node.
    pub fn cdi_file(&self, node: &str) -> Result<Value> {
        let path = self.cluster().node(node)?.path(CDI_FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
    }

    /// Returns true if a node has the CDI file.
    pub fn has_cdi_file(&self, node: &str) -> Result<bool> {
        let path = self.cluster().node(node)?.path(CDI_FILE);
        path.try_exists()
            .with_context(|| format!("look for {}", path.display()))
    }

    /// Returns the paths of NVIDIA's device nodes in a container.
    pub fn device_nodes(&self, pod: &str) -> Result<BTreeSet<String>> {
        // The end of the answer tells a container without nodes from an answer that was lost on its way.
        let script = "find /dev -name 'nvidia*' -type c && echo end";
        let found = self.kubectl(&["exec", pod, "--", "sh", "-c", script])?;
        let nodes = found.trim_end().strip_suffix("end");
        let nodes = nodes.with_context(|| format!("{script} in {pod} answers {found:?}, which has no end"))?;
        Ok(nodes.lines().map(str::to_owned).collect())
    }

    /// Returns the number of the only GPU whose node a container has.
    pub fn gpu_minor(&self, pod: &str) -> Result<u32> {
        let nodes = self.device_nodes(pod)?;
        let minors: Vec<u32> = nodes
            .iter()
            .filter_map(|path| path.strip_prefix("/dev/nvidia")?.parse().ok())
            .collect();
        ensure!(minors.len() == 1, "{pod} has {nodes:?}");
        minors.first().copied().context("a GPU")
    }

    /// Opens a device node in a container.
    pub fn open_in_container(&self, pod: &str, path: &str) -> Result<Opened> {
        self.opened(pod, &format!(": < {path}"))
    }

    /// Opens the GPU with that number in a container, which makes itself a node for it. The capability to do so is one that runtimes
    /// give containers.
    pub fn open_gpu_in_container(&self, pod: &str, minor: u32) -> Result<Opened> {
        self.open_device_in_container(pod, GPU_MAJOR, minor)
    }

    /// The same for any character device.
    pub fn open_device_in_container(&self, pod: &str, major: u32, minor: u32) -> Result<Opened> {
        let path = format!("/tmp/device-{major}-{minor}");
        let make = format!("[ -e {path} ] || mknod {path} c {major} {minor} || exit 9");
        self.opened(pod, &format!("{make}; : < {path}"))
    }

    fn opened(&self, pod: &str, script: &str) -> Result<Opened> {
        let output = self.try_kubectl(&["exec", pod, "--", "sh", "-c", script])?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || said.contains("No such device or address") {
            Ok(Opened::Allowed)
        } else if said.contains("Operation not permitted") {
            Ok(Opened::Refused)
        } else {
            bail!("{script} in {pod} ended with {}: {said}", output.status)
        }
    }
}
