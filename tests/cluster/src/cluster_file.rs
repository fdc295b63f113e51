//! The cluster file: which nodes, with which simulated hardware.

use std::{collections::BTreeMap, collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use gpunode_scenario::Scenario;
use serde::{Deserialize, Serialize};

/// Nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterFile {
    /// False leaves out the controller manager and the scheduler. Such a cluster has no nodes of its own; tests create
    /// simulated ones.
    #[serde(default = "enabled")]
    pub controllers: bool,
    /// False keeps the contents of requests out of the audit log, which a large fleet would fill.
    #[serde(default = "enabled")]
    pub audit_contents: bool,
    /// The nodes.
    #[serde(default)]
    pub nodes: Vec<NodeSpec>,
}

fn enabled() -> bool {
    true
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSpec {
    /// Name of the node and host name of its machine.
    pub name: String,
    /// Labels that the kubelet registers the node with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints that the kubelet registers the node with, `key=value:Effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub register_with_taints: Vec<String>,
    /// Interval at which the kubelet checks for changes of the node to report; one second by default.
    #[serde(skip)]
    pub status_update_frequency: Option<Duration>,
    /// The simulated GPUs; without them the node has no driver either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Scenario>,
}

/// Addresses of nodes are .10 and up in a network of 256.
const MOST_NODES: usize = 100;

impl ClusterFile {
    /// Reads a cluster file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read the cluster file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("cluster file {}", path.display()))
    }

    /// Parses the text of a cluster file; an error names the path of the field.
    pub fn parse(text: &str) -> Result<Self> {
        let mut file: ClusterFile = serde_yaml::from_str(text)?;
        let mut names = BTreeSet::new();
        for (index, node) in file.nodes.iter_mut().enumerate() {
            let at = format!("nodes[{index}]");
            if !is_label(&node.name) {
                bail!(
                    "{at}.name: {:?} is not 1 to 40 of a-z, 0-9 and -, starting with a letter",
                    node.name
                );
            }
            if !names.insert(node.name.clone()) {
                bail!("{at}.name: {:?} is there twice", node.name);
            }
            if let Some(gpus) = &mut node.gpus {
                // Identities of GPUs come from the node's name.
                gpus.node.clone_from(&node.name);
                gpus.gpus().with_context(|| format!("{at}.gpus"))?;
            }
        }
        match file.nodes.len() {
            0 if file.controllers => bail!("nodes: at least one is needed"),
            count if count > 0 && !file.controllers => bail!("controllers: nodes need the controller manager"),
            count if count > MOST_NODES => bail!("nodes: {count} are more than {MOST_NODES}"),
            _ => Ok(file),
        }
    }
}

fn is_label(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", ClusterFile::parse(text).unwrap_err())
    }

    #[test]
    fn the_default_file_has_four_nodes() {
        let file = ClusterFile::parse(include_str!("../clusters/default.yaml")).unwrap();
        let gpus: Vec<_> = file
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.gpus.as_ref().map(|gpus| gpus.count)))
            .collect();
        assert_eq!(
            gpus,
            [
                ("gpu-v100", Some(8)),
                ("gpu-t4", Some(4)),
                ("gpu-a100", Some(8)),
                ("cpu", None)
            ]
        );
    }

    #[test]
    fn gpus_are_those_of_their_node() {
        let file = ClusterFile::parse(include_str!("../clusters/default.yaml")).unwrap();
        assert_eq!(file.nodes[0].gpus.as_ref().unwrap().node, "gpu-v100");
    }

    #[test]
    fn clusters_of_the_tests_can_be_simulated() {
        for text in [
            include_str!("../../e2e/cluster.yaml"),
            include_str!("../../e2e/mig.yaml"),
            include_str!("../../fleet/cluster.yaml"),
        ] {
            ClusterFile::parse(text).unwrap();
        }
    }

    #[test]
    fn unknown_fields_are_refused_by_path() {
        let text = "nodes:\n- name: a\n- name: b\n  lables: {x: y}\n";
        assert!(
            error(text).starts_with("nodes[1]: unknown field `lables`"),
            "{}",
            error(text)
        );
    }

    #[test]
    fn unknown_boards_are_refused_by_path() {
        let text = "nodes:\n- name: a\n  gpus: {board: Voodoo 2, count: 2, topology: Pcie}\n";
        assert!(
            error(text).starts_with("nodes[0].gpus: board: no board"),
            "{}",
            error(text)
        );
    }

    #[test]
    fn control_plane_without_controllers_has_no_nodes() {
        let file = ClusterFile::parse("controllers: false\nauditContents: false\n").unwrap();
        assert!(file.nodes.is_empty() && !file.controllers && !file.audit_contents);
        assert!(error("controllers: false\nnodes:\n- name: a\n").starts_with("controllers: nodes need"));
        let file = ClusterFile::parse(include_str!("../clusters/default.yaml")).unwrap();
        assert!(file.controllers && file.audit_contents);
    }

    #[test]
    fn names_are_unique_and_usable() {
        assert!(error("nodes:\n- name: a\n- name: a\n").starts_with("nodes[1].name: \"a\" is there twice"));
        assert!(error("nodes:\n- name: ../x\n").starts_with("nodes[0].name:"));
        assert!(error("nodes: []\n").starts_with("nodes: at least one"));
    }
}
