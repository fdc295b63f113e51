//! Links, holders and the answer to a request, for people.

use super::{
    links::{LinkedGpu, level, symbol},
    request::{DeviceChoice, RequestAnswer},
    topology::{CompanionTopology, NodeTopology},
};
use crate::output::{TableCell, TableColumn, TextWidth, grid, plain, style, table, wrapped};
use gpunode_crds::{Holder, LinkLevel, MigDevice, MigPhase, MigStatus, named};
use std::{collections::BTreeSet, fmt::Write as _};

/// Most pods named for one GPU.
const MAX_PODS: usize = 2;

/// Meanings of the table's symbols, nearest first.
const LEGEND: [(LinkLevel, &str); 7] = [
    (LinkLevel::Internal, "the same board"),
    (LinkLevel::Pix, "one PCIe switch"),
    (LinkLevel::Pxb, "several PCIe switches, without a host bridge"),
    (LinkLevel::Phb, "a PCIe host bridge, typically the CPU"),
    (LinkLevel::Node, "host bridges of one NUMA node"),
    (LinkLevel::Sys, "the interconnect between NUMA nodes"),
    (LinkLevel::Unknown, "the driver does not report it"),
];

/// Returns the table of links and holders, its legend, and the answer.
pub fn topology(topology: &NodeTopology, width: TextWidth) -> String {
    let mut text = if topology.gpus.is_empty() {
        format!("node {} has no GPU\n", plain(&topology.node))
    } else {
        matrix(&topology.gpus, width) + &legend(&topology.gpus, width) + &instances(&topology.gpus, width)
    };
    text.push_str(&companions(&topology.companions, width));
    let bad = style::BAD;
    if !topology.missing.is_empty() {
        let missing: Vec<_> = topology.missing.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "\n{bad}missing: GPU {}{bad:#}", missing.join(", "));
    }
    if topology.holders_truncated {
        let _ = writeln!(text, "\n{bad}the agent's list of holders is incomplete{bad:#}");
    }
    topology
        .request
        .iter()
        .for_each(|answer| text.push_str(&request(answer, width)));
    text
}

fn matrix(gpus: &[LinkedGpu], width: TextWidth) -> String {
    let heading = |text: &str| TableCell::new(text, style::HEADING);
    let name = |gpu: &LinkedGpu| format!("GPU{}", gpu.index);
    let names = gpus.iter().map(|gpu| heading(&name(gpu)));
    let mut rows: Vec<Vec<TableCell>> = vec![
        [heading("GPU")]
            .into_iter()
            .chain(names)
            .chain([heading("NUMA AFFINITY"), heading("HELD BY")])
            .collect(),
    ];
    for gpu in gpus {
        let link = |to: &LinkedGpu| match gpu.links.iter().find(|link| link.peer == to.index) {
            _ if to.index == gpu.index => TableCell::from("X"),
            Some(link) if link.nvlinks > 0 => TableCell::new(symbol(link), style::GOOD),
            Some(link) => symbol(link).into(),
            None => level(LinkLevel::Unknown).into(),
        };
        let numa = gpu.numa_node.map_or_else(|| "N/A".to_owned(), |node| node.to_string());
        let cells = [heading(&name(gpu))].into_iter().chain(gpus.iter().map(link));
        rows.push(cells.chain([numa.into(), holders(gpu).into()]).collect());
    }
    grid(width, &rows.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn holders(gpu: &LinkedGpu) -> String {
    pods(gpu.holders.iter())
}

fn pods<'a>(holders: impl Iterator<Item = &'a Holder>) -> String {
    let pods: BTreeSet<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    named(pods, MAX_PODS)
}

/// Returns the MIG devices of the GPUs, and how far each GPU is with its layout.
fn instances(gpus: &[LinkedGpu], width: TextWidth) -> String {
    let row = |gpu: &LinkedGpu, device: Option<&MigDevice>| -> [TableCell; 5] {
        let name = device.map(|of| format!("{} ({}/{})", of.profile, of.gpu_instance, of.compute_instance));
        let held = device.map(|of| pods(gpu.holders.iter().filter(|holder| holder.device == of.uuid)));
        [
            format!("GPU{}", gpu.index).into(),
            name.unwrap_or_default().into(),
            device.map(|of| of.uuid.as_str()).unwrap_or_default().into(),
            held.unwrap_or_default().into(),
            gpu.mig.as_ref().map(progress).unwrap_or_default().into(),
        ]
    };
    let rows = gpus
        .iter()
        .filter(|gpu| gpu.mig.is_some() || !gpu.mig_devices.is_empty())
        .flat_map(|gpu| {
            let devices = gpu.mig_devices.iter().map(|device| row(gpu, Some(device)));
            devices
                .chain(gpu.mig_devices.is_empty().then(|| row(gpu, None)))
                .collect::<Vec<_>>()
        });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        TableColumn::new("GPU"),
        TableColumn::new("MIG DEVICE"),
        TableColumn::below("UUID"),
        TableColumn::new("HELD BY"),
        TableColumn::new("LAYOUT"),
    ];
    format!("\n{}", table(width, columns, &rows))
}

