//! Writes the order in which the linker lays out the functions of the agent (`docs/adr/0020-function-order.md`).
//!
//! | module | what it does |
//! |---|---|
//! | `recorder` | runs a program and records which of its functions are executed |
//! | `functions` | reads the functions of a program |
//! | `order` | patterns for the names of recorded functions |

mod functions;
mod order;
mod recorder;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use std::{ffi::OsString, fs, path::PathBuf};

/// Records which functions a program executes, and prints patterns for their names.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs a program and appends the name of each function that it executes to a file.
    Record {
        /// The file.
        #[arg(long)]
        to: PathBuf,
        /// The program, not stripped.
        program: PathBuf,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Records a process that becomes the program; started by `record`.
    #[command(hide = true)]
    Attach {
        #[arg(long)]
        to: PathBuf,
        program: PathBuf,
        pid: i32,
    },
    /// Prints the patterns, one per line.
    Patterns {
        /// The program, not stripped.
        program: PathBuf,
        /// Files of `record`. The functions of the first come first.
        #[arg(required = true)]
        records: Vec<PathBuf>,
    },
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn main() -> Result<()> {
    match Cli::parse().command {
        Task::Record { to, program, arguments } => recorder::record(&to, &program, &arguments),
        Task::Attach { to, program, pid } => recorder::attach(&to, &program, pid),
        Task::Patterns { program, records } => {
            let functions = functions::read(&program)?;
            let read = |path: &PathBuf| {
                let record = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
                Ok(record.lines().map(str::to_owned).collect())
            };
            let records = records.iter().map(read).collect::<Result<Vec<_>>>()?;
            let patterns = order::patterns(&functions, &records);
            ensure!(!patterns.is_empty(), "the records have no function of this program");
            println!("{}", patterns.join("\n"));
            Ok(())
        }
    }
}
