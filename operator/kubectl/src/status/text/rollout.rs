//! Unfinished rollouts, for people.

use crate::{
    output::{TableCell, plain, style, table},
    status::{fleet::FleetSummary, policy::PolicySummary, rollout::RolloutSummary},
};
use gpunode_crds::named;
use gpunode_plan::rollout_stopped;
use std::fmt::Write as _;

/// Most nodes named.
const NAMED: usize = 3;

/// Returns a row for each policy whose configuration is not on every node, and the reason where it stopped.
pub fn rollouts(fleet: &FleetSummary) -> String {
    let under_way = |policy: &'_ &PolicySummary| policy.rollout.as_ref().is_some_and(|rollout| !rollout.is_done());
    let policies: Vec<&PolicySummary> = fleet.policies.iter().filter(under_way).collect();
    let rows: Vec<_> = policies
        .iter()
        .filter_map(|policy| Some(row(&policy.name, policy.rollout.as_ref()?)))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = [
        "ROLLOUT",
        "IN FORCE",
        "CHANGING",
        "AT ONCE",
        "PENDING",
        "NOT WAITED FOR",
        "STOPPED AT",
    ];
    let mut text = format!("\n{}", table(heading, &rows));
    for policy in policies {
        for stop in policy.rollout.iter().filter_map(|rollout| rollout.stopped.first()) {
            let line = format!("{}: {}", policy.name, rollout_stopped(&stop.node, &stop.why));
            let _ = writeln!(text, "{}", plain(&line));
        }
    }
    text
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
