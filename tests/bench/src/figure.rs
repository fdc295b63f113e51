//! The figures, their targets, and what NVIDIA's plugin showed on the same kind of machine with a simulated NVML, 8 A100 and
//! a real kubelet.

/// One figure.
#[derive(Debug)]
pub struct Figure {
    /// Name in the output of the measurements.
    pub key: &'static str,
    /// Name for people.
    what: &'static str,
    /// The unit of target and value; empty for a number of things.
    pub unit: &'static str,
    /// The most that meets the target, if there is one.
    target: Option<f64>,
    nvidia: &'static str,
}

/// Result for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// Also where nothing was measured.
    Missed,
    NoTarget,
}

const fn target(key: &'static str, what: &'static str, most: f64, unit: &'static str, nvidia: &'static str) -> Figure {
    Figure {
        key,
        what,
        unit,
        target: Some(most),
        nvidia,
    }
}

const fn only(key: &'static str, what: &'static str, unit: &'static str) -> Figure {
    Figure {
        key,
        what,
        unit,
        target: None,
        nvidia: "",
    }
}

/// All of them, in the order of the table.
pub const FIGURES: &[Figure] = &[
    target(
        "agent-rss",
        "agent: VmRSS after 60 s idle, 8 V100, API connection open",
        12.0,
        "MiB",
        "32 MB",
    ),
    target(
        "agent-rss-companions",
        "agent: VmRSS after 60 s idle, companions with 1,000 shares and no driver, configuration from a file",
        8.0,
        "MiB",
        "",
    ),
    target(
        "agent-start",
        "agent: exec to Register's OK with a saved configuration, the simulated NVML's time included, median of 10",
        15.0,
        "ms",
        "9 ms after its first log line",
    ),
    target(
        "change-unhealthy",
        "a configuration change: \"Endpoint became unhealthy\" in the kubelet's log",
        0.0,
        "",
        "one each time",
    ),
    target(
        "replace-gap",
        "agent replaced: old stream's end to new first list, from the kubelet's log",
        100.0,
        "ms",
        "seconds (a new pod)",
    ),
    target(
        "replace-zero",
        "agent replaced 20 times: how often node status was seen at 0",
        0.0,
        "",
        "0 within 4 s of SIGTERM",
    ),
    target(
        "allocate-p99",
        "Allocate at the agent's socket, 16 x 64 replicas, 1,000 calls, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "allocate-unit-p99",
        "Allocate of 1 unit, 16 x 80 units of memory, 1,000 calls, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "allocate-units-p99",
        "Allocate of 8 units, 16 x 80 units of memory, 160 calls, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "allocate-strategies-p99",
        "Allocate by every strategy, 8 GPUs x 128 replicas, 1,000 calls, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "cdi-file",
        "a changed configuration to the new CDI file, 16 GPUs with 7 MIG devices each, slowest of 20",
        20.0,
        "ms",
        "",
    ),
    target(
        "container-start-hooks",
        "a container start with gpunode's hooks, longer than without hooks, median of 60 pairs",
        20.0,
        "ms",
        "",
    ),
    target(
        "xid-to-list",
        "XID to ListAndWatch message, 8 V100, p99 of 104",
        10.0,
        "ms",
        "",
    ),
    target(
        "idle-cpu",
        "agent: processor over an idle minute, of one core",
        0.1,
        "%",
        "",
    ),
    target(
        "mps-cpu",
        "MPS supervisor of 8 daemons: processor over an idle minute, of one core",
        0.2,
        "%",
        "",
    ),
    target("best-3-of-16", "best 3 of 16 GPUs", 1.0, "ms", "16.9 s"),
    target(
        "slowest-of-16",
        "slowest of every request on 16 whole GPUs: three boards, three allocations",
        1.0,
        "ms",
        "",
    ),
    target("slowest-of-replicas", "the same of 16 x 64 replicas", 1.0, "ms", ""),
    target("slowest-of-mig", "the same of 16 x 7 MIG devices", 1.0, "ms", ""),
    target(
        "mig-decision",
        "slowest decision about the layouts of 8 GPUs with 7 instances each, any of them in use",
        5.0,
        "ms",
        "",
    ),
    target(
        "mig-change",
        "8 GPUs get 7 instances each, from the approval until all are offered: longer than the driver's calls one after the other",
        20.0,
        "%",
        "all pods end first (mig-manager)",
    ),
    target(
        "preferred-3-p99",
        "GetPreferredAllocation at the socket, 3 of 16 GPUs, 1,000 calls, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "preferred-all-p99",
        "GetPreferredAllocation at the socket, 1 to 16 of 16 GPUs, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "list-replicas-p99",
        "ListAndWatch message after a change, 16 x 64 replicas, p99",
        1.0,
        "ms",
        "",
    ),
    target(
        "list-units-p99",
        "ListAndWatch message after a change, 16 x 80 units of memory, p99",
        1.0,
        "ms",
        "",
    ),
    only(
        "change-replicas",
        "a changed configuration to the first new list, 1,024 replicas, median",
        "ms",
    ),
    only(
        "change-units",
        "a changed configuration to the first new list, 1,280 units, median",
        "ms",
    ),
    only(
        "agent-rss-no-api",
        "agent: VmRSS after 60 s idle, 8 V100, API server does not answer",
        "MiB",
    ),
    only(
        "discovery-rss",
        "discovery: VmRSS after 60 s idle, node without GPU",
        "MiB",
    ),
    only(
        "operator-rss",
        "operator: VmRSS after 60 s idle, five nodes, the greater of both",
        "MiB",
    ),
    only(
        "apply-to-allocatable",
        "`kubectl apply` of a policy to 8 GPUs allocatable",
        "s",
    ),
    target(
        "event-ratio",
        "one event of a node: with 5,000 nodes in the cache, against with 10",
        1.2,
        "x",
        "",
    ),
    target(
        "writes-at-start",
        "writes planned by a leader that begins, everything in force on 5,000 nodes",
        0.0,
        "",
        "",
    ),
    target(
        "writes-per-node",
        "writes per node for a policy that changes labels and taints together",
        1.0,
        "",
        "",
    ),
    target(
        "writes-idle",
        "writes in 60 s of an unchanged world, the Lease left out",
        0.0,
        "",
        "",
    ),
    target(
        "cluster-up",
        "local cluster: five nodes from warm to Ready",
        30.0,
        "s",
        "",
    ),
    target("agent-image", "image of the agent", 40.0, "MB", ""),
    target("operator-image", "image of the operator", 40.0, "MB", ""),
];

