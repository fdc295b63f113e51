//! Paths of the nodes, which are flags of the operator, or of `gpunode-agent run --config`.

use crate::{DriverRootList, HostPath};

/// Paths that differ from the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginPaths {
    /// Root of the driver, where agents do not look by themselves.
    pub driver_root: Option<HostPath>,
    /// Folder with the device nodes.
    pub dev_root: Option<HostPath>,
    /// The kubelet's folder.
    pub kubelet_root: Option<HostPath>,
}

/// Paths that one operator cannot have together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its configurations need {flag}={first} and {flag}={second}, and an operator has one of them for all nodes; import one at a time"
)]
pub struct PluginPathsError {
    flag: &'static str,
    first: HostPath,
    second: HostPath,
}

impl PluginPaths {
    /// Returns the flags for several configurations. The driver is searched below the roots of all, then below the default ones.
    ///
    /// # Errors
    /// When they differ in another path.
    pub fn flags<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Result<Vec<String>, PluginPathsError> {
        let mut flags = Vec::new();
        let mut roots: Vec<String> = Vec::new();
        for root in all
            .clone()
            .filter_map(|paths| paths.driver_root.as_ref())
            .map(HostPath::to_string)
        {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        if !roots.is_empty() {
            roots.push(DriverRootList::default().to_string());
            flags.push(format!("--driver-roots={}", roots.join(",")));
        }
        let dev_roots = all
            .clone()
            .map(|paths| paths.dev_root.clone().unwrap_or_else(HostPath::root));
        let kubelet_roots = all.map(|paths| paths.kubelet_root.clone().unwrap_or_else(HostPath::kubelet_root));
        flags.extend(one("--dev-root", dev_roots, &HostPath::root())?);
        flags.extend(one("--kubelet-root", kubelet_roots, &HostPath::kubelet_root())?);
        Ok(flags)
    }
}

/// Returns the flag of a path that all have alike, unless it is the default.
fn one(
    flag: &'static str,
    mut paths: impl Iterator<Item = HostPath>,
    default: &HostPath,
) -> Result<Option<String>, PluginPathsError> {
    let Some(first) = paths.next() else { return Ok(None) };
    match paths.find(|path| *path != first) {
        Some(second) => Err(PluginPathsError { flag, first, second }),
        None => Ok((first != *default).then(|| format!("{flag}={first}"))),
    }
}
