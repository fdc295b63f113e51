//! Devices, their holders, and the pods that they wait for, for people.

use crate::{
    output::{TableCell, TableColumn, TextWidth, plain, style, table, wrapped},
    status::{
        devices::{DeviceAvailability, DeviceSummary},
        faults::fault_name,
        fleet::FleetSummary,
        node::NodeSummary,
        resources::ResourceSummary,
    },
};
use gpunode_crds::{Holder, named};
use std::{collections::BTreeSet, fmt::Write as _};

/// Most pods named for one waiting change.
const MAX_PODS: usize = 3;

/// Returns every device of the nodes, with its holders.
pub fn device_table(fleet: &FleetSummary, width: TextWidth) -> String {
    let rows: Vec<_> = fleet.nodes.iter().flat_map(device_rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        TableColumn::new("NODE"),
        TableColumn::new("GPU"),
        TableColumn::below("DEVICE"),
        TableColumn::new("STATE"),
        TableColumn::below("FAULT"),
        TableColumn::below("RESOURCE"),
        TableColumn::new("HELD"),
        TableColumn::new("POD"),
        TableColumn::below("CONTAINER"),
    ];
    format!("\n{}", table(width, columns, &rows))
}

/// Returns one row for each holder of each device, and one for a device without a holder.
fn device_rows(node: &NodeSummary) -> Vec<[TableCell; 9]> {
    let row = |device: &DeviceSummary, holder: Option<&Holder>| {
        let of = |text: fn(&Holder) -> String| TableCell::from(holder.map(text).unwrap_or_default());
        let resource = holder.map(|holder| &holder.resource).or(device.resource.as_ref());
        [
            node.name.as_str().into(),
            gpu(device),
            device.hardware.as_str().into(),
            TableCell::new(device.state.text(), paint(device.state)),
            TableCell::new(device.fault.as_ref().map(fault_name).unwrap_or_default(), style::BAD),
            resource.map(String::as_str).unwrap_or_default().into(),
            held(device, holder).into(),
            of(|holder| format!("{}/{}", holder.namespace, holder.pod)),
            of(|holder| holder.container.clone()),
        ]
    };
    let rows = |device: &DeviceSummary| -> Vec<[TableCell; 9]> {
        let held = device.holders.iter().map(|holder| row(device, Some(holder)));
        held.chain(device.holders.is_empty().then(|| row(device, None)))
            .collect()
    };
    node.devices.iter().flat_map(rows).collect()
}

fn gpu(device: &DeviceSummary) -> TableCell {
    device.gpu.map(|gpu| gpu.to_string()).unwrap_or_default().into()
}

/// Returns `3/10` for three of ten shares, or `3` where the resource no longer has the device.
fn held(device: &DeviceSummary, holder: Option<&Holder>) -> String {
    let is_of = |holder: &Holder| device.resource.as_ref() == Some(&holder.resource);
    match holder {
        Some(holder) if !is_of(holder) => holder.count.to_string(),
        None if device.resource.is_none() => String::new(),
        _ => format!("{}/{}", holder.map_or(0, |holder| holder.count), device.shares),
    }
}

fn paint(state: DeviceAvailability) -> anstyle::Style {
    match state {
        DeviceAvailability::Gone
        | DeviceAvailability::Missing
        | DeviceAvailability::NoMpsDaemon
        | DeviceAvailability::Unhealthy => style::BAD,
        DeviceAvailability::Waits | DeviceAvailability::Withheld | DeviceAvailability::Released => style::WAITING,
        DeviceAvailability::Held | DeviceAvailability::Free | DeviceAvailability::NotOffered => style::PLAIN,
    }
}

/// Says why free shares are withheld, in one line per resource.
pub fn withheld(node: &NodeSummary, width: TextWidth) -> String {
    let line = |resource: &ResourceSummary| {
        let count = resource.withheld?;
        // The free healthy shares are all on this device.
        let free = |device: &DeviceSummary| i64::from(device.healthy) - device.held();
        let devices = node
            .devices
            .iter()
            .filter(|device| device.resource.as_ref() == Some(&resource.name));
        let most = devices
            .filter(|_| !node.holders_truncated)
            .max_by_key(|device| free(device));
        let most = most.map(|device| format!("; at most {} are free on one device ({})", free(device), device.name()));
        let (node, name) = (&node.name, &resource.name);
        Some(format!(
            "{node}: {name}: {count} withheld until a share is freed{}",
            most.unwrap_or_default()
        ))
    };
    let lines = node.resources.iter().filter_map(line);
    lines.map(|line| wrapped(&plain(&line), width, 2) + "\n").collect()
}

/// Changes of a node's GPUs that wait for the same reason.
struct WaitingChange<'a> {
    node: &'a str,
    reason: &'a str,
    /// Indices of its GPUs, files of companions, or UUIDs where the GPU is gone.
    devices: BTreeSet<(Option<u32>, String)>,
    pods: BTreeSet<&'a str>,
}

/// Returns the changes that wait for running pods, one row for each node and reason; at most `most` rows.
pub fn waiting(fleet: &FleetSummary, most: usize, width: TextWidth) -> String {
    let mut changes: Vec<WaitingChange> = Vec::new();
    for (node, device) in fleet
        .nodes
        .iter()
        .flat_map(|node| node.devices.iter().map(move |device| (node, device)))
    {
        let Some(waiting) = &device.waiting else { continue };
        let (node, reason) = (node.name.as_str(), waiting.message.as_str());
        let place = changes.iter().position(|of| of.node == node && of.reason == reason);
        let place = place.unwrap_or_else(|| {
            let (devices, pods) = (BTreeSet::new(), BTreeSet::new());
            changes.push(WaitingChange {
                node,
                reason,
                devices,
                pods,
            });
            changes.len() - 1
        });
        if let Some(change) = changes.get_mut(place) {
            let name = device.gpu.map_or_else(|| device.name(), |_| String::new());
            change.devices.insert((device.gpu, name));
            change.pods.extend(waiting.pods.iter().map(String::as_str));
        }
    }
    if changes.is_empty() {
        return String::new();
    }
    let row = |change: &WaitingChange| -> [TableCell; 4] {
        let device = |(gpu, name): &(Option<u32>, String)| gpu.map_or_else(|| name.clone(), |gpu| gpu.to_string());
        let devices: Vec<String> = change.devices.iter().map(device).collect();
        [
            change.node.into(),
            devices.join(", ").into(),
            named(&change.pods, MAX_PODS).into(),
            change.reason.into(),
        ]
    };
    let rows: Vec<_> = changes.iter().take(most).map(row).collect();
    let columns = [
        TableColumn::new("NODE"),
        TableColumn::new("GPUS"),
        TableColumn::below("HELD BY"),
        TableColumn::below("PENDING CHANGE"),
    ];
    let heading = style::HEADING;
    let table = table(width, columns, &rows);
    let mut text = format!("\n{heading}WAITING FOR RUNNING PODS{heading:#}\n{table}");
    if changes.len() > rows.len() {
        let more = changes.len() - rows.len();
        let _ = writeln!(
            text,
            "and {more} more; list a node's with `kubectl gpunode status NODE`"
        );
    }
    text
}
