//! Figures of the operator's index alone, which a test of the operator prints as lines `figure: KEY | VALUE | UNIT`.

use crate::machine::describe_machine;
use anyhow::{Context, Result, bail, ensure};
use std::{collections::BTreeMap, fmt::Write as _};

/// Keys of the figures, their names and units, in the order of the table.
const INDEX_FIGURES: &[(&str, &str, &str)] = &[
    ("index-standby", "resident memory of a standby", "MiB"),
    ("index-leader", "the same of a leader with all previews", "MiB"),
    ("index-sweep", "a sweep: every node planned, every answer counted", "s"),
    ("index-plan", "one node of it, median", "µs"),
    ("index-plan-p99", "the same, p99", "µs"),
    ("index-event", "an event of one node, to its write, median", "µs"),
    ("index-edit", "an edit of one policy, to the first node, median", "ms"),
    ("index-edits", "edits of all policies together, to the first node", "ms"),
    ("index-previews", "previews of 20 policies on every node", "s"),
    ("index-turn", "longest turn of a sweep, p99.9", "ms"),
    ("index-preview-turn", "longest turn of previews, p99.9", "ms"),
    ("index-status", "status of one policy, slowest", "ms"),
];

/// Returns the figures in the output of the test, by key.
pub fn read_index_figures(output: &str) -> Result<BTreeMap<&'static str, f64>> {
    let mut measured = BTreeMap::new();
    // The test harness may have written before the line.
    let lines = output.lines().filter_map(|line| line.split_once("figure: "));
    for (_, line) in lines {
        let [key, value, unit] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            bail!("{line:?} is not KEY | VALUE | UNIT");
        };
        let figure = INDEX_FIGURES.iter().find(|figure| figure.0 == key);
        let (key, _, expected) = figure.with_context(|| format!("{key} is no figure of the index"))?;
        ensure!(*expected == unit, "{key} is in {expected}, not in {unit}");
        let value: f64 = value.parse().with_context(|| format!("read {key}: {value:?}"))?;
        measured.insert(*key, value);
    }
    let missing: Vec<&str> = INDEX_FIGURES
        .iter()
        .map(|figure| figure.0)
        .filter(|key| !measured.contains_key(key))
        .collect();
    ensure!(missing.is_empty(), "not measured: {}", missing.join(", "));
    Ok(measured)
}

/// Returns the table of these figures.
pub fn index_table(measured: &BTreeMap<&str, f64>) -> String {
    let mut table = format!(
        "{}\n\n| 20,000 nodes, 50 policies | measured |\n|---|---|\n",
        describe_machine()
    );
    for (key, what, unit) in INDEX_FIGURES {
        if let Some(value) = measured.get(key) {
            // Writing into a string cannot fail.
            let _ = writeln!(table, "| {what} | {value} {unit} |");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_every_figure_and_a_missing_one_is_an_error() {
        let mut output = "running 1 test\ntest a ... ".to_owned();
        for (key, _, unit) in INDEX_FIGURES {
            let _ = writeln!(output, "figure: {key} | 1.5 | {unit}");
        }
        let table = index_table(&read_index_figures(&output).unwrap());
        assert!(table.contains("| resident memory of a standby | 1.5 MiB |"), "{table}");
        assert_eq!(table.lines().count(), 2 + 2 + INDEX_FIGURES.len());
        let (all_but_one, _) = output.trim_end().rsplit_once('\n').unwrap();
        assert!(read_index_figures(all_but_one).is_err());
        assert!(read_index_figures("figure: other | 1 | s").is_err());
        assert!(read_index_figures("figure: index-sweep | 1 | ms").is_err());
    }
}
