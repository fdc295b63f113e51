//! Devices, their holders, and the pods that they wait for, for people.

use crate::{
    output::{TableCell, plain, style, table},
    status::{
        devices::{DeviceAvailability, DeviceSummary},
        fleet::FleetSummary,
        node::NodeSummary,
        resources::ResourceSummary,
    },
};
use gpunode_crds::{Holder, named};
use std::fmt::Write as _;

/// Most pods named for one waiting device.
const MAX_PODS: usize = 3;

/// Returns every device of the nodes, with its holders.
pub fn device_table(fleet: &FleetSummary) -> String {
    let rows: Vec<_> = fleet.nodes.iter().flat_map(device_rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = ["NODE", "GPU", "DEVICE", "STATE", "RESOURCE", "HELD", "POD", "CONTAINER"];
    format!("\n{}", table(heading, &rows))
}

/// Returns one row for each holder of each device, and one for a device without a holder.
fn device_rows(node: &NodeSummary) -> Vec<[TableCell; 8]> {
    let row = |device: &DeviceSummary, holder: Option<&Holder>| {
        let of = |text: fn(&Holder) -> String| TableCell::from(holder.map(text).unwrap_or_default());
        let resource = holder.map(|holder| &holder.resource).or(device.resource.as_ref());
        [
            node.name.as_str().into(),
            gpu(device),
            device.hardware.as_str().into(),
            TableCell::new(device.state.text(), paint(device.state)),
            resource.map(String::as_str).unwrap_or_default().into(),
            held(device, holder).into(),
            of(|holder| format!("{}/{}", holder.namespace, holder.pod)),
            of(|holder| holder.container.clone()),
        ]
    };
    let rows = |device: &DeviceSummary| -> Vec<[TableCell; 8]> {
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
pub fn withheld(node: &NodeSummary) -> String {
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
    lines.map(|line| plain(&line) + "\n").collect()
}

/// Returns the devices whose change waits for running pods; at most `most` of them.
pub fn waiting(fleet: &FleetSummary, most: usize) -> String {
    let devices = fleet
        .nodes
        .iter()
        .flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    let rows: Vec<[TableCell; 5]> = devices
        .filter_map(|(node, device)| {
            let waiting = device.waiting.as_ref()?;
            let pods = named(&waiting.pods, MAX_PODS);
            let (hardware, why) = (device.hardware.as_str(), waiting.message.as_str());
            Some([
                node.name.as_str().into(),
                gpu(device),
                hardware.into(),
                pods.into(),
                why.into(),
            ])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let shown = rows.get(..most).unwrap_or(&rows);
    let heading = style::HEADING;
    let table = table(["NODE", "GPU", "DEVICE", "HELD BY", "PENDING CHANGE"], shown);
    let mut text = format!("\n{heading}WAITING FOR RUNNING PODS{heading:#}\n{table}");
    if rows.len() > shown.len() {
        let _ = writeln!(
            text,
            "and {} more; list a node's with `kubectl gpunode status NODE`",
            rows.len() - shown.len()
        );
    }
    text
}