/// Returns the companions with their NUMA nodes and holders.
fn companions(companions: &[CompanionTopology], width: TextWidth) -> String {
    if companions.is_empty() {
        return String::new();
    }
    let row = |companion: &CompanionTopology| -> [TableCell; 4] {
        let numa = companion
            .numa_node
            .map_or_else(|| "N/A".to_owned(), |node| node.to_string());
        [
            companion.resource.as_str().into(),
            companion.name.as_str().into(),
            numa.into(),
            pods(companion.holders.iter()).into(),
        ]
    };
    let rows: Vec<_> = companions.iter().map(row).collect();
    let columns = [
        TableColumn::new("RESOURCE"),
        TableColumn::below("FILES"),
        TableColumn::new("NUMA AFFINITY"),
        TableColumn::new("HELD BY"),
    ];
    format!("\n{}", table(width, columns, &rows))
}

/// Says how far a GPU is with its layout, and with which unless it has it.
fn progress(mig: &MigStatus) -> String {
    match mig.phase {
        MigPhase::Applied => mig.phase.as_str().to_owned(),
        phase => format!("{}: {}", phase.as_str(), mig.wanted),
    }
}

/// Explains the symbols that occur.
fn legend(gpus: &[LinkedGpu], width: TextWidth) -> String {
    let links = || gpus.iter().flat_map(|gpu| &gpu.links);
    let mut text = String::from("\n");
    let line = |text: &str| wrapped(text, width, 7) + "\n";
    if links().any(|link| link.nvlinks > 0) {
        text.push_str(&line("NV#  = # NVLinks, directly or through NVSwitches"));
    }
    for (of, words) in LEGEND {
        if links().any(|link| link.level == of && link.nvlinks == 0) {
            text.push_str(&line(&format!("{:4} = {words}", level(of))));
        }
    }
    if text.len() > 1 { text } else { String::new() }
}

fn request(answer: &RequestAnswer, width: TextWidth) -> String {
    let heading = style::HEADING;
    let (size, resource, order, free) = (answer.size, plain(&answer.resource), &answer.order, answer.free);
    let mut text = format!("\n{heading}REQUEST{heading:#} {size} of {resource}, {order}; {free} free\n");
    let row = |(rank, set): (usize, &DeviceChoice)| -> [TableCell; 7] {
        let style = if rank == 0 { style::GOOD } else { style::PLAIN };
        let left = set.left_free.as_ref();
        [
            TableCell::new((rank + 1).to_string(), style),
            TableCell::new(gpus(set), style),
            set.pair_scores.to_string().into(),
            set.numa_nodes.to_string().into(),
            left.map(|left| left.gpus.to_string()).unwrap_or_default().into(),
            left.map(|left| left.pair_scores.to_string()).unwrap_or_default().into(),
            set.held_by_others.to_string().into(),
        ]
    };
    let rows: Vec<_> = answer.choices.iter().enumerate().map(row).collect();
    if !rows.is_empty() {
        let heading = [
            TableColumn::new("RANK"),
            TableColumn::new("GPUS"),
            TableColumn::new("PAIR SCORES"),
            TableColumn::below("NUMA NODES"),
            TableColumn::below("LEFT FREE"),
            TableColumn::below("FREE PAIR SCORES"),
            TableColumn::new("LOAD"),
        ];
        text.push_str(&table(width, heading, &rows));
    }
    let said = match answer.choices.first() {
        Some(set) => {
            let many = set
                .devices
                .iter()
                .any(|picked| set.devices.first().is_some_and(|first| first.gpu != picked.gpu));
            format!(
                "GPU{} {} would be chosen: {}",
                if many { "s" } else { "" },
                gpus(set),
                answer.why
            )
        }
        None if answer.companion && answer.size <= answer.free => answer.why.clone(),
        None => format!("nothing would be chosen: {}", answer.why),
    };
    let _ = writeln!(text, "{}", wrapped(&said, width, 2));
    text
}

/// Returns `0, 3`, or `0 x2, 3` where more than one share comes from a GPU.
fn gpus(set: &DeviceChoice) -> String {
    let mut counts: Vec<(u32, u32)> = Vec::new();
    for picked in &set.devices {
        match counts.last_mut() {
            Some((gpu, shares)) if *gpu == picked.gpu => *shares += picked.shares,
            _ => counts.push((picked.gpu, picked.shares)),
        }
    }
    let one = |(gpu, shares): &(u32, u32)| {
        if *shares > 1 {
            format!("{gpu} x{shares}")
        } else {
            gpu.to_string()
        }
    };
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}
