//! The parts of `docs/scale.md` that the bench writes.

use crate::{figures::FLEET_FIGURES, machine::describe_machine, number};
use anyhow::{Context, Result};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Longest bar of the plot, in characters.
const BAR: f64 = 40.0;

/// A change of all policies by number of nodes and policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRow {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of policies.
    pub policies: usize,
    /// Seconds from the edit to the last write of a node.
    pub seconds: f64,
    /// Writes of Nodes for each node.
    pub writes_per_node: f64,
    /// Resident memory of the greater replica, in MiB.
    pub resident: f64,
    /// Processor time of the leader for a node, in milliseconds.
    pub leader: f64,
    /// Processor time of the standby for a node, in milliseconds.
    pub standby: f64,
    /// Processor time of the API server for a node, in milliseconds.
    pub api_server: f64,
}

/// Returns the table of the figures by their keys.
pub fn figure_table(measured: &BTreeMap<&str, f64>) -> String {
    let mut table = format!(
        "{}\n\n| figure | target | measured | |\n|---|---|---|---|\n",
        describe_machine()
    );
    for figure in FLEET_FIGURES {
        let (text, verdict) = match measured.get(figure.key) {
            Some(value) if figure.is_met(*value) => (figure.measured(*value), "met"),
            Some(value) => (figure.measured(*value), "missed"),
            None => ("not measured".to_owned(), ""),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(table, "| {} | {} | {text} | {verdict} |", figure.what, figure.target());
    }
    table
}

/// Returns the table of the rows, and a plot of their times.
pub fn scale_table(rows: &[ScaleRow]) -> String {
    let mut text = format!(
        "{}\n\n\
         | nodes | policies | time | writes | memory | leader | standby | API server |\n\
         |---|---|---|---|---|---|---|---|\n",
        describe_machine()
    );
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} s | {:.2} | {:.0} MiB | {:.2} ms | {:.2} ms | {:.2} ms |",
            row.nodes,
            row.policies,
            row.seconds,
            row.writes_per_node,
            row.resident,
            row.leader,
            row.standby,
            row.api_server
        );
    }
    text.push_str("\nTime for each node, and what the greater replica keeps in memory:\n\n```\n");
    let longest = |of: RowFigure| rows.iter().map(of).fold(f64::MIN_POSITIVE, f64::max);
    let plots: [(&str, RowFigure); 2] = [("ms/node", per_node), ("MiB", |row| row.resident)];
    for (title, of) in plots {
        let longest = longest(of);
        for row in rows {
            let _ = writeln!(
                text,
                "{:>5} nodes, {:>2} policies {:<40} {:.1} {title}",
                row.nodes,
                row.policies,
                bar(of(row) / longest),
                of(row)
            );
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push_str("\n```\n");
    text
}

/// Returns the growth from the second greatest number of nodes to the greatest, for each number of policies; a sentence
/// where the rows have fewer than two numbers of nodes.
pub fn growth_table(rows: &[ScaleRow]) -> String {
    let sizes: BTreeSet<usize> = rows.iter().map(|row| row.nodes).collect();
    let mut greatest = sizes.into_iter().rev();
    let (Some(most), Some(fewer)) = (greatest.next(), greatest.next()) else {
        return "Measured with one number of nodes.\n".to_owned();
    };
    let mut text = format!(
        "Memory from {fewer} to {most} nodes; times for each node with {fewer} and with {most}:\n\n\
         | policies | per 1,000 nodes | rest | time | leader | standby | API server |\n\
         |---|---|---|---|---|---|---|\n"
    );
    let policies: BTreeSet<usize> = rows.iter().map(|row| row.policies).collect();
    for policies in policies {
        let of = |nodes: usize| rows.iter().find(|row| (row.nodes, row.policies) == (nodes, policies));
        let (Some(small), Some(large)) = (of(fewer), of(most)) else {
            continue;
        };
        let per_thousand = (large.resident - small.resident) / number(most - fewer) * 1000.0;
        let without = small.resident - per_thousand * number(fewer) / 1000.0;
        let both = |of: RowFigure| format!("{:.2}, {:.2} ms", of(small), of(large));
        let _ = writeln!(
            text,
            "| {policies} | {per_thousand:.1} MiB | {without:.0} MiB | {} | {} | {} | {} |",
            both(per_node),
            both(|row| row.leader),
            both(|row| row.standby),
            both(|row| row.api_server)
        );
    }
    text
}

/// A figure of a row.
type RowFigure = fn(&ScaleRow) -> f64;

/// Milliseconds for each node.
fn per_node(row: &ScaleRow) -> f64 {
    row.seconds * 1000.0 / number(row.nodes.max(1))
}

/// A bar of this share of the longest.
fn bar(share: f64) -> String {
    let mut bar = String::new();
    let mut end = 0.5;
    while end <= share * BAR {
        bar.push('#');
        end += 1.0;
    }
    bar
}

/// Returns the document with `text` between the marks of this name.
pub fn filled(document: &str, name: &str, text: &str) -> Result<String> {
    let begin = format!("<!-- make bench-fleet writes {name} from here -->\n");
    let end = format!("<!-- {name} to here -->\n");
    let (before, rest) = document
        .split_once(&begin)
        .with_context(|| format!("find the line {}", begin.trim()))?;
    let (_, after) = rest
        .split_once(&end)
        .with_context(|| format!("find the line {} after it", end.trim()))?;
    Ok(format!("{before}{begin}\n{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(nodes: usize, seconds: f64, resident: f64) -> ScaleRow {
        ScaleRow {
            nodes,
            policies: 1,
            seconds,
            writes_per_node: 1.0,
            resident,
            leader: 1.0,
            standby: 0.4,
            api_server: 5.0,
        }
    }

    #[test]
    fn filling_twice_keeps_the_rest_of_the_document() {
        let document = include_str!("../../../docs/scale.md");
        let table = scale_table(&[row(10, 0.1, 12.0)]);
        let once = filled(document, "the table", &table).unwrap();
        assert!(
            once.contains("| 10 | 1 | 0.1 s | 1.00 | 12 MiB | 1.00 ms | 0.40 ms | 5.00 ms |"),
            "{once}"
        );
        assert_eq!(filled(&once, "the table", &table).unwrap(), once);
        let figures = figure_table(&BTreeMap::from([("idle-cpu", 0.5)]));
        let both = filled(&once, "the figures", &figures).unwrap();
        assert!(
            both.contains("| at most 1 % | 0.500 % | met |") && both.contains("12 MiB"),
            "{both}"
        );
        assert!(filled("text", "the table", &table).is_err());
        for name in ["the growth", "the index"] {
            assert!(filled(&both, name, "text").is_ok(), "{name}");
        }
    }

    #[test]
    fn growth_is_that_between_the_two_greatest_fleets() {
        let rows = [row(10, 0.1, 12.0), row(1000, 8.0, 20.0), row(5000, 45.0, 52.0)];
        let table = growth_table(&rows);
        let line = "| 1 | 8.0 MiB | 12 MiB | 8.00, 9.00 ms | 1.00, 1.00 ms | 0.40, 0.40 ms | 5.00, 5.00 ms |";
        assert_eq!(table.lines().last(), Some(line), "{table}");
        assert!(!growth_table(&rows[..1]).contains('|'));
    }

    #[test]
    fn table_and_plot_fit_a_terminal() {
        let rows = [row(1000, 8.0, 20.0), row(5000, 45.0, 1052.0)];
        for line in scale_table(&rows).lines().skip(1) {
            assert!(line.len() <= 80, "{line:?}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0).len(), 40);
        assert_eq!(bar(0.5).len(), 20);
        assert_eq!(bar(0.0), "");
    }
}
