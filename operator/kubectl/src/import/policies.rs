//! Policies, or a part of one, from the configurations of a mig-parted file. Pure.

use crate::cli::ImportedStrategy;
use anyhow::Context;
use gpunode_config::{AgentConfig, MigConfig, MigGroup, MigStrategy, is_name_part};
use gpunode_crds::{GpuNodePolicy, GpuNodePolicySpec, NodeSelector, PolicyMode};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Label by which mig-manager is told the configuration of a node.
const MIG_CONFIG_LABEL: &str = "nvidia.com/mig.config";

/// Maximum length of a policy's name, as in the CRD.
const MAX_POLICY_NAME: usize = 40;

/// Returns a policy for each configuration, in mode Preview, as a stream of YAML documents. Without `selector`, a policy selects
/// the nodes that mig-manager gives its configuration.
///
/// # Errors
/// When a name cannot be the value of a label, and no selector is given.
pub fn policies(
    layouts: &BTreeMap<String, Vec<MigGroup>>,
    strategy: ImportedStrategy,
    selector: &[(String, String)],
) -> anyhow::Result<String> {
    let mut names = BTreeSet::new();
    let mut text = String::new();
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
            mode: Some(PolicyMode::Preview),
            node_selector: Some(NodeSelector {
                match_labels: labels,
                ..NodeSelector::default()
            }),
            device_plugin: Some(configured(layout, strategy)),
            ..GpuNodePolicySpec::default()
        };
        let policy = GpuNodePolicy::new(&policy_name(configuration, &mut names), spec);
        let policy = serde_yaml::to_string(&policy).context("write a policy")?;
        let separator = if text.is_empty() { "" } else { "---\n" };
        let _ = write!(text, "{separator}{}{policy}", comment(configuration));
    }
    Ok(text)
}

/// Returns one configuration as the part of `devicePlugin` that it becomes.
///
/// # Errors
/// When it has no form in YAML.
pub fn part(configuration: &str, layout: &[MigGroup], strategy: ImportedStrategy) -> anyhow::Result<String> {
    let part = serde_yaml::to_string(&configured(layout, strategy)).context("write a layout")?;
    Ok(comment(configuration) + &part)
}

fn comment(configuration: &str) -> String {
    // A name with a line break would end the comment.
    let name: String = configuration.chars().filter(|c| !c.is_control()).collect();
    format!("# mig-parted's configuration {name}\n")
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

/// Returns a name for the policy of a configuration that is not in `taken`, and adds it: in lower case, `-` for each character
/// that a name cannot have, and a number at its end if another configuration has become the same.
fn policy_name(configuration: &str, taken: &mut BTreeSet<String>) -> String {
    let lower = configuration.to_lowercase();
    let kept = lower
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' });
    let kept: String = kept.collect();
    // Each part between dots begins and ends with a letter or digit.
    let parts = kept
        .split('.')
        .map(|part| part.trim_matches('-'))
        .filter(|part| !part.is_empty());
    let base = parts.collect::<Vec<_>>().join(".");
    let base = if base.is_empty() { "mig".to_owned() } else { base };
    let shortened = |room: usize| {
        let short: String = base.chars().take(room).collect();
        short.trim_end_matches(['-', '.']).to_owned()
    };
    let numbered = (2..).map(|number| {
        let end = format!("-{number}");
        shortened(MAX_POLICY_NAME - end.len()) + &end
    });
    // There are more numbers than configurations.
    let mut names = std::iter::once(shortened(MAX_POLICY_NAME)).chain(numbered);
    let name = names.find(|name| !taken.contains(name)).unwrap_or(base.clone());
    taken.insert(name.clone());
    name
}
