//! Unfinished rollouts, for people.

use crate::{
    output::{TableCell, TableColumn, TextWidth, style, table},
    status::{fleet::FleetSummary, rollout::RolloutSummary},
};
use gpunode_crds::named;

/// Most nodes named.
const NAMED: usize = 3;

/// Returns a row for each policy whose configuration is not on every node.
pub fn rollouts(fleet: &FleetSummary, width: TextWidth) -> String {
    let under_way = fleet.policies.iter().filter_map(|policy| {
        let rollout = policy.rollout.as_ref().filter(|rollout| !rollout.is_done())?;
        Some(row(&policy.name, rollout))
    });
    let rows: Vec<_> = under_way.collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        TableColumn::new("ROLLOUT"),
        TableColumn::new("IN FORCE"),
        TableColumn::below("CHANGING"),
        TableColumn::below("AT ONCE"),
        TableColumn::below("PENDING"),
        TableColumn::below("NOT WAITED FOR"),
        TableColumn::below("STOPPED AT"),
    ];
    format!("\n{}", table(width, columns, &rows))
}

fn row(policy: &str, rollout: &RolloutSummary) -> [TableCell; 7] {
    let count = |count: usize| if count == 0 { String::new() } else { count.to_string() };
    let stopped = rollout.stopped.iter().map(|stop| stop.node.as_str());
    [
        policy.into(),
        format!("{} of {}", rollout.in_force, rollout.nodes).into(),
        TableCell::new(named(&rollout.changing, NAMED), style::WAITING),
        count(rollout.at_once).into(),
        TableCell::new(count(rollout.pending), style::WAITING),
        TableCell::new(count(rollout.outside), style::WAITING),
        TableCell::new(named(stopped, NAMED), style::BAD),
    ]
}
