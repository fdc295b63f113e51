//! The crates of the product, read from disk.

use crate::source::{Files, ParseError, Tree};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Package and folder of each crate of the product, lowest layer first.
pub const PRODUCT: [(&str, &str); 11] = [
    ("gpunode-config", "config"),
    ("gpunode-crds", "crds"),
    ("gpunode-process", "process"),
    ("gpunode-mig", "mig"),
    ("gpunode-gpu", "node-agent/gpu"),
    ("gpunode-cdi", "node-agent/cdi"),
    ("gpunode-hook", "node-agent/hook"),
    ("gpunode-plan", "operator/plan"),
    ("gpunode-operator", "operator"),
    ("kubectl-gpunode", "operator/kubectl"),
    ("gpunode-agent", "node-agent"),
];

/// One crate's sources: a tree for its library and one for its program, as far as it has them.
pub struct ProductCrate {
    /// Name in `Cargo.toml`.
    pub package: &'static str,
    /// Path from the repository's root.
    pub folder: &'static str,
    /// The library first.
    pub trees: Vec<Tree>,
    /// Everything below `src`.
    pub sources: Files,
    /// Everything below `tests`, and `build.rs`.
    pub tests: Files,
    /// Text of its `Cargo.toml`.
    pub manifest: String,
}

/// A source tree that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Path, and what went wrong.
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    /// The file is there and is not Rust, or a file that it declares is missing.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

impl ProductCrate {
    /// Reads the crate in `folder` of the repository at `root`. Paths are relative to `root`.
    pub fn read(root: &Path, package: &'static str, folder: &'static str) -> Result<Self, ReadError> {
        let sources = rust_files(root, &format!("{folder}/src"))?;
        let mut tests = rust_files(root, &format!("{folder}/tests"))?;
        let build = format!("{folder}/build.rs");
        if let Ok(text) = fs::read_to_string(root.join(&build)) {
            tests.insert(build, text);
        }
        let manifest = root.join(folder).join("Cargo.toml");
        let trees = ["lib.rs", "main.rs"]
            .map(|name| format!("{folder}/src/{name}"))
            .into_iter()
            .filter(|path| sources.contains_key(path))
            .map(|path| Tree::parse(&path, &sources))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            package,
            folder,
            trees,
            sources,
            tests,
            manifest: fs::read_to_string(&manifest).map_err(|error| ReadError::Read(manifest, error))?,
        })
    }

    /// Files below `src` that no `mod` reaches.
    pub fn unlinked(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str).filter(|file| {
            self.trees
                .iter()
                .all(|tree| tree.modules.iter().all(|module| module.file != *file))
        })
    }

    /// Returns whether `line` of `file` is part of the product, and not of its tests.
    pub fn is_product_line(&self, file: &str, line: usize) -> bool {
        !self
            .trees
            .iter()
            .any(|tree| tree.is_test_file(file) || tree.is_test_line(file, line))
    }
}

/// Root of the repository that this crate stands in.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Text of all Rust files below `folder` of `root`, by their path from `root`. Empty where there is no such folder.
pub fn rust_files(root: &Path, folder: &str) -> Result<Files, ReadError> {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(ReadError::Read(path, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| ReadError::Read(path.clone(), error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let relative = format!("{folder}/{name}");
            if entry.path().is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(relative);
                }
            } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(entry.path()).map_err(|error| ReadError::Read(entry.path(), error))?;
                files.insert(relative, text);
            }
        }
    }
    Ok(files)
}
