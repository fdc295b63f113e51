//! Sources of documents: a file, standard input, or the files of a folder.

use super::yaml::MAX_BYTES;
use std::{
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

/// The text of one source.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Path as given, or `-`.
    pub name: String,
    /// Text, at most one byte longer than the API server accepts.
    pub contents: String,
}

impl SourceText {
    /// Returns the name for messages.
    pub(crate) fn shown_name(&self) -> &str {
        if self.name == "-" { "standard input" } else { &self.name }
    }
}

/// A failure to read a file or folder.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system refused to read it.
    #[error("read {name}")]
    Read {
        /// Path as given.
        name: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The folder has no manifest.
    #[error(
        "read {0}: the folder has no .yaml, .yml or .json file (subfolders are not searched); name a file or another folder"
    )]
    NothingThere(String),
}

/// Reads the files at `path`: `-` is standard input, a folder stands for its `.yaml`, `.yml` and `.json` files by name.
///
/// # Errors
/// When a file cannot be read, or a folder has no manifest.
pub fn read(path: &Path) -> Result<Vec<SourceText>, SourceError> {
    let name = path.display().to_string();
    let failed = |source| SourceError::Read {
        name: name.clone(),
        source,
    };
    if !path.is_dir() {
        return Ok(vec![read_file(path)?]);
    }
    let entries = fs::read_dir(path)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(failed)?;
    let mut files: Vec<PathBuf> = entries
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| is_manifest(path))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(SourceError::NothingThere(name));
    }
    files.iter().map(|path| read_file(path)).collect()
}

/// Reads one file; `-` is standard input.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read_file(path: &Path) -> Result<SourceText, SourceError> {
    let name = path.display().to_string();
    let read = if name == "-" {
        bounded(io::stdin())
    } else {
        fs::File::open(path).and_then(bounded)
    };
    match read {
        Ok(contents) => Ok(SourceText { name, contents }),
        Err(source) => Err(SourceError::Read { name, source }),
    }
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension)) && path.is_file()
}

/// Reads at most one byte more than is accepted, so that the parser can tell that the file is too long.
fn bounded(from: impl Read) -> io::Result<String> {
    let mut contents = String::new();
    from.take(MAX_BYTES as u64 + 1).read_to_string(&mut contents)?;
    Ok(contents)
}