impl Figure {
    /// Compares a value with the target.
    pub fn verdict(&self, value: Option<f64>) -> Verdict {
        match (self.target, value) {
            (None, _) => Verdict::NoTarget,
            (Some(most), Some(value)) if value <= most => Verdict::Met,
            (Some(_), _) => Verdict::Missed,
        }
    }

    /// For people at a terminal.
    pub fn line(&self, value: Option<f64>) -> String {
        let [target, measured, verdict] = self.cells(value);
        let target = if target.is_empty() {
            target
        } else {
            format!("target {target}")
        };
        format!("{verdict:8}{measured:>14}  {target:18}{}", self.what)
            .trim_end()
            .to_owned()
    }

    /// For the table of the document.
    pub fn row(&self, value: Option<f64>) -> String {
        let [target, measured, verdict] = self.cells(value);
        format!(
            "| {} | {target} | {measured} | {verdict} | {} |\n",
            self.what, self.nvidia
        )
    }

    fn cells(&self, value: Option<f64>) -> [String; 3] {
        let number = |value: f64| format!("{value} {}", self.unit).trim_end().to_owned();
        let verdict = match self.verdict(value) {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::NoTarget => "",
        };
        let measured = value.map_or_else(|| "not measured".to_owned(), number);
        [
            self.target.map(number).unwrap_or_default(),
            measured,
            verdict.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn figure(key: &str) -> &'static Figure {
        FIGURES.iter().find(|figure| figure.key == key).unwrap()
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        let figure = figure("agent-rss");
        assert_eq!(
            [None, Some(12.0), Some(12.1)].map(|value| figure.verdict(value)),
            [Verdict::Missed, Verdict::Met, Verdict::Missed]
        );
        assert!(
            figure.row(None).contains("| 12 MiB | not measured | missed | 32 MB |"),
            "{}",
            figure.row(None)
        );
    }

    #[test]
    fn a_figure_without_target_is_never_missed() {
        assert_eq!(figure("discovery-rss").verdict(Some(1000.0)), Verdict::NoTarget);
        assert_eq!(figure("discovery-rss").verdict(None), Verdict::NoTarget);
    }

    #[test]
    fn keys_are_there_once() {
        let keys: BTreeSet<&str> = FIGURES.iter().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), FIGURES.len());
    }
}
