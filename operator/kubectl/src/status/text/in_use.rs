//! Memory, cores and shares in use, for people.

use crate::{
    output::{TableCell, TableColumn, TextWidth, table},
    status::{amount::HeldAmount, fleet::FleetSummary, in_use::AmountsInUse, node::NodeSummary},
};
use std::collections::{BTreeMap, BTreeSet};

/// MiB in a GiB.
const GIB: i64 = 1024;

/// Returns a row for each node that advertises devices, and one for all of them.
pub fn in_use(fleet: &FleetSummary, width: TextWidth) -> String {
    let offering = fleet.nodes.iter().filter(|node| !node.in_use.shares.is_empty());
    let mut rows: Vec<_> = offering
        .map(|node| row(&node.name, &node.in_use, by_gpu(node)))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    if rows.len() > 1 {
        let shares = fleet
            .in_use
            .shares
            .iter()
            .map(|(resource, shares)| format!("{resource} {}", part(*shares)));
        rows.push(row("ALL", &fleet.in_use, shares.collect::<Vec<_>>().join(", ")));
    }
    let columns = [
        TableColumn::new("IN USE"),
        TableColumn::new("MEMORY"),
        TableColumn::below("GPU CORES"),
        TableColumn::below("SHARES"),
    ];
    format!("\n{}", table(width, columns, &rows))
}

fn row(name: &str, amounts: &AmountsInUse, shares: String) -> [TableCell; 4] {
    let least = if amounts.at_least { "at least " } else { "" };
    let percent = |amount: HeldAmount| amount.held.saturating_mul(100).checked_div(amount.total);
    let memory = percent(amounts.memory).map(|percent| {
        let (held, total) = (
            tenths(amounts.memory.held * 10 / GIB),
            tenths(amounts.memory.total * 10 / GIB),
        );
        format!("{least}{held}/{total} GiB ({percent}%)")
    });
    let cores = percent(amounts.cores_percent).map(|percent| {
        let (held, total) = (
            tenths(amounts.cores_percent.held / 10),
            tenths(amounts.cores_percent.total / 10),
        );
        format!("{least}{held}/{total} ({percent}%)")
    });
    [
        name.into(),
        memory.unwrap_or_default().into(),
        cores.unwrap_or_default().into(),
        shares.into(),
    ]
}

/// Returns the shares of each GPU, MIG devices added up, and of each companion, such as `0: 30/80, 1: 0/10, rdma/hca: 2/64`.
fn by_gpu(node: &NodeSummary) -> String {
    let mut gpus = BTreeMap::<u32, HeldAmount>::new();
    for device in &node.devices {
        if let Some((gpu, shares)) = device.gpu.zip(device.in_use()) {
            gpus.entry(gpu).or_default().add(shares);
        }
    }
    let companions = node.devices.iter().filter(|device| device.companion);
    let resources: BTreeSet<&String> = companions.filter_map(|device| device.resource.as_ref()).collect();
    let shares = resources
        .into_iter()
        .filter_map(|name| Some((name, node.in_use.shares.get(name)?)));
    gpus.iter()
        .map(|(gpu, shares)| format!("{gpu}: {}", part(*shares)))
        .chain(shares.map(|(name, shares)| format!("{name}: {}", part(*shares))))
        .collect::<Vec<_>>()
        .join(", ")
}

fn part(amount: HeldAmount) -> String {
    format!("{}/{}", amount.held, amount.total)
}

/// Formats tenths: `12` as 1.2, and `20` as 2.
fn tenths(tenths: i64) -> String {
    if tenths % 10 == 0 {
        (tenths / 10).to_string()
    } else {
        format!("{}.{}", tenths / 10, tenths % 10)
    }
}
