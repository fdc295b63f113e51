//! The figures of `make bench-fleet` and their targets.

use std::fmt;

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Columns before the name of a figure.
const INDENT: usize = 37;

/// One figure.
#[derive(Debug)]
pub struct FleetFigure {
    /// Name in the output.
    pub key: &'static str,
    /// Name for people.
    pub what: &'static str,
    /// Unit of target and value; empty for a number of things.
    pub unit: &'static str,
    target: FigureTarget,
}

/// Bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FigureTarget {
    AtLeast(f64),
    AtMost(f64),
}

impl fmt::Display for FigureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

const fn least(key: &'static str, what: &'static str, least: f64, unit: &'static str) -> FleetFigure {
    FleetFigure {
        key,
        what,
        unit,
        target: FigureTarget::AtLeast(least),
    }
}

const fn most(key: &'static str, what: &'static str, most: f64, unit: &'static str) -> FleetFigure {
    FleetFigure {
        key,
        what,
        unit,
        target: FigureTarget::AtMost(most),
    }
}

/// All of them, in the order of the table.
pub const FLEET_FIGURES: &[FleetFigure] = &[
    least("label-ratio", "label and taint change, against raw", 0.95, ""),
    most("label-writes", "the same: most writes of one node", 1.0, ""),
    most("leader-cpu", "leader's processor per node changed", 1.0, "ms"),
    most("standby-cpu", "standby's processor per node changed", 0.4, "ms"),
    most("memory-steady", "resident memory, steady, 1 policy", 48.0, "MiB"),
    most(
        "memory-peak",
        "peak after a restart, or after 410 on all watches at once",
        72.0,
        "MiB",
    ),
    most(
        "memory-after",
        "resident memory after 410 on all watches at once, of that before",
        1.2,
        "x",
    ),
    most("memory-policies", "50 policies, 20 previews: steady", 96.0, "MiB"),
    most(
        "lease-late",
        "50 policies edited at once: the Lease's request begins late by",
        100.0,
        "ms",
    ),
    most("livez-p99", "the same: /livez, p99", 100.0, "ms"),
    most(
        "served-p99",
        "the same: a health taint or a new node is served, p99",
        1.0,
        "s",
    ),
    most(
        "expired-ratio",
        "410 on all watches at once: back, of a bare list by two clients",
        1.5,
        "x",
    ),
    most("expired-writes", "the same: writes", 0.0, ""),
    most(
        "configuration-spec-writes",
        "configuration change, `maxUnavailable: 10%`, agents that answer in 1 s: writes of GpuNode.spec per node",
        1.0,
        "",
    ),
    most(
        "configuration-status-writes",
        "the same: writes of the status per node, by agent and operators",
        1.0,
        "",
    ),
    most(
        "configuration-ratio",
        "the same: time, of 10 s and the same writes raw",
        1.2,
        "x",
    ),
    most(
        "silent-spec-writes",
        "the same with agents that never answer: most writes of the GpuNode.spec of one that does",
        1.0,
        "",
    ),
    most(
        "silent-budget",
        "the same: most nodes that change at the same time, of `maxUnavailable`",
        1.0,
        "x",
    ),
    most(
        "slow-lease",
        "API server slower by 200 ms for each request: longest time between renewals of the Lease",
        10.0,
        "s",
    ),
    most("slow-livez-p99", "the same: /livez, p99", 100.0, "ms"),
    most("slow-requests", "the same: most requests to write one node", 1.0, ""),
    most("idle-cpu", "idle with heartbeats: leader, of one core", 1.0, "%"),
    most(
        "failover-restart",
        "leader killed, its container starts again: first write, of a bare list by one client",
        1.5,
        "x",
    ),
    most(
        "failover-standby",
        "leader killed for good: first write of the other replica (Lease of 15 s, and half a second for a write)",
        15.5,
        "s",
    ),
    most(
        "failover-stop",
        "leader stopped: the other replica holds the Lease",
        1.0,
        "s",
    ),
    most("failover-writes", "the three: most writes of one node", 1.0, ""),
];

impl FleetFigure {
    /// Returns true if the value meets the target.
    pub fn is_met(&self, value: f64) -> bool {
        match self.target {
            FigureTarget::AtLeast(least) => value >= least,
            FigureTarget::AtMost(most) => value <= most,
        }
    }

    /// The target with its unit.
    pub fn target(&self) -> String {
        format!("{} {}", self.target, self.unit).trim_end().to_owned()
    }

    /// A measured value with its unit.
    pub fn measured(&self, value: f64) -> String {
        format!("{value:.3} {}", self.unit).trim_end().to_owned()
    }

    /// For people at a terminal.
    pub fn line(&self, value: f64) -> String {
        let verdict = if self.is_met(value) { "met" } else { "missed" };
        let (measured, target) = (self.measured(value), self.target());
        format!("{verdict:7}{measured:>12}  {target:16}{}", wrapped(self.what))
    }
}

/// Returns a name on as many lines as it needs beside the columns before it.
fn wrapped(name: &str) -> String {
    let mut text = String::new();
    let mut free = COLUMNS - INDENT;
    for word in name.split(' ') {
        if !text.is_empty() && word.len() >= free {
            text.push('\n');
            text.push_str(&" ".repeat(INDENT));
            free = COLUMNS - INDENT;
        } else if !text.is_empty() {
            text.push(' ');
            free -= 1;
        }
        text.push_str(word);
        free = free.saturating_sub(word.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn bounds_are_met_at_their_value() {
        let of = |key: &str| FLEET_FIGURES.iter().find(|figure| figure.key == key).unwrap();
        assert!(of("label-ratio").is_met(0.95) && !of("label-ratio").is_met(0.94));
        assert!(of("idle-cpu").is_met(1.0) && !of("idle-cpu").is_met(1.01));
        assert_eq!(of("leader-cpu").target(), "at most 1 ms");
        assert!(
            of("leader-cpu")
                .line(0.5)
                .starts_with("met        0.500 ms  at most 1 ms")
        );
    }

    #[test]
    fn lines_for_people_fit_a_terminal() {
        for figure in FLEET_FIGURES {
            let text = figure.line(1234.5);
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words.join(" ").ends_with(figure.what), "{text}");
            for line in text.lines() {
                assert!(line.len() <= COLUMNS, "{line:?}");
            }
        }
    }

    #[test]
    fn keys_of_figures_are_there_once() {
        let keys: BTreeSet<&str> = FLEET_FIGURES.iter().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), FLEET_FIGURES.len());
    }
}
