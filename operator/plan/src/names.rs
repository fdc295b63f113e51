//! Names and labels of gpunode's DaemonSets.

/// Name of the discovery DaemonSet.
pub const DISCOVERY_NAME: &str = "gpunode-discovery";
/// Name of the DaemonSet of the MPS daemons.
pub const MPS_NAME: &str = "gpunode-mps";
/// Label with the program that a pod runs: `device-plugin`, `discovery` or `mps`.
pub(crate) const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Label of every DaemonSet that the operator manages.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label with the policy that a DaemonSet and its pods belong to.
pub(crate) const POLICY_NAME_LABEL: &str = "gpunode.dev/policy";

const POLICY_DAEMONSET_PREFIX: &str = "gpunode-agent-";

/// Returns the name of a policy's DaemonSet.
pub fn policy_daemonset_name(policy: &str) -> String {
    format!("{POLICY_DAEMONSET_PREFIX}{policy}")
}

/// Returns the policy whose DaemonSet would have this name.
pub fn policy_of_daemonset_name(daemonset: &str) -> Option<&str> {
    daemonset.strip_prefix(POLICY_DAEMONSET_PREFIX)
}
