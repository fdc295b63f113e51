//! Use of devices by the containers that hold them, for people.

use crate::{
    output::{TableCell, TableColumn, TextWidth, plain, style, table, wrapped},
    status::{fleet::FleetSummary, node::NodeSummary, node_usage::NodeUsage},
};
use gpunode_crds::{ContainerUsage, UsageReport, named};
use std::collections::BTreeSet;

const GIB: f64 = 1_073_741_824.0;
/// Most idle pods named for a node.
const MAX_PODS: usize = 5;
/// Sign of a figure that nobody can tell.
const UNKNOWN: &str = "?";

/// Returns one row for each container and device with figures, then what cannot be told and who is idle.
pub fn usage(fleet: &FleetSummary, width: TextWidth) -> String {
    let reports: Vec<(&NodeSummary, &UsageReport)> = fleet.nodes.iter().filter_map(report).collect();
    let rows: Vec<_> = reports
        .iter()
        .flat_map(|(node, report)| {
            report
                .containers
                .iter()
                .map(|container| row(&node.name, report, container))
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let columns = [
            TableColumn::new("NODE"),
            TableColumn::new("GPU"),
            TableColumn::new("POD"),
            TableColumn::below("CONTAINER"),
            TableColumn::new("MEMORY"),
            TableColumn::new("SM"),
            TableColumn::new("IDLE"),
        ];
        let heading = style::HEADING;
        text = format!("\n{heading}USED / GIVEN{heading:#}\n{}", table(width, columns, &rows));
    }
    for line in fleet.nodes.iter().flat_map(lines) {
        text.push_str(&(wrapped(&plain(&line), width, 2) + "\n"));
    }
    text
}

fn report(node: &NodeSummary) -> Option<(&NodeSummary, &UsageReport)> {
    match &node.usage {
        Some(NodeUsage::Report(report)) => Some((node, report)),
        _ => None,
    }
}

fn row(node: &str, report: &UsageReport, of: &ContainerUsage) -> [TableCell; 7] {
    let idle = of.idle_seconds.map_or_else(|| UNKNOWN.to_owned(), duration);
    let paint = if report.is_idle(of) {
        style::WAITING
    } else {
        style::PLAIN
    };
    [
        node.into(),
        of.gpu.as_str().into(),
        format!("{}/{}", of.namespace, of.pod).into(),
        of.container.as_str().into(),
        against(of.memory_used_bytes.map(gib), of.memory_given_bytes.map(gib), " GiB").into(),
        against(of.sm_used_ratio.map(percent), of.sm_given_ratio.map(percent), "%").into(),
        TableCell::new(idle, paint),
    ]
}

/// Returns `3.2/15.8 GiB`, or `3.2 GiB` of something that was not divided.
fn against(used: Option<String>, given: Option<String>, unit: &str) -> String {
    let used = used.unwrap_or_else(|| UNKNOWN.to_owned());
    match given {
        Some(given) => format!("{used}/{given}{unit}"),
        None if used == UNKNOWN => used,
        None => format!("{used}{unit}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "tenths of a GiB are shown")]
fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / GIB)
}

fn percent(ratio: f64) -> String {
    format!("{:.0}", ratio * 100.0)
}

/// Returns `45s`, `12m`, `1h`, `3h5m` or `2d4h`; empty for no time.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => String::new(),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m"),
        3600..86_400 if minutes % 60 == 0 => format!("{hours}h"),
        3600..86_400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// Says what cannot be told of a node, and who is idle there.
fn lines(node: &NodeSummary) -> Vec<String> {
    let name = &node.name;
    let report = match &node.usage {
        None => return Vec::new(),
        Some(NodeUsage::Unreadable { unreadable }) => {
            return vec![format!("{name}: what containers use is left out: {unreadable}")];
        }
        Some(NodeUsage::Report(report)) => report,
    };
    let mut lines = Vec::new();
    if let Some(problem) = &report.problem {
        lines.push(format!("{name}: what containers use is left out: {problem}"));
    }
    let problems: BTreeSet<&str> = report
        .containers
        .iter()
        .filter_map(|of| of.problem.as_deref())
        .collect();
    lines.extend(
        problems
            .into_iter()
            .map(|problem| format!("{name}: {UNKNOWN}: {problem}")),
    );
    let idle = report.containers.iter().filter(|of| report.is_idle(of));
    let idle: BTreeSet<String> = idle.map(|of| format!("{}/{}", of.namespace, of.pod)).collect();
    if let Some(limit) = report.idle_after_seconds.filter(|_| !idle.is_empty()) {
        let pods = named(&idle, MAX_PODS);
        lines.push(format!("{name}: idle for {} or longer: {pods}", duration(limit)));
    }
    if report.omitted > 0 {
        lines.push(format!("{name}: {} more containers are not listed", report.omitted));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::shared;

    const GIB: u64 = 1 << 30;

    fn shown(usage: &NodeUsage, width: TextWidth) -> String {
        let mut fleet = shared();
        for node in &mut fleet.nodes {
            node.usage = Some(usage.clone());
        }
        anstream::adapter::strip_str(&super::usage(&fleet, width)).to_string()
    }

    fn report() -> UsageReport {
        let of = |pod: &str, gpu: &str| ContainerUsage {
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            gpu: gpu.to_owned(),
            processes: Some(1),
            idle_seconds: Some(0),
            ..ContainerUsage::default()
        };
        UsageReport {
            idle_after_seconds: Some(3600),
            omitted: 3,
            containers: vec![
                ContainerUsage {
                    memory_used_bytes: Some(GIB / 10 * 32),
                    memory_given_bytes: Some(20 * GIB),
                    sm_used_ratio: Some(0.4),
                    ..of("llm", "0")
                },
                ContainerUsage {
                    memory_used_bytes: Some(GIB / 10 * 9),
                    memory_given_bytes: Some(80 * GIB),
                    sm_used_ratio: Some(0.0),
                    sm_given_ratio: Some(0.75),
                    idle_seconds: Some(7500),
                    ..of("notebook", "8")
                },
                ContainerUsage {
                    memory_given_bytes: Some(GIB / 10 * 95),
                    sm_given_ratio: Some(1.0),
                    idle_seconds: None,
                    problem: Some("the driver does not list processes: Not Supported".to_owned()),
                    ..of("train", "2:1")
                },
            ],
            ..UsageReport::default()
        }
    }

    #[test]
    fn each_container_has_what_it_uses_beside_what_it_was_given_and_idle_ones_are_named() {
        insta::assert_snapshot!(shown(&NodeUsage::Report(report()), TextWidth::of(120)), @r"

        USED / GIVEN
        NODE   GPU   POD           CONTAINER   MEMORY         SM       IDLE
        n      0     ml/llm        main        3.2/20.0 GiB   40%      -
        n      8     ml/notebook   main        0.9/80.0 GiB   0/75%    2h5m
        n      2:1   ml/train      main        ?/9.5 GiB      ?/100%   ?
        n: ?: the driver does not list processes: Not Supported
        n: idle for 1h or longer: ml/notebook
        n: 3 more containers are not listed
        ");
    }

    #[test]
    fn a_narrow_screen_shows_the_same_figures() {
        let mut report = report();
        for container in &mut report.containers {
            container.pod.push_str("-5d8f7c9b6d-x7k2p-of-a-long-name");
        }
        let text = shown(&NodeUsage::Report(report), TextWidth::of(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("3.2/20.0 GiB") && text.contains("2h5m") && text.contains("?/100%"),
            "{text}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_one_line() {
        let unreadable = NodeUsage::Unreadable {
            unreadable: "no answer within 5s".to_owned(),
        };
        assert_eq!(
            shown(&unreadable, TextWidth::UNLIMITED),
            "n: what containers use is left out: no answer within 5s\n"
        );
        let off = UsageReport {
            problem: Some("usage.interval of the configuration is 0s".to_owned()),
            ..UsageReport::default()
        };
        assert_eq!(
            shown(&NodeUsage::Report(off), TextWidth::UNLIMITED),
            "n: what containers use is left out: usage.interval of the configuration is 0s\n"
        );
    }
}
