//! `kubectl gpunode import`: configurations of NVIDIA's programs as policies, without a cluster.
//!
//! | module | what it does |
//! |---|---|
//! | `mig_parted` | policies, or a part of one, from the configurations of a mig-parted file |
//! | `nvidia_plugin` | policies, or a configuration of the agent, from those of NVIDIA's device plugin |
//! | `preview_policies` | imported policies as a stream of YAML documents |

mod mig_parted;
mod nvidia_plugin;
mod preview_policies;

use crate::{
    cli::{ImportArgs, ImportFormat},
    output,
};
use std::process::ExitCode;

/// Prints policies, or the part of one that a configuration becomes, and warns of what is not taken over.
///
/// # Errors
/// When the file cannot be read or has no counterpart, or the output cannot be written.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    match &args.format {
        ImportFormat::MigParted(args) => output::write(&mig_parted::import(args)?)?,
        ImportFormat::NvidiaPlugin(args) => {
            let imported = nvidia_plugin::import(args)?;
            imported.warnings.iter().for_each(|warning| output::warn(warning));
            output::write(&imported.text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
