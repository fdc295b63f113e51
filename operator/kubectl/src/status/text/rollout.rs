//! Rollouts that are not over, for people.

use crate::{
    output::{TableCell, plain, style, table},
    status::{fleet::FleetSummary, policy::PolicySummary, rollout::RolloutSummary},
};
use std::fmt::Write as _;

/// Most nodes that are named.
const NAMED: usize = 3;

/// A row for each policy whose configuration is not on every node that it governs, and why where it stopped.
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
        "TO COME",
        "NOT AWAITED",
        "STOPPED AT",
    ];
    let mut text = format!("\n{}", table(heading, &rows));
    for policy in policies {
        for stop in policy.rollout.iter().filter_map(|rollout| rollout.stopped.first()) {
            let line = format!(
                "{}: stopped at {}: {}; no other node changes until the spec does",
                policy.name, stop.node, stop.why
            );
            let _ = writeln!(text, "{}", plain(&line));
        }
    }
    text
}

fn row(policy: &str, rollout: &RolloutSummary) -> [TableCell; 7] {
    let count = |count: usize| if count == 0 { String::new() } else { count.to_string() };
    let stopped: Vec<&str> = rollout.stopped.iter().map(|stop| stop.node.as_str()).collect();
    let changing: Vec<&str> = rollout.changing.iter().map(String::as_str).collect();
    [
        policy.into(),
        format!("{} of {}", rollout.in_force, rollout.nodes).into(),
        TableCell::new(named(&changing), style::WAITING),
        count(rollout.at_once).into(),
        TableCell::new(count(rollout.pending), style::WAITING),
        TableCell::new(count(rollout.outside), style::WAITING),
        TableCell::new(named(&stopped), style::BAD),
    ]
}

fn named(nodes: &[&str]) -> String {
    let shown = nodes.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = nodes.len().saturating_sub(NAMED);
    if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    }
}
