//! The results of a validation, and their output.

use super::problem::DocumentProblem;
use crate::{
    cli::OutputFormat,
    output::{self, style},
};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, fmt::Write as _, io};

/// The result for one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ValidationResult {
    /// Accepted by the API server and gpunode.
    Valid,
    /// Refused by one of them.
    Invalid,
    /// Not a gpunode kind.
    Skipped,
}

impl ValidationResult {
    /// Returns `Valid` where there are no problems.
    pub(super) fn of(problems: &[DocumentProblem]) -> Self {
        if problems.is_empty() {
            Self::Valid
        } else {
            Self::Invalid
        }
    }
}

/// The report on one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentReport {
    /// The file's path as given.
    pub file: String,
    /// Line on which the document starts, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Kind of the object, such as `GpuNodePolicy`.
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    /// Name of the object, or its `generateName`.
    pub name: Option<String>,
    /// Serialized as `verdict`.
    #[serde(rename = "verdict")]
    pub result: ValidationResult,
    /// Problems in the order of the file.
    pub problems: Vec<DocumentProblem>,
    /// Values that are accepted and may mean something else than their author thinks, in the order of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<DocumentProblem>,
    /// True where the problems prevent the check of rules that depend on the same fields, so that there may be more. The API
    /// server then checks no rule at all.
    pub rules_unchecked: bool,
    /// Line of the object's name, counted from 1.
    #[serde(skip)]
    pub name_line: Option<usize>,
    /// The object as the API server would store it; null where there is none.
    #[serde(skip)]
    pub object: Value,
}

impl DocumentReport {
    /// Reports a file without a readable object.
    pub fn of_file(file: &str, problem: DocumentProblem) -> Self {
        let (file, line) = (file.to_owned(), problem.line);
        Self {
            file,
            line,
            kind: None,
            name: None,
            result: ValidationResult::Invalid,
            problems: vec![problem],
            warnings: Vec::new(),
            rules_unchecked: false,
            name_line: None,
            object: Value::Null,
        }
    }
}

#[derive(Serialize)]
struct ValidationOutput<'a> {
    valid: bool,
    documents: &'a [DocumentReport],
}

/// Prints every report.
///
/// # Errors
/// When standard output cannot be written.
pub fn print(reports: &[DocumentReport], format: OutputFormat) -> io::Result<()> {
    let has = |result| reports.iter().any(|report| report.result == result);
    let valid = has(ValidationResult::Valid) && !has(ValidationResult::Invalid);
    output::print(
        format,
        &ValidationOutput {
            valid,
            documents: reports,
        },
        |_| text(reports),
    )
}

/// Returns one line per problem, then a summary.
pub fn text(reports: &[DocumentReport]) -> String {
    let mut text = String::new();
    for report in reports {
        let name = report.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
        let problems = report.problems.iter().map(|problem| (problem, style::BAD, ""));
        let warnings = report
            .warnings
            .iter()
            .map(|warning| (warning, style::WAITING, "warning: "));
        for (problem, paint, severity) in problems.chain(warnings) {
            let line = problem.line.map(|line| format!("{line}:")).unwrap_or_default();
            let path = if problem.path.is_empty() {
                String::new()
            } else {
                format!("{paint}{}{paint:#}: ", problem.path)
            };
            let _ = writeln!(text, "{}:{line} {name}{severity}{path}{}", report.file, problem.message);
        }
        if report.rules_unchecked {
            let _ = writeln!(
                text,
                "{}: {name}rules that depend on the fields above were not checked",
                report.file
            );
        }
    }
    let count = |result| reports.iter().filter(|report| report.result == result).count();
    let (valid, invalid) = (count(ValidationResult::Valid), count(ValidationResult::Invalid));
    let problems: usize = reports.iter().map(|report| report.problems.len()).sum();
    let paint = if invalid > 0 { style::BAD } else { style::GOOD };
    let _ = match (valid, invalid) {
        (0, 0) => write!(text, "{}no gpunode object found{:#}", style::BAD, style::BAD),
        (valid, 0) => write!(text, "{paint}{valid} valid{paint:#}"),
        (valid, invalid) => {
            let of = output::plural(problems, "problem", "problems");
            write!(text, "{valid} valid, {paint}{invalid} invalid with {of}{paint:#}")
        }
    };
    let mut skipped = BTreeMap::<&str, usize>::new();
    for report in reports
        .iter()
        .filter(|report| report.result == ValidationResult::Skipped)
    {
        *skipped.entry(report.kind.as_deref().unwrap_or("?")).or_default() += 1;
    }
    if !skipped.is_empty() {
        let kinds: Vec<String> = skipped.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let _ = write!(text, "; skipped, not gpunode kinds: {}", kinds.join(", "));
    }
    text.push('\n');
    if skipped.contains_key("Kustomization") {
        text.push_str("build a kustomization first: kubectl kustomize FOLDER | kubectl gpunode validate -f -\n");
    }
    text
}
