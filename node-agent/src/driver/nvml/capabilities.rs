//! Finds the device nodes of MIG instances in the table of the driver's kernel module.

use std::{collections::BTreeMap, fs, path::Path};

/// Table below the host's root; /proc of a container does not show the driver's files.
const MIG_MINORS: &str = "proc/driver/nvidia-caps/mig-minors";

/// Minor numbers by capability.
#[derive(Debug, Default)]
pub struct Capabilities(BTreeMap<String, u32>);

impl Capabilities {
    /// Reads the table of a host; empty when the driver has none.
    pub fn of_host(root: &Path) -> Self {
        Self::parse(&fs::read_to_string(root.join(MIG_MINORS)).unwrap_or_default())
    }

    /// Parses lines such as `gpu0/gi7/ci0/access 67`.
    fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (capability, minor) = line.split_once(' ')?;
            Some((capability.to_owned(), minor.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// Returns the device nodes a container needs for a compute instance, besides that of the GPU.
    pub fn device_nodes(&self, gpu_minor: u32, gpu_instance: u32, compute_instance: u32) -> Vec<String> {
        let instance = format!("gpu{gpu_minor}/gi{gpu_instance}");
        [
            format!("{instance}/access"),
            format!("{instance}/ci{compute_instance}/access"),
        ]
        .iter()
        .filter_map(|capability| self.0.get(capability))
        .map(|minor| node(*minor))
        .collect()
    }

    /// Returns the device nodes of a GPU instance and of all compute instances that it can have.
    pub fn instance_nodes(&self, gpu_minor: u32, gpu_instance: u32) -> Vec<String> {
        let instance = format!("gpu{gpu_minor}/gi{gpu_instance}/");
        let of_instance = self
            .0
            .iter()
            .filter(|(capability, _)| capability.starts_with(&instance));
        of_instance.map(|(_, minor)| node(*minor)).collect()
    }
}

fn node(minor: u32) -> String {
    format!("/dev/nvidia-caps/nvidia-cap{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_of_both_instances() {
        let text = "config 1\nmonitor 2\ngpu1/gi7/access 201\ngpu1/gi7/ci0/access 202\nnonsense\n";
        let capabilities = Capabilities::parse(text);
        let nodes = ["/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202"];
        assert_eq!(capabilities.device_nodes(1, 7, 0), nodes);
        assert_eq!(capabilities.device_nodes(0, 7, 0), Vec::<String>::new());
        assert_eq!(capabilities.instance_nodes(1, 7), nodes);
        assert_eq!(capabilities.instance_nodes(1, 70), Vec::<String>::new());
    }

    #[test]
    fn a_host_without_the_table_has_no_nodes() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(
            Capabilities::of_host(host.path()).device_nodes(0, 1, 0),
            Vec::<String>::new()
        );
    }
}
