//! `kubectl gpunode validate`: the verdict of the API server and of gpunode's own configuration loader, without a cluster.

mod metadata;
mod problem;
mod report;
mod scalar;
mod schema;
mod source;
mod verdict;
mod yaml;

pub use problem::FieldProblem;
pub use report::{DocumentReport, ValidationResult, print};
pub use source::{SourceError, SourceText};
pub use verdict::KnownKinds;

use crate::cli::ValidateArgs;
use std::{path::PathBuf, process::ExitCode};

/// Validates every file that is named and prints what is wrong.
///
/// # Errors
/// When a file cannot be read or the output cannot be written.
pub fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let mut reports = read(&KnownKinds::new()?, &args.filenames)?;
    for path in &args.agent_configs {
        reports.extend(source::read(path)?.iter().map(verdict::validate_agent_config));
    }
    print(&reports, args.output)?;
    let refused = reports.iter().any(|report| report.verdict == ValidationResult::Invalid);
    // Who validates nothing has named the wrong files.
    let nothing = reports.iter().all(|report| report.verdict == ValidationResult::Skipped);
    Ok(if refused || nothing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A report on each document of some files.
pub(crate) fn read(kinds: &KnownKinds, paths: &[PathBuf]) -> Result<Vec<DocumentReport>, SourceError> {
    let mut reports = Vec::new();
    for path in paths {
        reports.extend(source::read(path)?.iter().flat_map(|text| kinds.validate(text)));
    }
    Ok(reports)
}
