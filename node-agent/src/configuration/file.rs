//! The configuration file of `run --config FILE`.

use crate::{
    configuration::in_force::{ConfigCandidate, DesiredConfig, InForce},
    runtime::channel::send_if_new,
};
use anyhow::{Context as _, Result, bail};
use std::{fs, path::Path, sync::Arc};
use tokio::sync::watch;
use tracing::error;

/// The configuration to start with. At the start there is no older one that could stay in force.
pub fn read_first(path: &Path) -> Result<DesiredConfig> {
    let candidate = read(path)?;
    let instruction = DesiredConfig::Config(Arc::new(candidate));
    match InForce::default().next(&instruction, None).rejected {
        Some(rejected) => bail!("{}: {}", path.display(), rejected.message),
        None => Ok(instruction),
    }
}

/// Reads the file again. What cannot be read changes nothing.
pub fn reload(path: &Path, instructions: &watch::Sender<DesiredConfig>) {
    match read(path) {
        Ok(candidate) => send_if_new(instructions, DesiredConfig::Config(Arc::new(candidate))),
        Err(error) => error!(
            reason = format!("{error:#}"),
            "configuration not read; the one in force stays"
        ),
    }
}

fn read(path: &Path) -> Result<ConfigCandidate> {
    let text = fs::read_to_string(path).with_context(|| format!("read the configuration {}", path.display()))?;
    Ok(ConfigCandidate::of_file(text))
}
