//! Prints the CRDs: to the folder that is named, or to standard output.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use std::{
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

fn write(folder: Option<&Path>) -> Result<(), String> {
    for manifest in gpunode_crds::manifests().map_err(|error| error.to_string())? {
        match &folder {
            None => println!("---\n{}", manifest.yaml),
            Some(folder) => {
                let path = folder.join(&manifest.name);
                std::fs::write(&path, &manifest.yaml).map_err(|error| format!("write {}: {error}", path.display()))?;
            }
        }
    }
    Ok(())
}
