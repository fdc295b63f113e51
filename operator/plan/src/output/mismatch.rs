//! Why a policy does not match a node: the conditions of its selectors that fail, in words.

use crate::{
    input::facts::NodeFacts,
    input::matching::matches,
    input::policies::{Policy, PolicySet},
    input::selectors::{VisibleLabels, holds},
    record::Record,
};
use gpunode_crds::{GpuDevice, GpuNode, IGNORE_LABEL, NodeSelector, SelectorOperator};

/// A label that is not there is further away than any other value of it, which has at most 63 characters.
const ABSENT: usize = 64;

/// Most products, or other facts, that are named of GPUs that do not fit.
const NAMED: usize = 3;

/// A condition that fails on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorMismatch {
    /// The field of the policy, what it asks for, and what the node has.
    pub words: String,
    /// How far the node is from what is asked for: characters of the label's value that differ, or GPUs that are wanting.
    /// Says something beside the distance of another node alone.
    pub distance: usize,
}

impl SelectorMismatch {
    fn new(words: impl Into<String>, distance: usize) -> Self {
        Self {
            words: words.into(),
            distance,
        }
    }
}

/// Every condition of a policy that fails on a node; nothing where it matches. `gpu_node` is the object of the same name,
/// where it exists.
pub fn mismatches(policy: &Policy, node: &NodeFacts, gpu_node: Option<&GpuNode>) -> Vec<SelectorMismatch> {
    if node.labels.contains_key(IGNORE_LABEL) {
        return vec![SelectorMismatch::new(format!("the node is labelled {IGNORE_LABEL}"), 0)];
    }
    let record = Record::read(node.owned.as_deref()).unwrap_or_default();
    if matches(policy, node, &record, gpu_node) {
        return Vec::new();
    }
    let gpus = gpu_node
        .and_then(|gpu_node| gpu_node.status.as_ref())
        .map_or(&[][..], |status| &status.gpus);
    failing(policy, VisibleLabels::new(&node.labels, &record.labels), gpus)
}

/// The nodes that a policy of the set matches least badly: those on which the fewest conditions fail and what they ask for is
/// nearest, with the first of them and why. Nothing where it matches one of them, or there is none.
pub fn nearest_node<'a>(
    policies: &PolicySet,
    policy: &str,
    nodes: impl Iterator<Item = (&'a NodeFacts, Option<&'a GpuNode>)>,
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
                let why = why.into_iter().map(|mismatch| mismatch.words).collect();
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

/// The node that a policy without any matches least badly.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NearestNode {
    /// Its name.
    pub node: String,
    /// The conditions that fail there.
    pub why: Vec<String>,
    /// How many other nodes are as near.
    pub others: usize,
}

