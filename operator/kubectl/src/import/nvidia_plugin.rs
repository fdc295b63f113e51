//! `import nvidia-plugin`: policies, or a configuration of the agent, from those of NVIDIA's device plugin.
//!
//! | module | what it does |
//! |---|---|
//! | `configurations` | the named configurations of a file, and which of them is the default |
//! | `daemonset` | the plugin's container in a DaemonSet or pod |
//! | `imported` | a configuration of the plugin as one of gpunode |
//! | `policies` | policies from imported configurations |

mod configurations;
mod daemonset;
#[cfg(test)]
mod fuzz;
mod imported;
mod policies;
#[cfg(test)]
mod tests;

use crate::{
    cli::{ImportNvidiaPluginArgs, ImportedPluginOutput},
    validate::{KnownKinds, SourceText, ValidationResult, read_file},
};
use anyhow::Context;
use configurations::PluginConfigurations;
use daemonset::PluginDaemonSet;
use gpunode_config::{DiscardedParts, nvidia_plugin_config};
use imported::ImportedConfiguration;
use std::{collections::HashMap, path::Path};

/// Text to print, and what a person has to know besides.
#[derive(Debug)]
pub struct ImportedText {
    pub text: String,
    pub warnings: Vec<String>,
}

/// Returns the policies, or one configuration of the agent.
///
/// # Errors
/// When a file cannot be read, the plugin would refuse it, it cannot be kept, or the API server would refuse a policy.
pub fn import(args: &ImportNvidiaPluginArgs) -> anyhow::Result<ImportedText> {
    let daemonset = args.from_daemonset.as_deref().map(read).transpose()?;
    let file = args.file.as_deref().map(read).transpose()?;
    import_texts(args, file, daemonset.as_ref(), &KnownKinds::new()?)
}

fn import_texts(
    args: &ImportNvidiaPluginArgs,
    file: Option<SourceText>,
    daemonset: Option<&SourceText>,
    kinds: &KnownKinds,
) -> anyhow::Result<ImportedText> {
    let mut daemonset = match daemonset {
        Some(text) => PluginDaemonSet::read(&text.contents).with_context(|| format!("import {}", text.name))?,
        None => PluginDaemonSet::default(),
    };
    let is_file = file.is_some();
    let SourceText { name: file, contents } = file.unwrap_or_else(|| SourceText {
        name: "no file".to_owned(),
        contents: String::new(),
    });
    let context = || format!("import {file}");
    if args.default_config.is_some() {
        daemonset.default.name.clone_from(&args.default_config);
    }
    let mut configurations = PluginConfigurations::read(&contents, &daemonset.default).with_context(context)?;
    if !configurations.are_named() {
        anyhow::ensure!(
            args.default_config.is_none(),
            "import {file}: it is one configuration, and --default-config chooses one of a ConfigMap"
        );
        if is_file && args.from_daemonset.is_some() && daemonset.has_config_manager {
            configurations.remarks.push(
                "config-manager: the plugin of this DaemonSet gets its configuration by a label of the node; name the ConfigMap as FILE for a \
                 policy of each"
                    .to_owned(),
            );
        }
    }
    if !daemonset.has_config_manager && configurations.are_named() {
        let file = daemonset.container.config_file();
        configurations
            .choose_for_all_nodes(args.config.as_deref(), file.as_deref())
            .with_context(context)?;
    } else if let Some(chosen) = &args.config {
        configurations.choose(chosen).with_context(context)?;
    }
    let discarded = if args.as_written {
        DiscardedParts::Honour
    } else {
        DiscardedParts::Ignore
    };
    let mut imported = Vec::new();
    for configuration in configurations.list {
        let config = nvidia_plugin_config(&configuration.text, &daemonset.container, discarded).with_context(|| {
            match &configuration.name {
                Some(name) => format!("import {file}: configuration {name}"),
                None => context(),
            }
        })?;
        imported.push(ImportedConfiguration {
            name: configuration.name,
            nodes: configuration.nodes,
            imported: config,
        });
    }
    if args.strict {
        let ignored = remarks(&imported, |is_ignored| is_ignored);
        anyhow::ensure!(
            ignored.is_empty(),
            "import {file}: NVIDIA's plugin ignores what follows; remove it, or import without --strict\n  {}",
            ignored.join("\n  ")
        );
    }
    let text = match args.output {
        ImportedPluginOutput::Policy => {
            let mut labels = daemonset.node_selector.clone();
            labels.extend(args.node_selector.iter().cloned());
            let text = policies::policies(&imported, &daemonset.config_label, &labels).with_context(context)?;
            ensure_accepted(kinds, &text).with_context(context)?;
            text
        }
        ImportedPluginOutput::AgentConfig => {
            anyhow::ensure!(
                args.node_selector.is_empty(),
                "import {file}: --node-selector is for policies; a configuration of the agent selects no nodes"
            );
            if !daemonset.node_selector.is_empty() {
                let remark = "nodeSelector: not taken over; a configuration of the agent selects no nodes";
                daemonset.remarks.push(remark.to_owned());
            }
            match imported.as_slice() {
                [one] => policies::agent_config(one)?,
                _ => anyhow::bail!("import {file}: choose one of its configurations with --config for -o agent-config"),
            }
        }
    };
    let mut warnings = remarks(&imported, |_| true);
    warnings.extend(file_remark(args, &daemonset));
    warnings.extend(daemonset.remarks);
    warnings.extend(configurations.remarks);
    Ok(ImportedText { text, warnings })
}

