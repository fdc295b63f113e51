//! The configuration file of `run --config FILE`.

use crate::{
    configuration::in_force::{ConfigCandidate, DesiredConfig, InForce},
    runtime::channel::send_if_new,
};
use anyhow::{Context as _, Result, bail};
use std::{fs, path::Path, sync::Arc};
use tokio::sync::watch;
use tracing::error;

/// Reads the configuration at the start of the agent. A bad one is an error: no older one is in force yet.
pub fn read_first(path: &Path) -> Result<DesiredConfig> {
    let candidate = read(path)?;
    let requested = DesiredConfig::Config(Arc::new(candidate));
    match InForce::default().next(&requested, None).rejected {
        Some(rejected) => bail!("{}: {}", path.display(), rejected.message),
        None => Ok(requested),
    }
}

/// Reads the file again. On an error the configuration in force stays.
pub fn reload(path: &Path, desired_config: &watch::Sender<DesiredConfig>) {
    match read(path) {
        Ok(candidate) => send_if_new(desired_config, DesiredConfig::Config(Arc::new(candidate))),
        Err(error) => error!(
            reason = format!("{error:#}"),
            "cannot read the configuration; keeping the one in force"
        ),
    }
}

fn read(path: &Path) -> Result<ConfigCandidate> {
    let text = fs::read_to_string(path).with_context(|| format!("read the configuration {}", path.display()))?;
    Ok(ConfigCandidate::of_file(text))
}
