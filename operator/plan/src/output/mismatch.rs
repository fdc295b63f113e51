//! The conditions of a policy's selectors that a node does not meet.

use crate::{
    input::{
        context::reported_gpus,
        facts::NodeFacts,
        gpu_node_facts::GpuNodeFacts,
        matching::matches,
        policies::{Policy, PolicySet},
        selectors::{Selector, UnfitFact, holds},
        visible_labels::VisibleLabels,
    },
    record::node_record::NodeRecord,
};
use gpunode_crds::{GpuDevice, IGNORE_LABEL, NodeSelector, NodeSelectorRequirement, SelectorOperator};

/// Distance of a missing label: further than any value, which has at most 63 characters.
const ABSENT: usize = 64;

/// Maximum number of reasons that a text names for GPUs that do not fit.
const MAX_NAMED: usize = 3;

/// Condition of a selector that a node does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelectorMismatch {
    /// Field of the policy, the value it wants, and the value of the node.
    pub text: String,
    /// Distance of the node: differing characters of the label's value, or lacking GPUs. Only comparable with the distance of
    /// another node.
    pub distance: usize,
}

impl SelectorMismatch {
    fn new(text: impl Into<String>, distance: usize) -> Self {
        Self {
            text: text.into(),
            distance,
        }
    }
}

/// Returns all conditions of a policy that a node does not meet; empty where the policy matches.
pub(crate) fn mismatches(policy: &Policy, node: &NodeFacts, gpu_node: Option<&GpuNodeFacts>) -> Vec<SelectorMismatch> {
    if node.labels.contains_key(IGNORE_LABEL) {
        return vec![SelectorMismatch::new(
            format!("the node has the label {IGNORE_LABEL}"),
            0,
        )];
    }
    let record = NodeRecord::read(node.owned.as_deref()).unwrap_or_default();
    if matches(policy, node, &record, gpu_node) {
        return Vec::new();
    }
    failing(
        policy,
        VisibleLabels::new(&node.labels, &record.labels),
        reported_gpus(gpu_node),
    )
}

/// Returns the node that comes nearest to matching a policy: the one with the fewest unmet conditions, then the least distance.
/// None if the policy matches a node, or there is no node.
pub fn nearest_node<'a>(
    policies: &PolicySet,
    policy: &str,
    nodes: impl Iterator<Item = (&'a NodeFacts, Option<&'a GpuNodeFacts>)>,
) -> Option<NearestNode> {
    let policy = policies.get(policy)?;
    let mut nearest_node: Option<(usize, usize, NearestNode)> = None;
    for (node, gpu_node) in nodes {
        let why = mismatches(policy, node, gpu_node);
        if why.is_empty() {
            return None;
        }
        let (count, distance) = (why.len(), why.iter().map(|mismatch| mismatch.distance).sum::<usize>());
        match &mut nearest_node {
            Some((least, shortest, _)) if (*least, *shortest) < (count, distance) => {}
            Some((least, shortest, found)) if (*least, *shortest) == (count, distance) => found.others += 1,
            _ => {
                let why = why.into_iter().map(|mismatch| mismatch.text).collect();
                nearest_node = Some((
                    count,
                    distance,
                    NearestNode {
                        node: node.name.clone(),
                        why,
                        others: 0,
                    },
                ));
            }
        }
    }
    nearest_node.map(|(_, _, found)| found)
}

/// Node that comes nearest to matching a policy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NearestNode {
    /// Name of the node.
    pub node: String,
    /// Conditions that it does not meet.
    pub why: Vec<String>,
    /// Number of other nodes that are as near.
    pub others: usize,
}

/// Describes the first condition of a policy's selectors that a node does not meet; none if the policy matches.
pub fn first_mismatch(
    policy: &Policy,
    node: &NodeFacts,
    record: &NodeRecord,
    gpu_node: Option<&GpuNodeFacts>,
) -> Option<String> {
    if matches(policy, node, record, gpu_node) {
        return None;
    }
    let labels = VisibleLabels::new(&node.labels, &record.labels);
    let failing = failing(policy, labels, reported_gpus(gpu_node));
    failing.into_iter().next().map(|mismatch| mismatch.text)
}

/// Describes the GPUs that a node lacks for a policy whose label selector matches.
pub fn gpu_mismatch(
    policies: &PolicySet,
    policy: &str,
    node: &NodeFacts,
    gpu_node: Option<&GpuNodeFacts>,
) -> Option<String> {
    let record = NodeRecord::read(node.owned.as_deref()).unwrap_or_default();
    let selector = &policies.get(policy)?.selector;
    let gpus = reported_gpus(gpu_node);
    selector
        .matches_labels(VisibleLabels::new(&node.labels, &record.labels))
        .then(|| too_few_gpus(selector, gpus))?
}

