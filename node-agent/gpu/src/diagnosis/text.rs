//! Findings as a table of a limited width.

use super::Finding;
use gpunode_crds::wrapped;
use std::fmt::Write as _;

/// Columns before the text of a finding.
const INDENT: usize = 24;

/// Fewest columns for the text of a finding.
const LEAST: usize = 20;

/// Returns a table of findings with lines of at most `width` columns; without a width, lines as long as they are. A command in
/// backticks stays in one piece, so that it can be copied.
pub fn findings_table(findings: &[Finding], width: Option<usize>) -> String {
    let mut table = format!("{:<10}{:<14}FINDING\n", "STATE", "WHAT");
    for finding in findings {
        let begin = format!("{:<10}{:<14}", finding.severity.word(), finding.subject);
        // Writing to a string cannot fail.
        _ = writeln!(table, "{}", broken(&begin, &finding.message, width));
        if let Some(action) = &finding.action {
            let begin = format!("{}-> ", " ".repeat(INDENT));
            _ = writeln!(table, "{}", broken(&begin, action, width));
        }
    }
    table
}

/// Breaks a text at its spaces, those between the columns excepted.
fn broken(begin: &str, text: &str, width: Option<usize>) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = format!("{begin}{}", words.join(" "));
    match width {
        Some(width) => wrapped(&line, width.max(INDENT + LEAST), INDENT),
        None => line,
    }
}
