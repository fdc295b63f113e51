//! The table of MIG layouts, for people.

use crate::{
    output::{TableCell, TableColumn, TextWidth, style, table},
    status::{fleet::FleetSummary, mig::LayoutStatus},
};
use gpunode_crds::{MigPhase, named};
use std::{collections::BTreeSet, fmt::Write as _};

/// Most pods named for one row.
const MAX_PODS: usize = 3;

/// Returns one row for each node and each layout on the way; at most `most` rows. With `all`, also GPUs that have their layout.
pub fn layouts(fleet: &FleetSummary, all: bool, most: usize, width: TextWidth) -> String {
    let mut rows: Vec<(&str, Vec<&LayoutStatus>)> = Vec::new();
    for node in &fleet.nodes {
        for gpu in node.mig.iter().filter(|gpu| all || gpu.is_open()) {
            let is_like = |(name, group): &&mut (&str, Vec<&LayoutStatus>)| {
                *name == node.name && group.first().is_some_and(|first| row_key(first) == row_key(gpu))
            };
            match rows.iter_mut().find(is_like) {
                Some((_, group)) => group.push(gpu),
                None => rows.push((&node.name, vec![gpu])),
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let cells: Vec<_> = rows.iter().take(most).map(|(node, group)| row(node, group)).collect();
    let columns = [
        TableColumn::new("NODE"),
        TableColumn::new("GPUS"),
        TableColumn::new("PHASE"),
        TableColumn::below_after(2, "WANTED"),
        TableColumn::below_after(1, "HAS"),
        TableColumn::below("HELD BY"),
    ];
    let heading = style::HEADING;
    let mut text = format!("\n{heading}MIG LAYOUTS{heading:#}\n{}", table(width, columns, &cells));
    if rows.len() > cells.len() {
        let more = rows.len() - cells.len();
        let _ = writeln!(
            text,
            "and {more} more; list a node's with `kubectl gpunode status NODE`"
        );
    }
    text
}

/// Returns what the GPUs of a row have in common.
fn row_key(gpu: &LayoutStatus) -> (String, &str, &str) {
    (gpu.state(), &gpu.mig.wanted, &gpu.mig.observed)
}

fn row(node: &str, group: &[&LayoutStatus]) -> [TableCell; 6] {
    let gpus: Vec<String> = group.iter().map(|gpu| gpu.gpu.to_string()).collect();
    let pods: BTreeSet<&String> = group.iter().flat_map(|gpu| &gpu.held_by).collect();
    let (state, wanted, observed) = group.first().map(|first| row_key(first)).unwrap_or_default();
    let paint = group.first().map_or(style::PLAIN, |first| paint(first.mig.phase));
    [
        node.into(),
        gpus.join(", ").into(),
        TableCell::new(state, paint),
        wanted.into(),
        observed.into(),
        named(pods, MAX_PODS).into(),
    ]
}

fn paint(phase: MigPhase) -> anstyle::Style {
    match phase {
        MigPhase::Applied => style::GOOD,
        MigPhase::Blocked | MigPhase::RebootRequired | MigPhase::Failed => style::BAD,
        MigPhase::Waiting | MigPhase::AwaitingApproval | MigPhase::Applying | MigPhase::Unknown => style::WAITING,
        MigPhase::Unsupported => style::PLAIN,
    }
}
