//! `kubectl gpunode validate`: checks policies as the API server and gpunode's configuration loader do, without a cluster.
//!
//! | module | what it does |
//! |---|---|
//! | `source` | reads files, folders and standard input |
//! | `yaml` | parses documents and remembers the line of each field |
//! | `scalar` | resolves plain YAML scalars as kubectl does |
//! | `kinds` | validates each document, layer by layer |
//! | `schema` | checks an object against its CRD schema and rules |
//! | `metadata` | checks names, labels and annotations |
//! | `nulls` | finds blocks of a policy that are null |
//! | `layouts` | finds MIG layouts that the selected boards cannot have |
//! | `repeated` | finds objects of one kind and name |
//! | `problem` | a problem of one field |
//! | `report` | collects and prints the results |

mod kinds;
mod layouts;
mod metadata;
mod nulls;
mod problem;
mod repeated;
mod report;
mod scalar;
mod schema;
mod source;
mod yaml;

pub use kinds::KnownKinds;
pub use problem::DocumentProblem;
pub use report::{DocumentReport, ValidationResult, print, text};
pub use source::SourceText;
pub(crate) use source::read_file;

use crate::cli::ValidateArgs;
use repeated::refuse_repeated_names;
use source::SourceError;
use std::{collections::BTreeSet, fs, path::PathBuf, process::ExitCode};

/// Validates the named files and prints the problems.
///
/// # Errors
/// When a file cannot be read or the output cannot be written.
pub fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let mut reports = read(&KnownKinds::new()?, &args.filenames)?;
    for path in &args.agent_configs {
        reports.extend(source::read(path)?.iter().map(kinds::validate_agent_config));
    }
    print(&reports, args.output)?;
    let refused = reports.iter().any(|report| report.result == ValidationResult::Invalid);
    // Without any document to validate, the wrong files were named.
    let nothing = reports.iter().all(|report| report.result == ValidationResult::Skipped);
    Ok(if refused || nothing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Validates each document of some files, and their names together.
pub(crate) fn read(kinds: &KnownKinds, paths: &[PathBuf]) -> Result<Vec<DocumentReport>, SourceError> {
    let mut reports = Vec::new();
    // A file that is named twice, such as by its own name and by its folder, counts once.
    let mut files = BTreeSet::new();
    for path in paths {
        let mut texts = source::read(path)?;
        texts.retain(|text| fs::canonicalize(&text.name).ok().is_none_or(|file| files.insert(file)));
        reports.extend(texts.iter().flat_map(|text| kinds.validate(text)));
    }
    refuse_repeated_names(&mut reports);
    Ok(reports)
}