fn failing(policy: &Policy, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> Vec<SelectorMismatch> {
    if policy.selector.matches(labels, gpus) {
        return Vec::new();
    }
    let mut failing = policy
        .selector
        .labels()
        .map(|selector| label_mismatches(selector, labels))
        .unwrap_or_default();
    failing.extend(failing_gpus(policy, gpus));
    if failing.is_empty() {
        failing.push(SelectorMismatch::new("the policy has no selector", 0));
    }
    failing
}

fn failing_gpus(policy: &Policy, gpus: &[GpuDevice]) -> Option<SelectorMismatch> {
    let too_few = too_few_gpus(&policy.selector, gpus)?;
    let (wanted, fit) = policy.selector.count(gpus)?;
    // Counts the GPUs that do not fit by what keeps them out, in the order of the first of each.
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for gpu in gpus {
        let Some(fact) = policy.selector.unfit(gpu) else {
            continue;
        };
        let reason = unfit_reason(&policy.selector, &fact, gpu);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    let more = if reasons.len() > MAX_NAMED { "; and others" } else { "" };
    let named: Vec<String> = reasons
        .iter()
        .take(MAX_NAMED)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let why = if named.is_empty() {
        String::new()
    } else {
        format!(": {}{more}", named.join("; "))
    };
    // A node without any GPU is further away than one with others.
    let lacking = wanted.saturating_sub(fit) + if gpus.is_empty() { ABSENT } else { 0 };
    Some(SelectorMismatch::new(
        format!("spec.{too_few}{why}"),
        lacking + policy.selector.product_distance(gpus),
    ))
}

/// Describes how many GPUs a selector wants and how many fit; none if enough do.
fn too_few_gpus(selector: &Selector, gpus: &[GpuDevice]) -> Option<String> {
    let (wanted, fit) = selector.count(gpus)?;
    let all = gpus.len();
    (fit < wanted).then(|| format!("gpuSelector wants {wanted} such GPUs, node has {fit} among {all} in its GpuNode"))
}

fn unfit_reason(selector: &Selector, fact: &UnfitFact<'_>, gpu: &GpuDevice) -> String {
    match fact {
        UnfitFact::Product if selector.begins_product(gpu) => {
            format!("with another product ({}: end the glob with *)", gpu.product)
        }
        UnfitFact::Product => format!("with another product ({})", gpu.product),
        UnfitFact::Architecture => match gpu.architecture {
            Some(architecture) => format!("with another architecture ({architecture:?})").to_lowercase(),
            None => "with an unknown architecture".to_owned(),
        },
        UnfitFact::Memory(least) => format!("with less memory than {least} ({} MiB)", gpu.memory_mib),
    }
}

fn label_mismatches(selector: &NodeSelector, labels: VisibleLabels<'_>) -> Vec<SelectorMismatch> {
    let pairs = selector
        .match_labels
        .iter()
        .filter(|(key, value)| labels.get(key) != Some(value));
    let pairs = pairs.map(|(key, value)| {
        let distance = labels
            .get(key)
            .map_or(ABSENT, |actual| strsim::levenshtein(actual, value));
        let actual = actual_value(key, labels);
        SelectorMismatch::new(
            format!("spec.nodeSelector.matchLabels[{key}]: wants \"{value}\", {actual}"),
            distance,
        )
    });
    let expressions = selector
        .match_expressions
        .iter()
        .enumerate()
        .filter(|(_, it)| !holds(it, labels.get(&it.key)));
    let expressions = expressions.map(|(index, it)| {
        let key = &it.key;
        let actual = actual_value(key, labels);
        SelectorMismatch::new(
            format!(
                "spec.nodeSelector.matchExpressions[{index}]: wants {}, {actual}",
                wanted_expression(it)
            ),
            expression_distance(it, labels),
        )
    });
    pairs.chain(expressions).collect()
}

fn wanted_expression(requirement: &NodeSelectorRequirement) -> String {
    let NodeSelectorRequirement { key, operator, values } = requirement;
    let values: Vec<_> = values.iter().map(|value| format!("\"{value}\"")).collect();
    let values = values.join(", ");
    match operator {
        SelectorOperator::In => format!("{key} to be one of {values}"),
        SelectorOperator::NotIn => format!("{key} to be none of {values}"),
        SelectorOperator::Exists => format!("{key} to exist"),
        SelectorOperator::DoesNotExist => format!("{key} not to exist"),
    }
}

fn expression_distance(requirement: &NodeSelectorRequirement, labels: VisibleLabels<'_>) -> usize {
    let Some(actual) = labels
        .get(&requirement.key)
        .filter(|_| requirement.operator == SelectorOperator::In)
    else {
        return ABSENT;
    };
    let distances = requirement
        .values
        .iter()
        .map(|value| strsim::levenshtein(actual, value));
    distances.min().unwrap_or(ABSENT)
}

fn actual_value(key: &String, labels: VisibleLabels<'_>) -> String {
    match (labels.get(key), labels.is_hidden(key)) {
        (Some(value), _) => format!("node has \"{value}\""),
        (None, true) => "selectors ignore the node's value, which gpunode wrote".to_owned(),
        (None, false) => "node has no such label".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNode, GpuNodePolicy, GpuNodeStatus};
    use std::collections::BTreeMap;

    fn node(name: &str, labels: &[(&str, &str)]) -> NodeFacts {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        NodeFacts {
            name: name.to_owned(),
            labels: (&labels).into(),
            ..NodeFacts::default()
        }
    }

    fn set(spec: &str) -> PolicySet {
        let spec = serde_yaml::from_str(spec).unwrap();
        let policy = GpuNodePolicy::new("p", spec);
        PolicySet::new([&policy])
    }

    fn with_gpus(products: &[&str]) -> GpuNodeFacts {
        let gpu = |product: &&str| GpuDevice {
            product: (*product).to_owned(),
            memory_mib: 16384,
            ..GpuDevice::default()
        };
        let gpus = products.iter().map(gpu).collect();
        let mut gpu_node = GpuNode::new("n", gpunode_crds::GpuNodeSpec::default());
        gpu_node.status = Some(GpuNodeStatus {
            gpus,
            ..GpuNodeStatus::default()
        });
        GpuNodeFacts::of(gpu_node)
    }

    #[test]
    fn the_nearest_node_is_the_one_with_the_least_to_change() {
        let nodes = [
            node("far", &[]),
            node("other", &[("pool", "inference"), ("zone", "a")]),
            node("near", &[("pool", "training"), ("zone", "a")]),
            node("as-near", &[("pool", "training"), ("zone", "a")]),
            node(
                "ignored",
                &[("pool", "trainning"), ("zone", "a"), ("gpunode.dev/ignore", "")],
            ),
        ];
        let policies = set("{nodeSelector: {matchLabels: {pool: trainning, zone: a}}}");
        let nearest_of = |nodes: &[NodeFacts]| nearest_node(&policies, "p", nodes.iter().map(|node| (node, None)));
        let expected = NearestNode {
            node: "near".to_owned(),
            why: vec!["spec.nodeSelector.matchLabels[pool]: wants \"trainning\", node has \"training\"".to_owned()],
            others: 1,
        };
        assert_eq!(nearest_of(&nodes[..4]), Some(expected));
        assert_eq!(
            nearest_of(&nodes).unwrap().why,
            ["the node has the label gpunode.dev/ignore"]
        );
        assert_eq!(nearest_of(&[]), None);
        assert_eq!(
            nearest_of(&[node("matches", &[("pool", "trainning"), ("zone", "a")])]),
            None
        );
        assert_eq!(
            nearest_node(&policies, "unknown", nodes.iter().map(|node| (node, None))),
            None
        );
    }

    #[test]
    fn gpus_that_do_not_fit_are_told_by_the_fact_that_keeps_them_out() {
        let policies =
            set("{nodeSelector: {}, gpuSelector: {products: ['Tesla-V100*'], minMemory: 30Gi, minCount: 2}}");
        let gpu_node = with_gpus(&["Tesla-T4", "Tesla-T4", "Tesla-V100-SXM2-16GB"]);
        let found = nearest_node(&policies, "p", [(&node("n", &[]), Some(&gpu_node))].into_iter()).unwrap();
        let expected = "spec.gpuSelector wants 2 such GPUs, node has 0 among 3 in its GpuNode: 2 with another product \
                        (Tesla-T4); 1 with less memory than 30Gi (16384 MiB)";
        assert_eq!(found.why, [expected]);
        let forgotten = set("{gpuSelector: {products: [Tesla-V100]}}");
        let (none, other, v100) = (node("cpu", &[]), node("t4", &[]), node("v100", &[]));
        let (t4s, v100s) = (with_gpus(&["Tesla-T4"]), with_gpus(&["Tesla-V100-SXM2-16GB"]));
        let nodes = [(&none, None), (&other, Some(&t4s)), (&v100, Some(&v100s))];
        let found = nearest_node(&forgotten, "p", nodes.into_iter()).unwrap();
        let hint = "1 with another product (Tesla-V100-SXM2-16GB: end the glob with *)";
        assert!(found.node == "v100" && found.why[0].ends_with(hint), "{found:?}");
        let none = nearest_node(&policies, "p", [(&node("n", &[]), None)].into_iter()).unwrap();
        assert!(none.why[0].ends_with("has 0 among 0 in its GpuNode"), "{:?}", none.why);
    }
}
