//! The container that a hook works on, as the runtime describes it on standard input.

use crate::{bounded_read, hook_error::HookError};
use serde::Deserialize;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Limit on the state in bytes; annotations of a pod are in it.
const MAX_STATE: u64 = 4 * 1024 * 1024;
/// Limit on the container's configuration in bytes; environment, mounts and hooks are in it.
const MAX_CONFIG: u64 = 32 * 1024 * 1024;

/// State of a container (source: opencontainers/runtime-spec, `runtime.md`, "State").
#[derive(Debug, Deserialize)]
struct ContainerState {
    bundle: PathBuf,
    /// Path of the root file system, which crun adds: in a user namespace the bundle may not be readable (source:
    /// NVIDIA/nvidia-container-toolkit, `internal/oci/state.go`).
    root: Option<PathBuf>,
}

/// Configuration of a container (source: opencontainers/runtime-spec, `config.md`, "Root" and "Mounts").
#[derive(Debug, Deserialize)]
struct ContainerConfig {
    root: RootConfig,
    #[serde(default)]
    mounts: Vec<ContainerMount>,
}

#[derive(Debug, Deserialize)]
struct RootConfig {
    path: PathBuf,
}

/// A mount that the runtime makes in a container.
#[derive(Debug, Deserialize)]
pub struct ContainerMount {
    /// Path in the container; links of the image can lead it elsewhere.
    pub destination: PathBuf,
    /// Type of the file system; that of a volume is `bind`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

/// Returns the path of the container's root file system on the host, and the mounts below it as far as they are known.
pub fn root_and_mounts(state: impl Read) -> Result<(PathBuf, Vec<ContainerMount>), HookError> {
    let failed = |error: &dyn std::error::Error| HookError::State("the state".into(), error.to_string());
    let text = bounded_read::read(state, MAX_STATE).map_err(|error| failed(&error))?;
    let state: ContainerState = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
    let config = config_of_bundle(&state.bundle);
    let (root, mounts) = match state.root {
        Some(root) if !root.as_os_str().is_empty() => (root, config.map(|config| config.mounts).unwrap_or_default()),
        _ => config.map(|config| (config.root.path, config.mounts))?,
    };
    let path = state.bundle.join(root);
    // The root of the host is nobody's container.
    if path.is_absolute() && path.components().count() > 1 {
        return Ok((path, mounts));
    }
    Err(HookError::State(
        "the root".into(),
        format!("{} is no folder below the root of the host", path.display()),
    ))
}

fn config_of_bundle(bundle: &Path) -> Result<ContainerConfig, HookError> {
    let path = bundle.join("config.json");
    let failed = |error: &dyn std::error::Error| HookError::State(path.display().to_string(), error.to_string());
    let text = File::open(&path)
        .and_then(|file| bounded_read::read(file, MAX_CONFIG))
        .map_err(|error| failed(&error))?;
    serde_json::from_slice(&text).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root(state: &str) -> Result<String, String> {
        root_and_mounts(state.as_bytes())
            .map(|(path, _)| path.display().to_string())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn root_is_that_of_the_state_or_of_the_bundle() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().display();
        let config = |text: &str| fs::write(bundle.path().join("config.json"), text).unwrap();
        let state = format!(r#"{{"ociVersion":"1.2.0","id":"a","status":"creating","pid":7,"bundle":"{path}"}}"#);
        config(r#"{"ociVersion":"1.2.0","process":{},"root":{"path":"rootfs","readonly":true}}"#);
        assert_eq!(root(&state), Ok(format!("{path}/rootfs")));
        config(r#"{"root":{"path":"/run/a/rootfs"}}"#);
        assert_eq!(root(&state), Ok("/run/a/rootfs".into()));
        let with_root = format!(r#"{{"bundle":"/none","root":"{path}"}}"#);
        assert_eq!(root(&with_root), Ok(path.to_string()));
    }

    #[test]
    fn mounts_are_those_of_the_bundle() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().display();
        let config =
            r#"{"root":{"path":"rootfs"},"mounts":[{"destination":"/dev","type":"tmpfs"},{"destination":"/data"}]}"#;
        fs::write(bundle.path().join("config.json"), config).unwrap();
        for (state, expected) in [
            (format!(r#"{{"bundle":"{path}"}}"#), "/dev tmpfs, /data "),
            (
                format!(r#"{{"bundle":"{path}","root":"{path}"}}"#),
                "/dev tmpfs, /data ",
            ),
            (format!(r#"{{"bundle":"/none","root":"{path}"}}"#), ""),
        ] {
            let (_, mounts) = root_and_mounts(state.as_bytes()).unwrap();
            let text = |mount: &ContainerMount| format!("{} {}", mount.destination.display(), mount.kind);
            assert_eq!(
                mounts.iter().map(text).collect::<Vec<_>>().join(", "),
                expected,
                "{state}"
            );
        }
    }

    #[test]
    fn the_root_of_the_host_and_an_unreadable_state_are_refused() {
        assert!(
            root(r#"{"bundle":"/none","root":"/"}"#)
                .unwrap_err()
                .contains("the root")
        );
        assert!(
            root(r#"{"bundle":"relative","root":"rootfs"}"#)
                .unwrap_err()
                .contains("relative/rootfs")
        );
        assert!(root(r#"{"bundle":"/none"}"#).unwrap_err().contains("/none/config.json"));
        assert!(root("no JSON").unwrap_err().contains("the state"));
    }
}
