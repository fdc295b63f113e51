//! Why a policy does not match a node: its first condition that fails, in words.

use crate::{
    policies::Policy,
    select::{VisibleLabels, holds},
};
use gpunode_crds::{GpuDevice, NodeSelector, SelectorOperator};

/// The first condition of a policy's selectors that fails; none where it matches.
pub fn mismatch(policy: &Policy, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> Option<String> {
    if policy.selector.matches(labels, gpus) {
        return None;
    }
    let by_labels = policy.selector.labels().and_then(|selector| label_mismatch(selector, labels));
    let by_gpus = || policy.selector.mismatch(labels, gpus).map(|mismatch| format!("spec.{mismatch}"));
    by_labels.or_else(by_gpus).or_else(|| Some("it names no selector".to_owned()))
}

fn label_mismatch(selector: &NodeSelector, labels: VisibleLabels<'_>) -> Option<String> {
    let pairs = selector.match_labels.iter().filter(|(key, value)| labels.get(key) != Some(value));
    let mut pairs = pairs.map(|(key, value)| {
        let field = format!("spec.nodeSelector.matchLabels[{key}]");
        format!("{field}: it is to be \"{value}\", {}", found(key, labels))
    });
    let expressions = selector.match_expressions.iter().enumerate().filter(|(_, it)| !holds(it, labels));
    let mut expressions = expressions.map(|(index, it)| {
        let values = it.values.iter().map(|value| format!("\"{value}\"")).collect::<Vec<_>>().join(", ");
        let wish = match it.operator {
            SelectorOperator::In => format!("to be one of {values}"),
            SelectorOperator::NotIn => format!("not to be one of {values}"),
            SelectorOperator::Exists => "to exist".to_owned(),
            SelectorOperator::DoesNotExist => "not to exist".to_owned(),
        };
        let key = &it.key;
        format!("spec.nodeSelector.matchExpressions[{index}]: {key} is {wish}, {}", found(key, labels))
    });
    pairs.next().or_else(|| expressions.next())
}

fn found(key: &String, labels: VisibleLabels<'_>) -> String {
    match (labels.get(key), labels.is_hidden(key)) {
        (Some(value), _) => format!("the node has \"{value}\""),
        (None, true) => "and selectors do not see the node's, which gpunode wrote".to_owned(),
        (None, false) => "the node has no such label".to_owned(),
    }
}
