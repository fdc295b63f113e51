//! Policies from imported configurations. Pure.

use super::{configurations::ConfiguredNodes, imported::ImportedConfiguration};
use crate::import::preview_policies::{PreviewPolicies, comment_line};
use anyhow::Context;
use gpunode_config::{PluginPaths, is_name_part};
use gpunode_crds::{GpuNodePolicySpec, GpuSelector, NodeSelector, NodeSelectorRequirement, SelectorOperator};
use std::collections::BTreeMap;

/// Name of the policy of a file without a name.
const POLICY_NAME: &str = "nvidia-device-plugin";

/// Returns a policy for each configuration, in mode Preview, as a stream of YAML documents. `label` names the configuration of a
/// node, and the nodes have `labels` besides.
///
/// # Errors
/// When a name cannot be the value of a label, or one operator cannot have the paths of all.
pub fn policies(
    imported: &[ImportedConfiguration],
    label: &str,
    labels: &BTreeMap<String, String>,
) -> anyhow::Result<String> {
    let mut policies = PreviewPolicies::default();
    for configuration in imported {
        let is_for_others = matches!(configuration.nodes, ConfiguredNodes::Others(_));
        let spec = GpuNodePolicySpec {
            node_selector: Some(selector(&configuration.nodes, label, labels)?),
            // Nodes without a GPU stay out.
            gpu_selector: is_for_others.then(|| GpuSelector {
                min_count: Some(1),
                ..GpuSelector::default()
            }),
            device_plugin: Some(configuration.imported.config.clone()),
            ..GpuNodePolicySpec::default()
        };
        let name = configuration.name.as_deref().unwrap_or(POLICY_NAME);
        policies.add(name, POLICY_NAME, &comment(configuration), spec)?;
    }
    let flags = PluginPaths::flags(imported.iter().map(|configuration| &configuration.imported.paths))?;
    Ok(flags_comment("the operator needs these flags", &flags) + &policies.text())
}

/// Returns a configuration of the agent.
///
/// # Errors
/// When it has no form in YAML.
pub fn agent_config(configuration: &ImportedConfiguration) -> anyhow::Result<String> {
    let config = serde_yaml::to_string(&configuration.imported.config).context("write a configuration")?;
    let flags = PluginPaths::flags(std::iter::once(&configuration.imported.paths))?;
    let flags = flags_comment("gpunode-agent run needs these flags besides --config", &flags);
    Ok(flags + &comment_line(&comment(configuration)) + &config)
}

fn flags_comment(words: &str, flags: &[String]) -> String {
    if flags.is_empty() {
        String::new()
    } else {
        comment_line(&format!("{words}: {}", flags.join(" ")))
    }
}

fn comment(configuration: &ImportedConfiguration) -> String {
    match &configuration.name {
        Some(name) => format!("configuration {name} of NVIDIA's device plugin"),
        None => "configuration of NVIDIA's device plugin".to_owned(),
    }
}

fn selector(nodes: &ConfiguredNodes, label: &str, labels: &BTreeMap<String, String>) -> anyhow::Result<NodeSelector> {
    let mut selector = NodeSelector {
        match_labels: labels.clone(),
        ..NodeSelector::default()
    };
    match nodes {
        ConfiguredNodes::Labelled(name) => {
            anyhow::ensure!(
                is_name_part(name),
                "configuration `{name}`: its name cannot be the value of the label {label}, so no node can have it"
            );
            selector.match_labels.insert(label.to_owned(), name.clone());
        }
        ConfiguredNodes::Others(values) if !values.is_empty() => {
            selector.match_expressions.push(NodeSelectorRequirement {
                key: label.to_owned(),
                operator: SelectorOperator::NotIn,
                values: values.clone(),
            });
        }
        ConfiguredNodes::Others(_) => {}
    }
    Ok(selector)
}
