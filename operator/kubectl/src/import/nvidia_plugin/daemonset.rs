//! The plugin's container in a DaemonSet or pod, and what its config-manager is told. Pure.

use super::configurations::{CONFIG_LABEL, DefaultRules};
use anyhow::Context;
use gpunode_config::{PluginContainer, yaml_value};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Container, Pod, PodSpec},
};
use serde_yaml::Value;
use std::collections::BTreeMap;

/// Program of the plugin, and name of its container in gpu-operator's DaemonSet.
const PROGRAM: &str = "nvidia-device-plugin";
/// Program that chooses the configuration of a node.
const CONFIG_MANAGER: &str = "config-manager";

/// Contents of a DaemonSet or pod of the plugin.
#[derive(Debug)]
pub struct PluginDaemonSet {
    pub container: PluginContainer,
    pub node_selector: BTreeMap<String, String>,
    /// False if the plugin reads one file on every node.
    pub has_config_manager: bool,
    /// Label that names the configuration of a node.
    pub config_label: String,
    pub default: DefaultRules,
    /// Warnings about it.
    pub remarks: Vec<String>,
}

impl Default for PluginDaemonSet {
    fn default() -> Self {
        Self {
            container: PluginContainer::default(),
            node_selector: BTreeMap::new(),
            has_config_manager: true,
            config_label: CONFIG_LABEL.to_owned(),
            default: DefaultRules::of_chart(),
            remarks: Vec::new(),
        }
    }
}

impl PluginDaemonSet {
    /// Reads the manifest.
    pub fn read(text: &str) -> anyhow::Result<Self> {
        let spec = pod_spec(text)?;
        let plugin = plugin(&spec).with_context(|| format!("none of its containers runs {PROGRAM}"))?;
        let starts_by_script = starts_by_script(plugin);
        let selector = spec.node_selector.clone().unwrap_or_default().into_iter();
        let (of_gpu_operator, node_selector): (BTreeMap<_, _>, _) =
            selector.partition(|(key, _)| is_of_gpu_operator(key));
        let mut read = Self {
            container: PluginContainer {
                args: if starts_by_script {
                    Vec::new()
                } else {
                    arguments(plugin)
                },
                env: variables(plugin),
            },
            node_selector,
            has_config_manager: false,
            ..Self::default()
        };
        let managers = spec.init_containers.iter().flatten().chain(&spec.containers);
        for manager in managers.filter(|container| runs(container, CONFIG_MANAGER)) {
            read.take_config_manager(manager);
        }
        let labels = of_gpu_operator.into_keys().map(|key| {
            format!(
                "nodeSelector {key}: not taken over; gpu-operator sets this label for the plugin, and may take it away"
            )
        });
        read.remarks.extend(labels);
        let affinity = spec.affinity.as_ref();
        let has_node_affinity = affinity.is_some_and(|affinity| affinity.node_affinity.is_some());
        for (is_there, remark) in [
            (
                starts_by_script,
                "entrypoint.sh: gpu-operator's script finds the driver, and switches gdrcopy, gds and mofed on where a node has the \
                 kernel modules gdrdrv and nvidia_fs; add these fields to the policies of such nodes",
            ),
            (
                plugin.env_from.as_ref().is_some_and(|sources| !sources.is_empty()),
                "envFrom: the variables of other objects are not read; write them into the manifest",
            ),
            (
                has_node_affinity,
                "affinity: not taken over; if it keeps the plugin from nodes with a GPU, select the others with --node-selector",
            ),
        ] {
            if is_there {
                read.remarks.push(remark.to_owned());
            }
        }
        Ok(read)
    }

