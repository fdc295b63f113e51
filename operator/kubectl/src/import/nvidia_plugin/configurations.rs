//! The named configurations of a file, and which of them is the default (`cmd/config-manager/main.go` of NVIDIA's device plugin
//! 0.20). Pure.

use anyhow::Context;
use gpunode_config::{MAX_DOCUMENT_BYTES, is_name_part, yaml_value};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_yaml::Value;

/// Label by which config-manager is told the configuration of a node, unless its variable `NODE_LABEL` names another.
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";

/// Name of the default configuration under the strategy `named`.
const NAMED: &str = "default";
/// Name of the policy of an empty configuration.
const EMPTY: &str = "empty";

/// Rules by which config-manager finds the configuration of nodes without the label.
#[derive(Debug)]
pub struct DefaultRules {
    /// Name that comes before the strategies.
    pub name: Option<String>,
    /// Strategies in their order: `named`, `single`, `empty`.
    pub strategies: Vec<String>,
}

impl DefaultRules {
    /// Returns those of the chart's default values.
    pub fn of_chart() -> Self {
        Self {
            name: None,
            strategies: ["named", "single"].map(str::to_owned).to_vec(),
        }
    }
}

/// One configuration of the plugin.
#[derive(Debug)]
pub struct PluginConfiguration {
    /// Name of the policy; none for a file of its own.
    pub name: Option<String>,
    pub text: String,
    pub nodes: ConfiguredNodes,
}

/// Nodes of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfiguredNodes {
    /// Those whose label has this value.
    Labelled(String),
    /// All others that have a GPU: those whose label has none of these values.
    Others(Vec<String>),
}

/// Configurations of the plugin.
#[derive(Debug)]
pub struct PluginConfigurations {
    pub list: Vec<PluginConfiguration>,
    /// Warnings about them.
    pub remarks: Vec<String>,
}

impl PluginConfigurations {
    /// Reads a file of the plugin, or a ConfigMap.
    pub fn read(text: &str, default: &DefaultRules) -> anyhow::Result<Self> {
        anyhow::ensure!(
            text.len() <= MAX_DOCUMENT_BYTES,
            "it has {} bytes, more than the limit of {MAX_DOCUMENT_BYTES}",
            text.len()
        );
        let document = yaml_value(text).context("it is not YAML")?;
        let Some(kind) = document.get("kind").and_then(Value::as_str) else {
            let file = PluginConfiguration {
                name: None,
                text: text.to_owned(),
                nodes: ConfiguredNodes::Others(Vec::new()),
            };
            return Ok(Self {
                list: vec![file],
                remarks: Vec::new(),
            });
        };
        anyhow::ensure!(
            kind == "ConfigMap",
            "it is a {kind}; name the plugin's file or its ConfigMap, and a DaemonSet with --from-daemonset"
        );
        let object: ConfigMap = serde_yaml::from_value(document).context("read the ConfigMap")?;
        anyhow::ensure!(
            object.binary_data.is_none_or(|data| data.is_empty()),
            "the ConfigMap has binaryData, which is not read; write its configurations into data"
        );
        let data = object.data.unwrap_or_default();
        anyhow::ensure!(!data.is_empty(), "the ConfigMap has no data");
        let named = data.into_iter().map(|(name, text)| PluginConfiguration {
            nodes: ConfiguredNodes::Labelled(name.clone()),
            name: Some(name),
            text,
        });
        let mut read = Self {
            list: named.collect(),
            remarks: Vec::new(),
        };
        read.choose_default(default)?;
        Ok(read)
    }

    fn names(&self) -> Vec<String> {
        self.list
            .iter()
            .filter_map(|configuration| configuration.name.clone())
            .collect()
    }

    fn choose_default(&mut self, default: &DefaultRules) -> anyhow::Result<()> {
        let names = self.names();
        let has = |name: &str| names.iter().any(|known| known == name);
        if let Some(name) = &default.name {
            anyhow::ensure!(
                has(name),
                "it has no configuration {name}, which is the default; it has {}",
                names.join(", ")
            );
        }
        let by_strategy = || {
            default
                .strategies
                .iter()
                .find_map(|strategy| match (strategy.as_str(), names.as_slice()) {
                    ("named", _) if has(NAMED) => Some(NAMED.to_owned()),
                    ("single", [only]) => Some(only.clone()),
                    ("empty", _) => Some(String::new()),
                    _ => None,
                })
        };
        let is_unknown = |strategy: &&String| !["named", "single", "empty"].contains(&strategy.as_str());
        let unknown = default.strategies.iter().filter(is_unknown);
        self.remarks.extend(
            unknown.map(|strategy| {
                format!("FALLBACK_STRATEGIES: config-manager knows no strategy `{strategy}` and fails")
            }),
        );
        let Some(chosen) = default.name.clone().or_else(by_strategy) else {
            self.remarks.push(
                "no configuration is the default, so nodes without the label that names one get none; name it with --default-config"
                    .to_owned(),
            );
            return Ok(());
        };
        // A value that no label can have needs no exception.
        let others = names.iter().filter(|name| **name != chosen && is_name_part(name));
        let nodes = ConfiguredNodes::Others(others.cloned().collect());
        match self
            .list
            .iter_mut()
            .find(|configuration| configuration.name.as_ref() == Some(&chosen))
        {
            Some(configuration) => configuration.nodes = nodes,
            None => self.list.push(PluginConfiguration {
                name: Some(EMPTY.to_owned()),
                text: String::new(),
                nodes,
            }),
        }
        Ok(())
    }

    /// Returns true for the configurations of a ConfigMap.
    pub fn are_named(&self) -> bool {
        !self.names().is_empty()
    }

    /// Keeps the configuration of a plugin without config-manager, which every node has: the one that is chosen, or that of the file
    /// which the plugin reads.
    pub fn choose_for_all_nodes(&mut self, chosen: Option<&str>, file: Option<&str>) -> anyhow::Result<()> {
        let key = file.and_then(|file| file.rsplit('/').next());
        let names = self.names();
        let known = chosen.or(key.filter(|key| names.iter().any(|name| name == key)));
        let known = known.with_context(|| {
            let file = file.unwrap_or("no file");
            format!(
                "the DaemonSet has no config-manager, and its plugin reads {file}; name the key of that file with --config: {}",
                names.join(", ")
            )
        })?;
        self.choose(known)?;
        for configuration in &mut self.list {
            configuration.nodes = ConfiguredNodes::Others(Vec::new());
        }
        self.remarks.clear();
        Ok(())
    }

    /// Keeps one configuration.
    pub fn choose(&mut self, chosen: &str) -> anyhow::Result<()> {
        let names = self.names();
        anyhow::ensure!(
            names.iter().any(|name| name == chosen),
            "it has no configuration {chosen}; it has {}",
            if names.is_empty() {
                "no named ones".to_owned()
            } else {
                names.join(", ")
            }
        );
        self.list
            .retain(|configuration| configuration.name.as_deref() == Some(chosen));
        Ok(())
    }
}
