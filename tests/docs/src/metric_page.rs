//! The metrics of a program as `/metrics` exposes them and as their reference documents them, in one form. Tests of the programs compare both.

use std::collections::BTreeSet;

/// Returns name, type and labels of each metric in a text in the OpenMetrics format, of which each has a series.
pub fn exposed_metrics(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| {
            // The text format appends these to the name.
            let (end, series) = match kind {
                "counter" => ("_total", "_total"),
                "info" => ("_info", "_info"),
                "histogram" => ("", "_count"),
                _ => ("", ""),
            };
            let series = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name}{series}")));
            let labels = series
                .and_then(|rest| rest.strip_prefix('{')?.split_once('}'))
                .map_or("", |(labels, _)| labels);
            let labels: Vec<_> = labels
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|it| it.0)
                .collect();
            format!("{name}{end} {kind} {}", labels.join(" "))
        })
        .collect()
}

/// Returns name, type and labels of each metric on the page whose name begins with `prefix`.
pub fn documented_metrics(page: &str, prefix: &str) -> BTreeSet<String> {
    let begin = format!("| `{prefix}");
    let rows = page.lines().filter(|line| line.starts_with(&begin));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split("; ").filter_map(|label| label.split('`').nth(1));
        let labels: Vec<_> = labels.collect();
        format!("{} {} {}", cells[1].trim_matches('`'), cells[2], labels.join(" "))
    })
    .collect()
}
