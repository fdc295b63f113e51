//! Devices, who holds them and what they wait for, for people.

use crate::{
    output::{Cell, style, table},
    status::{devices::DeviceState, fleet::Fleet, node::NodeState},
};
use gpunode_crds::{Holder, MpsDaemonState};
use std::fmt::Write as _;

/// Pods that are named of one device that waits.
const MAX_PODS: usize = 3;

/// Every device of the nodes, with who holds it.
pub fn device_table(fleet: &Fleet) -> String {
    let rows: Vec<_> = fleet.nodes.iter().flat_map(device_rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = ["NODE", "GPU", "DEVICE", "STATE", "RESOURCE", "HELD", "POD", "CONTAINER"];
    format!("\n{}", table(heading, &rows))
}

/// One row for each holder of each device, and one for a device that nobody holds.
fn device_rows(node: &NodeState) -> Vec<[Cell; 8]> {
    let row = |device: &DeviceState, holder: Option<&Holder>| {
        let of = |text: fn(&Holder) -> String| Cell::from(holder.map(text).unwrap_or_default());
        [
            node.name.as_str().into(),
            gpu(device),
            device.hardware.as_str().into(),
            state(device),
            of(|holder| holder.resource.clone()),
            of(|holder| holder.count.to_string()),
            of(|holder| format!("{}/{}", holder.namespace, holder.pod)),
            of(|holder| holder.container.clone()),
        ]
    };
    let rows = |device: &DeviceState| -> Vec<[Cell; 8]> {
        let held = device.holders.iter().map(|holder| row(device, Some(holder)));
        held.chain(device.holders.is_empty().then(|| row(device, None))).collect()
    };
    node.devices.iter().flat_map(rows).collect()
}

fn gpu(device: &DeviceState) -> Cell {
    device.gpu.map(|gpu| gpu.to_string()).unwrap_or_default().into()
}

fn state(device: &DeviceState) -> Cell {
    match (&device.waiting, device.mps_daemon) {
        (_, Some(MpsDaemonState::NotAnswering)) => Cell::new("no MPS daemon", style::BAD),
        (Some(_), _) => Cell::new("waits", style::WAITING),
        (_, Some(MpsDaemonState::Stopping)) => Cell::new("MPS ends", style::WAITING),
        (_, Some(MpsDaemonState::Answering)) => Cell::new("MPS", style::PLAIN),
        _ if device.holders.is_empty() => Cell::new("free", style::PLAIN),
        _ => Cell::new("held", style::PLAIN),
    }
}

/// Devices whose change waits for running pods, with these; at most `most` of them.
pub fn waiting(fleet: &Fleet, most: usize) -> String {
    let devices = fleet.nodes.iter().flat_map(|node| node.devices.iter().map(move |device| (node, device)));
    let rows: Vec<[Cell; 5]> = devices
        .filter_map(|(node, device)| {
            let waiting = device.waiting.as_ref()?;
            let mut pods = waiting.pods.iter().take(MAX_PODS).cloned().collect::<Vec<_>>().join(", ");
            if waiting.pods.len() > MAX_PODS {
                let _ = write!(pods, " and {} more", waiting.pods.len() - MAX_PODS);
            }
            let (hardware, why) = (device.hardware.as_str(), waiting.message.as_str());
            Some([node.name.as_str().into(), gpu(device), hardware.into(), pods.into(), why.into()])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let shown = rows.get(..most).unwrap_or(&rows);
    let heading = style::HEADING;
    let table = table(["NODE", "GPU", "DEVICE", "HELD BY", "WHAT WAITS"], shown);
    let mut text = format!("\n{heading}WAITING FOR RUNNING PODS{heading:#}\n{table}");
    if rows.len() > shown.len() {
        let _ = writeln!(
            text,
            "and {} more; `kubectl gpunode status NODE` shows those of a node",
            rows.len() - shown.len()
        );
    }
    text
}
