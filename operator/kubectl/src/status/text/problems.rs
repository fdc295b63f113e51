//! The list of problems for people. Each sentence is said once: with all the nodes that it is about, and not again where a
//! longer one contains it.

use crate::{
    output::{TextWidth, plain, plural, style, wrapped},
    status::{fleet::FleetSummary, node::NodeSummary, policy::PolicySummary},
};
use gpunode_crds::{NodeFailure, named};
use gpunode_plan::rollout_stopped;

/// Most nodes named for one sentence; `-o json` has all of them.
const MAX_NODES: usize = 8;

/// Returns the list of problems, which begins the output. Their text comes from statuses.
pub fn problems(fleet: &FleetSummary, width: TextWidth) -> String {
    // Forbidden kinds come last: they are not what is wrong with the fleet.
    let (forbidden, unreadable): (Vec<_>, Vec<_>) = fleet.unreadable.iter().partition(|it| it.is_every());
    let [forbidden, unreadable] = [forbidden, unreadable].map(|list| list.into_iter().map(ToString::to_string));
    let policies: Vec<String> = fleet.policies.iter().flat_map(policy_problems).collect();
    let unready = fleet.nodes.iter().filter_map(|node| unready(fleet, node));
    let others = fleet.nodes.iter().flat_map(|node| {
        node.problems
            .iter()
            .map(|problem| (node.name.as_str(), problem.clone()))
    });
    let nodes = by_nodes(unready.chain(others));
    let lines: Vec<String> = unreadable.chain(policies).chain(nodes).chain(forbidden).collect();
    if lines.is_empty() {
        return String::new();
    }
    let heading = style::HEADING;
    let lines = lines.iter().map(|line| wrapped(&plain(line), width, 2) + "\n");
    format!("{heading}PROBLEMS{heading:#}\n{}\n", lines.collect::<String>())
}

/// Returns the node with the message of its reason, unless a policy's problem or another one of the node says it.
fn unready<'a>(fleet: &FleetSummary, node: &'a NodeSummary) -> Option<(&'a str, String)> {
    let message = node.message.as_ref()?;
    let is_said = |text: &String| !message.is_empty() && text.contains(message.as_str());
    let policies = || fleet.policies.iter();
    // A policy's problem on this node may be another one, such as a label that somebody else owns.
    let is_same = |it: &NodeFailure| Some(&it.reason) == node.reason.as_ref() || is_said(&it.message);
    let is_failure = policies()
        .flat_map(|policy| &policy.failures)
        .any(|it| it.node == node.name && is_same(it));
    let is_stop = stops(policies()).any(|(stopped, why)| stopped == node.name && is_said(why));
    if is_failure || is_stop || node.problems.iter().any(is_said) {
        return None;
    }
    let reason = node.reason.as_deref().unwrap_or("NotReady");
    Some((&node.name, format!("{reason}: {message}")))
}

/// Returns the node at which each rollout stopped, and the reason.
fn stops<'a>(policies: impl Iterator<Item = &'a PolicySummary>) -> impl Iterator<Item = (&'a str, &'a String)> {
    let first = policies.filter_map(|policy| policy.rollout.as_ref()?.stopped.first());
    first.map(|stop| (stop.node.as_str(), &stop.why))
}

fn policy_problems(policy: &PolicySummary) -> Vec<String> {
    let name = &policy.name;
    let mut said: Vec<String> = Vec::new();
    // Two conditions may have one message.
    for message in &policy.messages {
        let text = message.split_once("): ").map_or(message.as_str(), |(_, text)| text);
        if text.is_empty() || !said.iter().any(|earlier| earlier.contains(text)) {
            said.push(message.clone());
        }
    }
    let stopped = stops(std::iter::once(policy)).map(|(node, why)| rollout_stopped(node, why));
    let stopped: Vec<String> = stopped
        .filter(|text| !said.iter().any(|of| of.contains(text.as_str())))
        .collect();
    said.extend(stopped);
    let is_stop = |node: &str, message: &str| {
        stops(std::iter::once(policy)).any(|(stopped, why)| stopped == node && why.contains(message))
    };
    let failures = policy.failures.iter().filter(|it| !is_stop(&it.node, &it.message));
    let failures = failures.map(|it| (it.node.as_str(), format!("{}: {}", it.reason, it.message)));
    said.extend(by_nodes(failures));
    let (listed, faulty) = (policy.failures.len(), policy.failed + policy.conflicted);
    let more = usize::try_from(faulty).unwrap_or_default().saturating_sub(listed);
    if listed > 0 && more > 0 {
        said.push(format!(
            "{} failed or in conflict",
            plural(more, "more node", "more nodes")
        ));
    }
    said.into_iter().map(|text| format!("policy {name}: {text}")).collect()
}

/// Puts the nodes with the same problem into one line, such as `nodes a, b: the kubelet is not ready`.
fn by_nodes<'a>(problems: impl Iterator<Item = (&'a str, String)>) -> Vec<String> {
    let mut groups: Vec<(String, String, Vec<&str>)> = Vec::new();
    for (node, problem) in problems {
        // A command about a node names it.
        let of_any = problem.replace(&format!("spec.nodeName={node}`"), "spec.nodeName=NODE`");
        match groups.iter_mut().find(|(known, ..)| *known == of_any) {
            Some((_, _, nodes)) => nodes.push(node),
            None => groups.push((of_any, problem, vec![node])),
        }
    }
    let line = |(of_any, problem, nodes): (String, String, Vec<&str>)| match nodes.as_slice() {
        [node] => format!("node {node}: {problem}"),
        nodes => format!("nodes {}: {of_any}", named(nodes, MAX_NODES)),
    };
    groups.into_iter().map(line).collect()
}
