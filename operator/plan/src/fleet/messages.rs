//! Messages in the status of a policy.

use gpunode_crds::{NodeCounts, NodeWaiting, named, plural};
use jiff::SignedDuration;

/// Maximum number of nodes that a message names.
const MAX_NAMED: usize = 3;
/// Maximum number of characters of an error in a message.
const MAX_ERROR: usize = 512;

/// No node changes.
pub const NO_CHANGE: &str = "no change is under way";
/// The policy can come into force.
pub const NOT_STALLED: &str = "nothing stops the policy";
/// No key of the policy belongs to somebody else.
pub const NO_CONFLICT: &str = "no other owner is in the way";
/// No node failed.
pub const NO_FAILURE: &str = "no matched node failed";
/// No device waits for pods.
pub const NOTHING_WAITS: &str = "no device waits for a pod to end";
/// The policy matches nothing.
pub const NO_MATCH: &str = "no node matches";

/// Progress of a rollout: `changing` are the nodes that are changing.
pub fn rollout_progress<'a>(done: usize, all: usize, changing: impl ExactSizeIterator<Item = &'a str>) -> String {
    let have = if done == 1 { "has" } else { "have" };
    let changing = match changing.len() {
        0 => String::new(),
        1 => format!("; {} is changing", named(changing, 1)),
        _ => format!("; {} are changing", named(changing, MAX_NAMED)),
    };
    format!("{done} of {all} nodes {have} the new configuration{changing}")
}

/// Progress of taints that evict pods: from `done` of `all` nodes no pod has to go any more, from those in `evicting` some have.
pub fn taints_progress<'a>(done: usize, all: usize, evicting: impl ExactSizeIterator<Item = &'a str>) -> String {
    let evicting = match evicting.len() {
        0 => String::new(),
        _ => format!("; pods leave {}", named(evicting, MAX_NAMED)),
    };
    format!("NoExecute taints: {done} of {all} nodes are done{evicting}")
}

/// Removal of what a policy wrote that is gone, from this many nodes.
pub fn removal_paced(policy: &str, nodes: usize) -> String {
    let nodes = plural(nodes, "node loses", "nodes lose");
    format!(
        "policy {policy} is gone: {nodes} its labels, taints, configuration and agents; removals reach 1 % of their nodes (at \
         least 10) each second; apply the policy again, and the nodes still to come keep everything"
    )
}

/// Policy that is missing although nobody saw its deletion; it has something on this many nodes.
pub fn policy_missing(policy: &str, nodes: usize) -> String {
    let nodes = plural(nodes, "node", "nodes");
    format!(
        "policy {policy} is missing from the list of policies, and nobody saw its deletion: its agents, and what it wrote on {nodes}, \
         stay for a minute; apply the policy again if it should stay"
    )
}

/// Number of nodes out of all that match.
pub fn of_matched(number: i32, counts: &NodeCounts) -> String {
    format!("{number} of {} matched nodes", counts.matched)
}

/// Progress where no rollout is under way.
pub fn nodes_updating(updating: i32, counts: &NodeCounts) -> String {
    format!("{} are updating", of_matched(updating, counts))
}

/// Rollout that a node stopped.
pub fn rollout_stopped(node: &str, cause: &str) -> String {
    format!("stopped: node {node} failed: {cause}; no other node changes until the policy's spec changes")
}

/// Progress of a replacement of agents.
pub fn agents_updating(updated: i32, all: i32) -> String {
    let are = if updated == 1 { "is" } else { "are" };
    format!("{updated} of {all} agents {are} updated; the old ones serve until then")
}

/// Replacement of agents that missed its deadline.
pub fn agents_late(deadline: SignedDuration, progress: &str, daemonset: &str) -> String {
    format!(
        "no agent has taken over in the last {deadline:#}: {progress}; see the pods of DaemonSet {daemonset} that are not Ready"
    )
}

/// Conflict on the first of some nodes.
pub fn nodes_conflict(node: &str, cause: &str, counts: &NodeCounts) -> String {
    format!("{} conflict; {node}: {cause}", of_matched(counts.conflicted, counts))
}

/// Failure of the first of some nodes.
pub fn nodes_failed(node: &str, reason: &str, cause: &str, counts: &NodeCounts) -> String {
    format!(
        "{} failed; {node}: {reason}: {cause}",
        of_matched(counts.failed, counts)
    )
}

/// Nodes on which pods get no GPU, of which `node` is the first.
pub fn pods_get_no_gpu(nodes: usize, node: &str, cause: &str, counts: &NodeCounts) -> String {
    let nodes = i32::try_from(nodes).unwrap_or(i32::MAX);
    format!("pods get no GPU on {}; {node}: {cause}", of_matched(nodes, counts))
}

/// Policy in mode Preview.
pub fn preview_only(counts: &NodeCounts) -> String {
    format!(
        "{} would change; nothing is written",
        of_matched(counts.updating, counts)
    )
}

/// Policy in mode Paused.
pub fn paused(counts: &NodeCounts) -> String {
    let nodes = usize::try_from(counts.matched).unwrap_or_default();
    let nodes = plural(nodes, "node stays as it is", "nodes stay as they are");
    format!("{nodes}; no further node is added")
}

/// Policy that is not in force on a node where somebody has to act first.
pub fn not_in_force_on(node: &str, cause: &str, counts: &NodeCounts) -> String {
    format!(
        "in force on {}; not on {node}: {cause}",
        of_matched(counts.ready, counts)
    )
}

