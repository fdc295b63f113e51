//! The state of the cluster for people.

use super::fleet::{Configuration, Fleet, NodeState, PolicyState};
use crate::output::{Cell, style, table};
use std::fmt::Write as _;

/// Tables of nodes and policies, then what stands in their way.
pub fn fleet(fleet: &Fleet) -> String {
    let mut text = if fleet.nodes.is_empty() {
        "no GpuNode yet: they appear when gpunode-discovery finds a GPU, or when a policy with a devicePlugin matches a node\n"
            .to_owned()
    } else {
        let rows: Vec<_> = fleet.nodes.iter().map(node_row).collect();
        table(["NODE", "HARDWARE", "POLICY", "RESOURCES", "CONFIG", "READY", "REASON"], &rows)
    };
    text.push('\n');
    if fleet.policies.is_empty() {
        text.push_str("no GpuNodePolicy yet: write one and see what it would do with `kubectl gpunode plan -f FILE`\n");
    } else {
        let rows: Vec<_> = fleet.policies.iter().map(policy_row).collect();
        let heading = [
            "POLICY",
            "MODE",
            "PRIORITY",
            "MATCHED",
            "NODES READY",
            "UPDATING",
            "FAILED",
            "CONFLICTED",
            "READY",
            "REASON",
        ];
        text.push_str(&table(heading, &rows));
    }
    let problems = problems(fleet);
    if !problems.is_empty() {
        let heading = style::HEADING;
        let _ = write!(text, "\n{heading}PROBLEMS{heading:#}\n{problems}");
    }
    text
}

fn node_row(node: &NodeState) -> [Cell; 7] {
    let resources: Vec<String> = node
        .resources
        .iter()
        .map(|resource| {
            let waiting = if resource.registered { "" } else { " (not registered)" };
            format!("{} {}/{}{waiting}", resource.name, resource.allocatable, resource.capacity)
        })
        .collect();
    let less = node
        .resources
        .iter()
        .any(|resource| !resource.registered || resource.allocatable < i64::from(resource.capacity));
    let configuration = match node.configuration {
        Configuration::None => Cell::new("none", style::PLAIN),
        Configuration::InForce => Cell::new("in force", style::GOOD),
        Configuration::Pending => Cell::new("pending", style::WAITING),
        Configuration::Unknown => Cell::new("unknown", style::WAITING),
        Configuration::Rejected => Cell::new("rejected", style::BAD),
    };
    [
        node.name.as_str().into(),
        node.hardware.as_deref().unwrap_or_default().into(),
        node.policy.as_deref().unwrap_or_default().into(),
        Cell::new(resources.join(", "), if less { style::WAITING } else { style::PLAIN }),
        configuration,
        ready(&node.ready),
        node.reason.as_deref().unwrap_or_default().into(),
    ]
}

fn policy_row(policy: &PolicyState) -> [Cell; 10] {
    let count = |count: i32, paint| Cell::new(count.to_string(), if count > 0 { paint } else { style::PLAIN });
    [
        policy.name.as_str().into(),
        policy.mode.as_str().into(),
        policy.priority.to_string().into(),
        policy.matched.to_string().into(),
        policy.ready_nodes.to_string().into(),
        count(policy.updating, style::WAITING),
        count(policy.failed, style::BAD),
        count(policy.conflicted, style::BAD),
        ready(&policy.ready),
        policy.reason.as_deref().unwrap_or_default().into(),
    ]
}

fn ready(status: &str) -> Cell {
    let paint = match status {
        "True" => style::GOOD,
        "False" => style::BAD,
        _ => style::WAITING,
    };
    Cell::new(status, paint)
}

fn problems(fleet: &Fleet) -> String {
    let mut text = String::new();
    for object in &fleet.unreadable {
        let _ = writeln!(text, "{} {}: {}", object.kind, object.name, object.message);
    }
    for policy in &fleet.policies {
        for message in &policy.messages {
            let _ = writeln!(text, "policy {}: {message}", policy.name);
        }
        for failure in &policy.failures {
            let _ = writeln!(
                text,
                "policy {}: node {}: {}: {}",
                policy.name, failure.node, failure.reason, failure.message
            );
        }
        let (named, broken) = (policy.failures.len(), policy.failed + policy.conflicted);
        let more = usize::try_from(broken).unwrap_or_default().saturating_sub(named);
        if named > 0 && more > 0 {
            let _ = writeln!(text, "policy {}: and {more} more nodes", policy.name);
        }
    }
    let is_named =
        |name: &str| fleet.policies.iter().flat_map(|policy| &policy.failures).any(|failure| failure.node == name);
    for node in fleet.nodes.iter().filter(|node| !is_named(&node.name)) {
        if let Some(message) = &node.message {
            let _ = writeln!(text, "node {}: {}: {message}", node.name, node.reason.as_deref().unwrap_or("NotReady"));
        }
    }
    for node in &fleet.nodes {
        for problem in &node.problems {
            let _ = writeln!(text, "node {}: {problem}", node.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::fleet::tests::sample;

    fn shown(fleet: &Fleet) -> String {
        anstream::adapter::strip_str(&super::fleet(fleet)).to_string()
    }

    #[test]
    fn a_fleet_is_one_table_with_its_problems_below() {
        insta::assert_snapshot!(shown(&sample()), @r"
        NODE   HARDWARE                   POLICY   RESOURCES            CONFIG     READY     REASON
        a      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 7/8   in force   True      ConfigurationInForce
        b      8 x Tesla-V100-SXM2-32GB   v100     -                    rejected   False     ConfigurationRejected
        c      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 0/8   pending    Unknown   NodeNotReady
        d      -                          -        -                    unknown    Unknown   StatusUnreadable
        f      4 x Tesla-T4               -        -                    none       Unknown   AgentNotReporting
        g      8 x Tesla-V100-SXM2-32GB   gone     nvidia.com/gpu 0/8   in force   True      ConfigurationInForce

        POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
        new      Preview   0          0         0             0          0        0            Unknown   -
        v100     Enforce   100        3         1             1          1        0            False     NodesUpdating

        PROBLEMS
        GpuNode d: its status cannot be read: bad time
        policy new: the operator has not seen the present spec; is it running?
        policy v100: Degraded (NodesFailed): 1 node failed
        policy v100: node b: ConfigurationRejected: resources[0].name: bad
        node c: NodeNotReady: the node's kubelet is not ready
        node c: nvidia.com/gpu: the agent says 7, the Node offers 0; look at the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=c`
        node g: nvidia.com/gpu: the agent says 7, the Node offers 0; look at the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=g`
        node g: its configuration comes from policy gone, which does not exist; the operator takes it away, so see whether it runs: `kubectl -n gpunode-system get pods`
        ");
    }

    #[test]
    fn an_empty_cluster_says_what_comes_next() {
        insta::assert_snapshot!(shown(&Fleet { nodes: Vec::new(), policies: Vec::new(), unreadable: Vec::new() }), @r"
        no GpuNode yet: they appear when gpunode-discovery finds a GPU, or when a policy with a devicePlugin matches a node

        no GpuNodePolicy yet: write one and see what it would do with `kubectl gpunode plan -f FILE`
        ");
    }
}
