//! Output of the measurements: lines `figure: KEY | VALUE | UNIT` among others.

use crate::figure::FIGURES;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;

/// Values by key. Where a figure was measured more than once, as on several boards, the greatest counts.
pub fn read(text: &str) -> Result<BTreeMap<&'static str, f64>> {
    let mut measured = BTreeMap::new();
    // The test harness may have written before the line.
    for line in text
        .lines()
        .filter_map(|line| line.split_once("figure: "))
        .map(|(_, line)| line)
    {
        let [key, value, unit] = line.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            bail!("{line:?} is not KEY | VALUE | UNIT");
        };
        let figure = FIGURES
            .iter()
            .find(|figure| figure.key == key)
            .with_context(|| format!("{key} is no figure"))?;
        ensure!(figure.unit == unit, "{key} is in {}, not in {unit}", figure.unit);
        let value: f64 = value
            .parse()
            .with_context(|| format!("read the value of {key}: {value:?}"))?;
        ensure!(value.is_finite() && value >= 0.0, "{key}: {value} is no figure");
        measured
            .entry(figure.key)
            .and_modify(|most: &mut f64| *most = most.max(value))
            .or_insert(value);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_a_key_counts_and_other_lines_do_not() {
        let text = "test a ... figure: best-3-of-16 | 0.2 | ms\nfigure: best-3-of-16 | 0.1 | ms\nnothing\n";
        assert_eq!(read(text).unwrap(), BTreeMap::from([("best-3-of-16", 0.2)]));
    }

    #[test]
    fn what_is_no_figure_is_an_error() {
        for line in [
            "nobody | 1 | ms",
            "idle-cpu | 1 | ms",
            "idle-cpu | x | %",
            "idle-cpu | NaN | %",
            "idle-cpu | 1",
        ] {
            assert!(read(&format!("figure: {line}")).is_err(), "{line}");
        }
    }
}