    fn take_config_manager(&mut self, manager: &Container) {
        self.has_config_manager = true;
        let variables = variables(manager);
        for name in ["FALLBACK_STRATEGIES", "DEFAULT_CONFIG", "NODE_LABEL"] {
            if variables.get(name) == Some(&None) {
                self.remarks.push(format!(
                    "config-manager: {name}: its value comes from another object (valueFrom); write it into the manifest"
                ));
            }
        }
        if manager.env_from.as_ref().is_some_and(|sources| !sources.is_empty()) {
            let remark =
                "config-manager: envFrom: the variables of other objects are not read; write them into the manifest";
            self.remarks.push(remark.to_owned());
        }
        let value = |name: &str| variables.get(name).cloned().flatten().filter(|value| !value.is_empty());
        // Without the variable it has no strategy.
        self.default.strategies = value("FALLBACK_STRATEGIES")
            .map(|strategies| {
                strategies
                    .split(',')
                    .map(|strategy| strategy.trim().to_owned())
                    .collect()
            })
            .unwrap_or_default();
        if let Some(name) = value("DEFAULT_CONFIG") {
            self.default.name = Some(name);
        }
        if let Some(label) = value("NODE_LABEL") {
            self.config_label = label;
        }
        if !arguments(manager).is_empty() {
            let remark =
                "config-manager: its arguments are not read; name the default configuration with --default-config";
            self.remarks.push(remark.to_owned());
        }
    }
}

fn pod_spec(text: &str) -> anyhow::Result<PodSpec> {
    let document = yaml_value(text).context("it is not YAML")?;
    match document.get("kind").and_then(Value::as_str) {
        Some("DaemonSet") => {
            let daemonset: DaemonSet = serde_yaml::from_value(document).context("read the DaemonSet")?;
            let spec = daemonset.spec.and_then(|spec| spec.template.spec);
            spec.context("the DaemonSet has no spec.template.spec")
        }
        Some("Pod") => {
            let pod: Pod = serde_yaml::from_value(document).context("read the pod")?;
            pod.spec.context("the pod has no spec")
        }
        Some(kind) => anyhow::bail!("it is a {kind}; name the DaemonSet of NVIDIA's device plugin or one of its pods"),
        None => anyhow::bail!("it has no kind; name the DaemonSet of NVIDIA's device plugin or one of its pods"),
    }
}

/// Returns the plugin's container: by its program, by its name, or the only one if it runs the image's own program, which is the
/// plugin.
fn plugin(spec: &PodSpec) -> Option<&Container> {
    let find = |is_plugin: fn(&&Container) -> bool| spec.containers.iter().find(is_plugin);
    find(|container| runs(container, PROGRAM))
        .or_else(|| find(|container| container.name == PROGRAM))
        .or_else(|| match spec.containers.as_slice() {
            [only] if only.command.as_ref().is_none_or(Vec::is_empty) => Some(only),
            _ => None,
        })
}

/// Returns true for labels of gpu-operator by which a node gets the plugin.
fn is_of_gpu_operator(key: &str) -> bool {
    key == "nvidia.com/gpu.present" || key.starts_with("nvidia.com/gpu.deploy.")
}

/// Returns true if a program is the first word of the container's command.
fn runs(container: &Container, program: &str) -> bool {
    let first = container.command.iter().flatten().next();
    first.is_some_and(|word| word.rsplit('/').next() == Some(program))
}

/// Returns true for the container of gpu-operator, whose script starts the plugin (gpu-operator,
/// `assets/state-device-plugin/0500_daemonset.yaml`).
fn starts_by_script(container: &Container) -> bool {
    let mut words = container.command.iter().chain(&container.args).flatten();
    words.any(|word| word.ends_with("entrypoint.sh"))
}

/// Returns the words after the program.
fn arguments(container: &Container) -> Vec<String> {
    let command = container.command.iter().flatten().skip(1);
    command.chain(container.args.iter().flatten()).cloned().collect()
}

fn variables(container: &Container) -> BTreeMap<String, Option<String>> {
    let variables = container.env.iter().flatten();
    variables
        .map(|variable| {
            let value = match &variable.value_from {
                Some(_) => None,
                None => Some(variable.value.clone().unwrap_or_default()),
            };
            (variable.name.clone(), value)
        })
        .collect()
}
