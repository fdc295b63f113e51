//! Where documents come from: a file, standard input, or the files of a folder.

use super::yaml::MAX_BYTES;
use std::{
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

/// A file that was read.
#[derive(Clone, Debug)]
pub struct SourceText {
    /// Its path as given, or `-`.
    pub name: String,
    /// Its contents.
    pub contents: String,
}

/// A file or folder could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Reading failed.
    #[error("read {name}")]
    Read {
        /// The path.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A folder holds nothing that could be a manifest.
    #[error(
        "read {0}: no file in it ends in .yaml, .yml or .json, and subfolders are not searched; name a file, or a folder that holds some"
    )]
    NothingThere(String),
}

/// The files that `path` means: `-` is standard input, a folder is its `.yaml`, `.yml` and `.json` files in order of name.
///
/// # Errors
/// When something cannot be read, or a folder holds no manifest.
pub fn read(path: &Path) -> Result<Vec<SourceText>, SourceError> {
    let name = path.display().to_string();
    let failed = |source| SourceError::Read {
        name: name.clone(),
        source,
    };
    if name == "-" {
        return Ok(vec![SourceText {
            contents: bounded(io::stdin()).map_err(failed)?,
            name,
        }]);
    }
    if !path.is_dir() {
        let file = fs::File::open(path).map_err(failed)?;
        return Ok(vec![SourceText {
            contents: bounded(file).map_err(failed)?,
            name,
        }]);
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
    files
        .iter()
        .map(|path| {
            let name = path.display().to_string();
            let read = fs::File::open(path).and_then(bounded);
            let contents = read.map_err(|source| SourceError::Read {
                name: name.clone(),
                source,
            })?;
            Ok(SourceText { name, contents })
        })
        .collect()
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension)) && path.is_file()
}

/// One byte more than is accepted, so that the reader can tell that there is more.
fn bounded(from: impl Read) -> io::Result<String> {
    let mut contents = String::new();
    from.take(MAX_BYTES as u64 + 1).read_to_string(&mut contents)?;
    Ok(contents)
}
