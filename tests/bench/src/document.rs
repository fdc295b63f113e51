//! The table in the document.

use crate::figure::FIGURES;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;

const BEGIN: &str = "<!-- make bench writes from here -->\n";
const END: &str = "<!-- to here -->\n";

/// Returns a line about the machine, and a table of the measurements.
pub fn table(measured: &BTreeMap<&str, f64>, machine: &str) -> String {
    let head = format!("{machine}\n\n| figure | target | measured | | NVIDIA's plugin |\n|---|---|---|---|---|\n");
    let row = |figure: &crate::figure::Figure| figure.row(measured.get(figure.key).copied());
    head + &FIGURES.iter().map(row).collect::<String>()
}

/// The document with `table` between its marks.
pub fn filled(document: &str, table: &str) -> Result<String> {
    let (before, rest) = document
        .split_once(BEGIN)
        .with_context(|| format!("find the line {}", BEGIN.trim()))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("find the line {} after it", END.trim()))?;
    Ok(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_twice_is_filling_once_and_keeps_the_rest() {
        let document = format!("# Title\n{BEGIN}earlier table\n{END}rest\n");
        let table = table(&BTreeMap::from([("idle-cpu", 0.02)]), "A machine.");
        let once = filled(&document, &table).unwrap();
        assert!(
            once.starts_with("# Title\n") && once.ends_with("rest\n") && !once.contains("earlier table"),
            "{once}"
        );
        assert!(once.contains("| 0.02 % | met |"), "{once}");
        assert_eq!(filled(&once, &table).unwrap(), once);
    }

    #[test]
    fn a_document_without_marks_stays() {
        assert!(filled("text", "table").is_err());
        assert!(filled(&format!("{END}{BEGIN}"), "table").is_err());
    }
}
