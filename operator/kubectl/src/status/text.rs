//! The state of the cluster for people.
//!
//! | module | what it does |
//! |---|---|
//! | `problems` | the list of problems, each sentence once |
//! | `devices` | tables of devices, their holders, and changes that wait |
//! | `usage` | the table of what containers use |
//! | `mig` | the table of MIG layouts |
//! | `in_use` | the table of what is in use |
//! | `rollout` | the table of rollouts that are not finished |

mod devices;
mod in_use;
mod mig;
mod problems;
mod rollout;
mod usage;

use super::{
    faults::fault_names,
    fleet::FleetSummary,
    node::{ConfigurationProgress, NodeSummary},
    policy::PolicySummary,
};
use crate::output::{NO_POLICY, TableCell, TableColumn, TextWidth, nearest_node_text, plain, style, table, wrapped};
use devices::{device_table, waiting, withheld};
use in_use::in_use;
use mig::layouts;
use problems::problems;
use rollout::rollouts;
use std::fmt::Write as _;
use usage::usage;

/// Most waiting changes, and layouts on the way, shown for a fleet; `-o json` has all of them.
const MAX_WAITING: usize = 20;

/// Returns the problems, then tables of nodes and policies, then waiting changes.
pub fn fleet(fleet: &FleetSummary, width: TextWidth) -> String {
    let mut text = problems(fleet, width);
    if fleet.nodes.is_empty() && fleet.is_forbidden("GpuNode") {
        // The problems say why there is no table.
    } else if fleet.nodes.is_empty() {
        let none = "no GpuNode exists yet; one appears when gpunode-discovery finds a GPU, or a policy with a devicePlugin matches a node";
        let _ = writeln!(text, "{}\n", wrapped(none, width, 2));
    } else {
        text.push_str(&node_table(fleet, width));
        text.push_str(&in_use(fleet, width));
        text.push('\n');
    }
    if fleet.policies.is_empty() {
        if !fleet.is_forbidden("GpuNodePolicy") {
            let _ = writeln!(text, "{}", wrapped(NO_POLICY, width, 2));
        }
    } else {
        let rows: Vec<_> = fleet.policies.iter().map(policy_row).collect();
        let columns = [
            TableColumn::new("POLICY"),
            TableColumn::below("MODE"),
            TableColumn::below("PRIORITY"),
            TableColumn::new("MATCHED"),
            TableColumn::new("NODES READY"),
            TableColumn::below("UPDATING"),
            TableColumn::below("FAILED"),
            TableColumn::below("CONFLICTED"),
            TableColumn::new("READY"),
            TableColumn::below_after(1, "REASON"),
        ];
        text.push_str(&table(width, columns, &rows));
        for (name, message) in fleet
            .policies
            .iter()
            .filter_map(|policy| Some((&policy.name, policy.override_message.as_ref()?)))
        {
            let line = format!("policy {name}: {}", plain(message));
            let _ = writeln!(text, "{}", wrapped(&line, width, 2));
        }
        for (name, nearest) in fleet
            .policies
            .iter()
            .filter_map(|policy| Some((&policy.name, policy.nearest.as_ref()?)))
        {
            let line = format!("policy {name} matches no node; {}", plain(&nearest_node_text(nearest)));
            let _ = writeln!(text, "{}", wrapped(&line, width, 2));
        }
    }
    text.push_str(&rollouts(fleet, width));
    if let Some(discovery) = fleet.discovery {
        let _ = writeln!(text, "\n{}", wrapped(&discovery.text(), width, 2));
    }
    text.push_str(&layouts(fleet, false, MAX_WAITING, width));
    text.push_str(&waiting(fleet, MAX_WAITING, width));
    text
}

/// Returns the problems, then the nodes and the holders of their devices.
pub fn nodes(fleet: &FleetSummary, width: TextWidth) -> String {
    let mut text = problems(fleet, width) + &node_table(fleet, width) + &in_use(fleet, width);
    text.push_str(&device_table(fleet, width));
    text.extend(fleet.nodes.iter().map(|node| withheld(node, width)));
    for node in fleet.nodes.iter().filter(|node| node.holders_truncated) {
        let line = format!(
            "{}: the agent's list of holders is incomplete; more containers hold devices",
            node.name
        );
        let _ = writeln!(text, "{}", wrapped(&line, width, 2));
    }
    text.push_str(&usage(fleet, width));
    text.push_str(&layouts(fleet, true, usize::MAX, width));
    text.push_str(&waiting(fleet, usize::MAX, width));
    text
}

fn node_table(fleet: &FleetSummary, width: TextWidth) -> String {
    let rows: Vec<_> = fleet.nodes.iter().map(node_row).collect();
    let columns = [
        TableColumn::new("NODE"),
        TableColumn::below("HARDWARE"),
        TableColumn::below_after(1, "POLICY"),
        TableColumn::below("RESOURCES"),
        TableColumn::new("CONFIG"),
        TableColumn::new("READY"),
        TableColumn::below_after(2, "REASON"),
        TableColumn::below_after(3, "FAULT"),
    ];
    table(width, columns, &rows)
}

fn node_row(node: &NodeSummary) -> [TableCell; 8] {
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
        TableCell::new(fault_names(&node.devices), style::BAD),
    ]
}

fn policy_row(policy: &PolicySummary) -> [TableCell; 10] {
    [
        policy.name.as_str().into(),
        policy.mode.as_str().into(),
        policy.priority.to_string().into(),
        policy.matched.to_string().into(),
        policy.ready_nodes.to_string().into(),
        TableCell::count(policy.updating, style::WAITING),
        TableCell::count(policy.failed, style::BAD),
        TableCell::count(policy.conflicted, style::BAD),
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

#[cfg(test)]
mod tests;
