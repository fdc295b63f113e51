//! Folders of the nodes, the same for all agents of an installation.

use gpunode_config::{CompanionRootList, DriverRootList, HostPath};
use k8s_openapi::api::core::v1::EnvVar;

/// Folders of the nodes in which agents look for the driver, the kubelet and the files of companions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// Roots below which the driver is searched, in this order.
    pub driver_roots: DriverRootList,
    /// Folder that has `dev` with the device nodes of the GPUs.
    pub dev_root: HostPath,
    /// The kubelet's `--root-dir`.
    pub kubelet_root: HostPath,
    /// Folders whose files companions may hand out.
    pub companion_roots: CompanionRootList,
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            driver_roots: DriverRootList::default(),
            dev_root: HostPath::root(),
            kubelet_root: HostPath::kubelet_root(),
            companion_roots: CompanionRootList::default(),
        }
    }
}

impl HostPaths {
    /// Returns the environment variables of an agent, without those that have their default: an agent of another version may search
    /// the driver in more places. Variables, unlike arguments, also reach a command that somebody runs in the container.
    pub(crate) fn variables(&self) -> Vec<EnvVar> {
        let default = Self::default();
        let variables = [
            (
                "DRIVER_ROOTS",
                self.driver_roots.to_string(),
                default.driver_roots.to_string(),
            ),
            ("DEV_ROOT", self.dev_root.to_string(), default.dev_root.to_string()),
            (
                "KUBELET_ROOT",
                self.kubelet_root.to_string(),
                default.kubelet_root.to_string(),
            ),
            (
                "COMPANION_ROOTS",
                self.companion_roots.to_string(),
                default.companion_roots.to_string(),
            ),
        ];
        let set = variables.into_iter().filter(|(_, value, default)| value != default);
        set.map(|(name, value, _)| EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        })
        .collect()
    }
}
