//! Writes the CRDs to the folder that is given, or to standard output.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use gpunode_crds::ManifestError;
use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> ExitCode {
    match write(std::env::args_os().nth(1).map(PathBuf::from).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpunode-crds: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ManifestWriteError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("write {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

fn write(folder: Option<&Path>) -> Result<(), ManifestWriteError> {
    for manifest in gpunode_crds::manifests()? {
        match &folder {
            None => println!("---\n{}", manifest.yaml),
            Some(folder) => {
                let path = folder.join(&manifest.name);
                std::fs::write(&path, &manifest.yaml).map_err(|source| ManifestWriteError::File { path, source })?;
            }
        }
    }
    Ok(())
}