/// The first condition of a policy's selectors that fails; none where it matches.
pub fn mismatch(policy: &Policy, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> Option<String> {
    failing(policy, labels, gpus)
        .into_iter()
        .next()
        .map(|mismatch| mismatch.words)
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
    failing.extend(gpu_mismatch(policy, gpus));
    if failing.is_empty() {
        failing.push(SelectorMismatch::new("it names no selector", 0));
    }
    failing
}

fn gpu_mismatch(policy: &Policy, gpus: &[GpuDevice]) -> Option<SelectorMismatch> {
    let too_few = policy.selector.too_few(gpus)?;
    let (asked, fit) = policy.selector.count(gpus)?;
    let mut reasons: Vec<(String, usize)> = Vec::new();
    for reason in gpus.iter().filter_map(|gpu| policy.selector.unfit(gpu)) {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    let more = if reasons.len() > NAMED { "; and others" } else { "" };
    let named: Vec<String> = reasons
        .iter()
        .take(NAMED)
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let why = if named.is_empty() {
        String::new()
    } else {
        format!(": {}{more}", named.join("; "))
    };
    // A node without any GPU is further away than one with others.
    let wanting = asked.saturating_sub(fit) + if gpus.is_empty() { ABSENT } else { 0 };
    Some(SelectorMismatch::new(
        format!("spec.{too_few}{why}"),
        wanting + policy.selector.product_distance(gpus),
    ))
}

fn label_mismatches(selector: &NodeSelector, labels: VisibleLabels<'_>) -> Vec<SelectorMismatch> {
    let pairs = selector
        .match_labels
        .iter()
        .filter(|(key, value)| labels.get(key) != Some(value));
    let pairs = pairs.map(|(key, value)| {
        let field = format!("spec.nodeSelector.matchLabels[{key}]");
        let distance = labels
            .get(key)
            .map_or(ABSENT, |found| strsim::levenshtein(found, value));
        SelectorMismatch::new(
            format!("{field}: it is to be \"{value}\", {}", found(key, labels)),
            distance,
        )
    });
    let expressions = selector
        .match_expressions
        .iter()
        .enumerate()
        .filter(|(_, it)| !holds(it, labels));
    let expressions = expressions.map(|(index, it)| {
        let values = it
            .values
            .iter()
            .map(|value| format!("\"{value}\""))
            .collect::<Vec<_>>()
            .join(", ");
        let (wish, distance) = match it.operator {
            SelectorOperator::In => {
                let has = labels.get(&it.key);
                let distances = it
                    .values
                    .iter()
                    .filter_map(|value| Some(strsim::levenshtein(has?, value)));
                (format!("to be one of {values}"), distances.min().unwrap_or(ABSENT))
            }
            SelectorOperator::NotIn => (format!("not to be one of {values}"), ABSENT),
            SelectorOperator::Exists => ("to exist".to_owned(), ABSENT),
            SelectorOperator::DoesNotExist => ("not to exist".to_owned(), ABSENT),
        };
        let key = &it.key;
        let words = format!(
            "spec.nodeSelector.matchExpressions[{index}]: {key} is {wish}, {}",
            found(key, labels)
        );
        SelectorMismatch::new(words, distance)
    });
    pairs.chain(expressions).collect()
}

fn found(key: &String, labels: VisibleLabels<'_>) -> String {
    match (labels.get(key), labels.is_hidden(key)) {
        (Some(value), _) => format!("the node has \"{value}\""),
        (None, true) => "and selectors do not see the node's, which gpunode wrote".to_owned(),
        (None, false) => "the node has no such label".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNodePolicy, GpuNodeStatus};
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

    fn with_gpus(products: &[&str]) -> GpuNode {
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
        gpu_node
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
            why: vec![
                "spec.nodeSelector.matchLabels[pool]: it is to be \"trainning\", the node has \"training\"".to_owned(),
            ],
            others: 1,
        };
        assert_eq!(nearest_of(&nodes[..4]), Some(expected));
        assert_eq!(
            nearest_of(&nodes).unwrap().why,
            ["the node is labelled gpunode.dev/ignore"]
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
        let expected = "spec.gpuSelector asks for 2 such GPUs, the node has 0 among 3 in the status of its GpuNode: 2 with \
                        another product (Tesla-T4); 1 with less memory than 30Gi (16384 MiB)";
        assert_eq!(found.why, [expected]);
        let forgotten = set("{gpuSelector: {products: [Tesla-V100]}}");
        let (none, other, v100) = (node("cpu", &[]), node("t4", &[]), node("v100", &[]));
        let (t4s, v100s) = (with_gpus(&["Tesla-T4"]), with_gpus(&["Tesla-V100-SXM2-16GB"]));
        let nodes = [(&none, None), (&other, Some(&t4s)), (&v100, Some(&v100s))];
        let found = nearest_node(&forgotten, "p", nodes.into_iter()).unwrap();
        let hint = "1 with another product (Tesla-V100-SXM2-16GB: a glob for it ends with *)";
        assert!(found.node == "v100" && found.why[0].ends_with(hint), "{found:?}");
        let none = nearest_node(&policies, "p", [(&node("n", &[]), None)].into_iter()).unwrap();
        assert!(
            none.why[0].ends_with("has 0 among 0 in the status of its GpuNode"),
            "{:?}",
            none.why
        );
    }
}
