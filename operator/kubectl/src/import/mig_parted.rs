//! `import mig-parted`: policies, or a part of one, from the configurations of a mig-parted file.

use crate::{
    cli::{ImportMigPartedArgs, ImportOutput, ImportedStrategy},
    import::preview_policies::{PreviewPolicies, comment_line},
    validate::read_file,
};
use anyhow::Context;
use gpunode_config::{AgentConfig, MigConfig, MigGroup, MigStrategy, is_name_part, mig_parted_layouts};
use gpunode_crds::{GpuNodePolicySpec, NodeSelector};
use std::collections::BTreeMap;

/// Label by which mig-manager is told the configuration of a node.
const MIG_CONFIG_LABEL: &str = "nvidia.com/mig.config";

/// Returns the policies, or the part of one that a configuration becomes.
///
/// # Errors
/// When the file cannot be read or has no counterpart.
pub fn import(args: &ImportMigPartedArgs) -> anyhow::Result<String> {
    let file = read_file(&args.file)?;
    let name = file.shown_name();
    let mut layouts = mig_parted_layouts(&file.contents).with_context(|| format!("import {name}"))?;
    if let Some(chosen) = &args.config {
        let known = layouts.keys().cloned().collect::<Vec<_>>().join(", ");
        layouts.retain(|name, _| name == chosen);
        anyhow::ensure!(
            !layouts.is_empty(),
            "import {name}: it has no configuration {chosen}; it has {known}"
        );
    }
    match args.output {
        ImportOutput::Policy => {
            anyhow::ensure!(
                args.node_selector.is_empty() || layouts.len() <= 1,
                "import {name}: choose one of its configurations with --config for --node-selector; several policies for the same \
                 nodes are a conflict"
            );
            policies(&layouts, args.strategy, &args.node_selector)
        }
        ImportOutput::Layout => {
            let mut layouts = layouts.iter();
            match (layouts.next(), layouts.next()) {
                (Some((name, layout)), None) => part(name, layout, args.strategy),
                _ => anyhow::bail!("import {name}: choose one of its configurations with --config for -o layout"),
            }
        }
    }
}

/// Returns a policy for each configuration, in mode Preview, as a stream of YAML documents. Without `selector`, a policy selects
/// the nodes that mig-manager gives its configuration.
///
/// # Errors
/// When a name cannot be the value of a label, and no selector is given.
fn policies(
    layouts: &BTreeMap<String, Vec<MigGroup>>,
    strategy: ImportedStrategy,
    selector: &[(String, String)],
) -> anyhow::Result<String> {
    let mut policies = PreviewPolicies::default();
    for (configuration, layout) in layouts {
        let labels = if selector.is_empty() {
            anyhow::ensure!(
                is_name_part(configuration),
                "import configuration `{configuration}`: its name cannot be the value of the label {MIG_CONFIG_LABEL}, so no \
                 node can have it; import it alone, with --config and --node-selector"
            );
            BTreeMap::from([(MIG_CONFIG_LABEL.to_owned(), configuration.clone())])
        } else {
            selector.iter().cloned().collect()
        };
        let spec = GpuNodePolicySpec {
            node_selector: Some(NodeSelector {
                match_labels: labels,
                ..NodeSelector::default()
            }),
            device_plugin: Some(configured(layout, strategy)),
            ..GpuNodePolicySpec::default()
        };
        policies.add(configuration, "mig", &comment(configuration), spec)?;
    }
    Ok(policies.text())
}

/// Returns one configuration as the part of `devicePlugin` that it becomes.
///
/// # Errors
/// When it has no form in YAML.
fn part(configuration: &str, layout: &[MigGroup], strategy: ImportedStrategy) -> anyhow::Result<String> {
    let part = serde_yaml::to_string(&configured(layout, strategy)).context("write a layout")?;
    Ok(comment_line(&comment(configuration)) + &part)
}

fn comment(configuration: &str) -> String {
    format!("mig-parted's configuration {configuration}")
}

fn configured(layout: &[MigGroup], strategy: ImportedStrategy) -> AgentConfig {
    let strategy = match strategy {
        ImportedStrategy::Mixed => MigStrategy::Mixed,
        ImportedStrategy::Single => MigStrategy::Single,
    };
    AgentConfig {
        mig: Some(MigConfig {
            strategy,
            layout: layout.to_vec(),
        }),
        ..AgentConfig::default()
    }
}

#[cfg(test)]
mod tests;
