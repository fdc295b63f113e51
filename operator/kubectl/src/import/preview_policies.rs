//! Imported policies as a stream of YAML documents. Pure.

use anyhow::Context;
use gpunode_crds::{GpuNodePolicy, GpuNodePolicySpec, PolicyMode};
use std::collections::BTreeSet;

/// Maximum length of a policy's name, as in the CRD.
const MAX_POLICY_NAME: usize = 40;

/// Policies in mode Preview, each below a comment, with names that differ.
#[derive(Debug, Default)]
pub struct PreviewPolicies {
    names: BTreeSet<String>,
    documents: Vec<String>,
}

impl PreviewPolicies {
    /// Adds the policy of a configuration. A name of which nothing is left becomes `otherwise`.
    ///
    /// # Errors
    /// When it has no form in YAML.
    pub fn add(
        &mut self,
        configuration: &str,
        otherwise: &str,
        comment: &str,
        spec: GpuNodePolicySpec,
    ) -> anyhow::Result<()> {
        let spec = GpuNodePolicySpec {
            mode: Some(PolicyMode::Preview),
            ..spec
        };
        let policy = GpuNodePolicy::new(&policy_name(configuration, otherwise, &mut self.names), spec);
        let policy = serde_yaml::to_string(&policy).context("write a policy")?;
        self.documents.push(comment_line(comment) + &policy);
        Ok(())
    }

    /// Returns the documents.
    pub fn text(&self) -> String {
        self.documents.join("---\n")
    }
}

/// Returns a comment of YAML.
pub fn comment_line(text: &str) -> String {
    // A line break would end the comment.
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("# {text}\n")
}

/// Returns a name for the policy of a configuration that is not in `taken`, and adds it: in lower case, `-` for each character
/// that a name cannot have, and a number at its end if another configuration has become the same. A name of which nothing is left
/// becomes `otherwise`.
fn policy_name(configuration: &str, otherwise: &str, taken: &mut BTreeSet<String>) -> String {
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
    let base = if base.is_empty() { otherwise.to_owned() } else { base };
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
