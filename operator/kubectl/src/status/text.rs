//! The state of the cluster for people.
//!
//! | module | what it does |
//! |---|---|
//! | `devices` | tables of devices, their holders, and devices that wait |
//! | `usage` | the table of what is in use |
//! | `rollout` | the table of rollouts that are not finished |

mod devices;
mod rollout;
mod usage;

use super::{
    fleet::FleetSummary,
    node::{ConfigurationProgress, NodeSummary},
    policy::PolicySummary,
};
use crate::output::{NO_POLICY, TableCell, nearest_node_text, plain, plural, style, table};
use devices::{device_table, waiting, withheld};
use rollout::rollouts;
use std::fmt::Write as _;
use usage::usage;

/// Most waiting devices shown for a fleet; `-o json` has all of them.
const MAX_WAITING: usize = 20;

/// Returns tables of nodes and policies, then waiting devices and problems.
pub fn fleet(fleet: &FleetSummary) -> String {
    let mut text = if fleet.nodes.is_empty() && fleet.is_forbidden("GpuNode") {
        // PROBLEMS says why there is no table.
        String::new()
    } else if fleet.nodes.is_empty() {
        "no GpuNode exists yet; one appears when gpunode-discovery finds a GPU, or a policy with a devicePlugin matches a node\n"
            .to_owned()
    } else {
        node_table(fleet) + &usage(fleet)
    };
    if !text.is_empty() {
        text.push('\n');
    }
    if fleet.policies.is_empty() {
        if !fleet.is_forbidden("GpuNodePolicy") {
            let _ = writeln!(text, "{NO_POLICY}");
        }
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
        for (name, nearest) in fleet
            .policies
            .iter()
            .filter_map(|policy| Some((&policy.name, policy.nearest.as_ref()?)))
        {
            let _ = writeln!(
                text,
                "policy {name} matches no node; {}",
                plain(&nearest_node_text(nearest))
            );
        }
    }
    text.push_str(&rollouts(fleet));
    if let Some(discovery) = fleet.discovery {
        let _ = writeln!(text, "\n{}", discovery.text());
    }
    text.push_str(&waiting(fleet, MAX_WAITING));
    text.push_str(&problems(fleet));
    text
}

/// Returns the nodes, the holders of their devices, and problems.
pub fn nodes(fleet: &FleetSummary) -> String {
    let mut text = node_table(fleet) + &usage(fleet);
    text.push_str(&device_table(fleet));
    text.extend(fleet.nodes.iter().map(withheld));
    for node in fleet.nodes.iter().filter(|node| node.holders_truncated) {
        let _ = writeln!(
            text,
            "{}: the agent's list of holders is incomplete; more containers hold devices",
            node.name
        );
    }
    text.push_str(&waiting(fleet, usize::MAX));
    text.push_str(&problems(fleet));
    text
}

fn node_table(fleet: &FleetSummary) -> String {
    let rows: Vec<_> = fleet.nodes.iter().map(node_row).collect();
    table(
        ["NODE", "HARDWARE", "POLICY", "RESOURCES", "CONFIG", "READY", "REASON"],
        &rows,
    )
}

fn node_row(node: &NodeSummary) -> [TableCell; 7] {
    let resources: Vec<String> = node
        .resources
        .iter()
        .map(|resource| {
            let held = resource
                .held
                .filter(|held| *held > 0)
                .map(|held| format!("{held} held"));
            let withheld = resource.withheld.map(|count| format!("{count} withheld"));
            let unregistered = (!resource.registered).then(|| "not registered".to_owned());
            let more: Vec<String> = held.into_iter().chain(withheld).chain(unregistered).collect();
            let more = if more.is_empty() {
                String::new()
            } else {
                format!(" ({})", more.join(", "))
            };
            format!("{} {}/{}{more}", resource.name, resource.allocatable, resource.capacity)
        })
        .collect();
    let less = node
        .resources
        .iter()
        .any(|resource| !resource.registered || resource.allocatable < i64::from(resource.capacity));
    let configuration = match node.configuration {
        ConfigurationProgress::None => TableCell::new("none", style::PLAIN),
        ConfigurationProgress::InForce => TableCell::new("in force", style::GOOD),
        ConfigurationProgress::Pending => TableCell::new("pending", style::WAITING),
        ConfigurationProgress::Unknown => TableCell::new("unknown", style::WAITING),
        ConfigurationProgress::Rejected => TableCell::new("rejected", style::BAD),
    };
    [
        node.name.as_str().into(),
        node.hardware.as_deref().unwrap_or_default().into(),
        node.policy.as_deref().unwrap_or_default().into(),
        TableCell::new(resources.join(", "), if less { style::WAITING } else { style::PLAIN }),
        configuration,
        ready(&node.ready),
        node.reason.as_deref().unwrap_or_default().into(),
    ]
}

fn policy_row(policy: &PolicySummary) -> [TableCell; 10] {
    let count = |count: i32, paint| TableCell::new(count.to_string(), if count > 0 { paint } else { style::PLAIN });
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

fn ready(status: &str) -> TableCell {
    let paint = match status {
        "True" => style::GOOD,
        "False" => style::BAD,
        _ => style::WAITING,
    };
    TableCell::new(status, paint)
}

/// Returns the list of problems. Their text comes from statuses.
fn problems(fleet: &FleetSummary) -> String {
    let unreadable = fleet.unreadable.iter().map(ToString::to_string);
    let policies = fleet.policies.iter().flat_map(policy_problems);
    let is_named = |name: &str| {
        fleet
            .policies
            .iter()
            .flat_map(|policy| &policy.failures)
            .any(|failure| failure.node == name)
    };
    let unnamed = fleet.nodes.iter().filter(|node| !is_named(&node.name));
    let unready = unnamed.filter_map(|node| {
        let reason = node.reason.as_deref().unwrap_or("NotReady");
        Some(format!("node {}: {reason}: {}", node.name, node.message.as_ref()?))
    });
    let differences = fleet.nodes.iter().flat_map(|node| {
        node.problems
            .iter()
            .map(move |problem| format!("node {}: {problem}", node.name))
    });
    let lines: Vec<String> = unreadable.chain(policies).chain(unready).chain(differences).collect();
    if lines.is_empty() {
        return String::new();
    }
    let heading = style::HEADING;
    let lines: String = lines.iter().map(|line| plain(line) + "\n").collect();
    format!("\n{heading}PROBLEMS{heading:#}\n{lines}")
}

fn policy_problems(policy: &PolicySummary) -> Vec<String> {
    let name = &policy.name;
    let messages = policy
        .messages
        .iter()
        .map(|message| format!("policy {name}: {message}"));
    let failures = policy.failures.iter();
    let failures = failures.map(|it| format!("policy {name}: node {}: {}: {}", it.node, it.reason, it.message));
    let (named, faulty) = (policy.failures.len(), policy.failed + policy.conflicted);
    let more = usize::try_from(faulty).unwrap_or_default().saturating_sub(named);
    let more = (named > 0 && more > 0).then(|| {
        format!(
            "policy {name}: {} failed or in conflict",
            plural(more, "more node", "more nodes")
        )
    });
    messages.chain(failures).chain(more).collect()
}

#[cfg(test)]
mod tests;
