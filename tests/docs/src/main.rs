//! Writes the generated files of the documentation (`make docs`), or the sources of the site (`make book`).

use clap::{Parser, Subcommand};
use gpunode_docs::{references, repository, stage};
use std::{fs, path::PathBuf};

/// Generates documentation of gpunode.
#[derive(Debug, Parser)]
struct DocsArgs {
    #[command(subcommand)]
    command: DocsCommand,
}

#[derive(Debug, Subcommand)]
enum DocsCommand {
    /// Write the references and pictures into a folder such as docs
    References {
        /// Folder with the debug builds of the programs
        #[arg(long, default_value = "target/debug")]
        programs: PathBuf,
        folder: PathBuf,
    },
    /// Write the sources of the site into a folder, which is emptied first
    Site { folder: PathBuf },
}

fn main() -> anyhow::Result<()> {
    match DocsArgs::parse().command {
        DocsCommand::References { programs, folder } => {
            for (path, text) in references(&repository(), &programs.canonicalize()?)? {
                let path = folder.join(path);
                fs::create_dir_all(path.parent().unwrap_or(&folder))?;
                fs::write(path, text)?;
            }
        }
        DocsCommand::Site { folder } => stage(&repository(), &folder)?,
    }
    Ok(())
}