/// Devices that wait for pods to end, or for another obstacle to go, of which `first` is the first.
pub fn devices_waiting(devices: usize, nodes: usize, first: &NodeWaiting) -> String {
    let (wait, on) = (
        plural(devices, "device waits", "devices wait"),
        plural(nodes, "node", "nodes"),
    );
    let cause = match (&first.message, first.pods.len()) {
        (Some(message), 0) => format!(": {message}"),
        (None, 0) => " for the kubelet".to_owned(),
        _ => format!(" for {}", named(&first.pods, MAX_NAMED)),
    };
    format!(
        "{wait} on {on}, first on {}{cause}; status.waiting names each cause",
        first.node
    )
}

/// Policy in force. On `waiting` of the nodes devices wait for their holders; `old` agents are not updated. Nothing of the policy
/// is left on `lost` ready nodes; `overridden` is the first node with a loss, and the loss.
pub fn in_force(waiting: usize, old: i32, lost: i32, overridden: Option<(&str, &str)>, counts: &NodeCounts) -> String {
    let waiting = match waiting {
        0 => String::new(),
        nodes => format!("; on {nodes} of them, devices wait, as condition Waiting says"),
    };
    // Tells no nodes: which agents are old is not known.
    let old = match old {
        0 => String::new(),
        1 => "; 1 agent is not updated".to_owned(),
        old => format!("; {old} agents are not updated"),
    };
    let overridden = overridden.map_or_else(String::new, |(node, loss)| match counts.overridden {
        1 => format!("; overridden on {node}: {loss}"),
        nodes => format!("; overridden on {nodes} nodes, first on {node}: {loss}"),
    });
    let kept = of_matched(counts.ready.saturating_sub(lost), counts);
    format!("in force on {kept}{waiting}{old}{overridden}")
}

/// Describes a policy that cannot be read.
pub fn policy_unreadable(error: &str) -> String {
    let error: String = error.chars().take(MAX_ERROR).collect();
    format!(
        "this operator cannot read the policy: {error}; what it wrote stays as it is, and it applies to no further node; \
         install an operator of the policy's version, or change the policy"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: NodeCounts = NodeCounts {
        matched: 4,
        ready: 2,
        updating: 1,
        failed: 1,
        conflicted: 1,
        overridden: 2,
    };

    #[test]
    fn progress_names_three_nodes_at_most() {
        let progress = |changing: &[&'static str]| rollout_progress(1, 9, changing.iter().copied());
        assert_eq!(progress(&[]), "1 of 9 nodes has the new configuration");
        assert_eq!(
            progress(&["a"]),
            "1 of 9 nodes has the new configuration; a is changing"
        );
        assert_eq!(
            progress(&["a", "b", "c", "d"]),
            "1 of 9 nodes has the new configuration; a, b, c and 1 more are changing"
        );
    }

    #[test]
    fn each_message_names_the_node_and_the_cause() {
        assert_eq!(
            rollout_stopped("n", "broken"),
            "stopped: node n failed: broken; no other node changes until the policy's spec changes"
        );
        assert_eq!(
            agents_late(SignedDuration::from_mins(10), &agents_updating(1, 3), "gpunode-agent-p"),
            "no agent has taken over in the last 10m: 1 of 3 agents is updated; the old ones serve until then; see the pods \
             of DaemonSet gpunode-agent-p that are not Ready"
        );
        let one = NodeCounts { matched: 1, ..COUNTS };
        assert_eq!(paused(&one), "1 node stays as it is; no further node is added");
        assert_eq!(nodes_conflict("n", "m", &COUNTS), "1 of 4 matched nodes conflict; n: m");
        assert_eq!(
            nodes_failed("n", "R", "m", &COUNTS),
            "1 of 4 matched nodes failed; n: R: m"
        );
        assert_eq!(
            pods_get_no_gpu(2, "n", "m", &COUNTS),
            "pods get no GPU on 2 of 4 matched nodes; n: m"
        );
        let waiting = |pods: &[&str]| NodeWaiting {
            node: "n".to_owned(),
            device: "GPU-1".to_owned(),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            message: None,
        };
        assert_eq!(
            devices_waiting(3, 2, &waiting(&["a/b", "c/d"])),
            "3 devices wait on 2 nodes, first on n for a/b, c/d; status.waiting names each cause"
        );
        assert_eq!(
            devices_waiting(1, 1, &waiting(&[])),
            "1 device waits on 1 node, first on n for the kubelet; status.waiting names each cause"
        );
        let blocked = NodeWaiting {
            message: Some("a process is on it".to_owned()),
            ..waiting(&[])
        };
        assert_eq!(
            devices_waiting(1, 1, &blocked),
            "1 device waits on 1 node, first on n: a process is on it; status.waiting names each cause"
        );
        assert_eq!(
            in_force(1, 0, 1, Some(("n", "label a by policy p (priority 1)")), &COUNTS),
            "in force on 1 of 4 matched nodes; on 1 of them, devices wait, as condition Waiting says; overridden on 2 \
             nodes, first on n: label a by policy p (priority 1)"
        );
        assert_eq!(
            in_force(1, 2, 0, None, &COUNTS),
            "in force on 2 of 4 matched nodes; on 1 of them, devices wait, as condition Waiting says; 2 agents are not updated"
        );
    }
}