/// Says where the plugin of the DaemonSet reads another file, or none.
fn file_remark(args: &ImportNvidiaPluginArgs, daemonset: &PluginDaemonSet) -> Option<String> {
    let reads = daemonset.container.config_file();
    match (reads, &args.file) {
        (Some(reads), None) => Some(format!(
            "the plugin reads {reads}, which is not taken over; name that file, or the ConfigMap that it comes from, as FILE"
        )),
        (None, Some(_)) if args.from_daemonset.is_some() => {
            Some("the plugin of this DaemonSet reads no file (CONFIG_FILE); FILE is taken over all the same".to_owned())
        }
        _ => None,
    }
}

/// Fails where the API server would refuse a policy, such as one that excludes too many configurations.
fn ensure_accepted(kinds: &KnownKinds, text: &str) -> anyhow::Result<()> {
    let policies = SourceText {
        name: "the policies".to_owned(),
        contents: text.to_owned(),
    };
    let reports = kinds.validate(&policies);
    let refused = reports.iter().filter(|report| report.result != ValidationResult::Valid);
    let problems = refused.flat_map(|report| {
        let name = report.name.as_deref().unwrap_or_default();
        let of_policy = report.problems.iter();
        of_policy.map(move |problem| format!("policy {name}: {}: {}", problem.path, problem.message))
    });
    let problems: Vec<String> = problems.collect();
    anyhow::ensure!(
        problems.is_empty(),
        "the API server would refuse what it becomes; change that, or import one configuration with --config\n  {}",
        problems.join("\n  ")
    );
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<SourceText> {
    let file = read_file(path)?;
    Ok(SourceText {
        name: file.shown_name().to_owned(),
        contents: file.contents,
    })
}

/// Returns the remarks as texts, each once, with the configurations that it is about unless it is about all.
fn remarks(imported: &[ImportedConfiguration], is_wanted: impl Fn(bool) -> bool) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for configuration in imported {
        let wanted = configuration
            .imported
            .remarks
            .iter()
            .filter(|remark| is_wanted(remark.is_ignored));
        for text in wanted.map(ToString::to_string) {
            let name = configuration.name.as_deref().unwrap_or_default();
            let place = *places.entry(text.clone()).or_insert(found.len());
            match found.get_mut(place) {
                Some((_, names)) => names.push(name),
                None => found.push((text, vec![name])),
            }
        }
    }
    let with_names = found.into_iter().map(|(text, names)| {
        if names.len() == imported.len() {
            text
        } else {
            format!("{}: {text}", names.join(", "))
        }
    });
    with_names.collect()
}
