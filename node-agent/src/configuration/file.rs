//! The configuration file of `run --config FILE`: gpunode's, or that of NVIDIA's device plugin.

use crate::{
    configuration::in_force::{ConfigCandidate, DesiredConfig, InForce},
    runtime::channel::send_if_new,
};
use anyhow::{Context as _, Result, bail};
use gpunode_config::{
    ConfigDocument, DiscardedParts, PluginContainer, PluginPaths, is_nvidia_plugin_file, nvidia_plugin_config,
};
use std::{fs, path::Path, sync::Arc};
use tokio::sync::watch;
use tracing::{error, warn};

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
    let text = if is_nvidia_plugin_file(&text) {
        of_nvidia_plugin(&text)
            .with_context(|| format!("read the file of NVIDIA's device plugin {}", path.display()))?
    } else {
        text
    };
    Ok(ConfigCandidate::of_file(text))
}

/// Returns a file of NVIDIA's plugin as a document of gpunode, and logs what is not taken over.
fn of_nvidia_plugin(text: &str) -> Result<String> {
    let imported = nvidia_plugin_config(text, &PluginContainer::default(), DiscardedParts::Ignore)?;
    for remark in &imported.remarks {
        warn!(
            setting = remark.setting,
            message = remark.message,
            "not as NVIDIA's device plugin has it"
        );
    }
    let flags = PluginPaths::flags(std::iter::once(&imported.paths))?;
    if !flags.is_empty() {
        warn!(
            flags = flags.join(" "),
            "the file has paths that are flags of this agent"
        );
    }
    Ok(ConfigDocument::of(&imported.config).text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_of_nvidias_plugin_is_read_as_one_of_gpunode() {
        let read = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            read_first(file.path()).map(|desired| match desired {
                DesiredConfig::Config(candidate) => gpunode_config::load(&candidate.document).unwrap(),
                other => panic!("{other:?}"),
            })
        };
        let shared = read("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}").unwrap();
        let sharing = shared.resources[0].sharing.as_ref().unwrap();
        assert_eq!((shared.resources.len(), sharing.replicas), (1, Some(4)));
        assert_eq!(read("resources: [{name: a.b/c}]").unwrap().resources[0].name, "a.b/c");
        let error = read("version: v2").unwrap_err();
        assert!(format!("{error:#}").ends_with("version: only v1 is known"), "{error:#}");
    }
}
