//! Keys of labels, annotations and taints that gpunode reads or writes on Nodes.

/// API group of gpunode's kinds, and prefix of its own labels, annotations and taints.
pub const GROUP: &str = "gpunode.dev";

/// Label of every node that a policy with a `devicePlugin` governs; discovery does not run there.
///
/// The key is fixed, because node affinity cannot match a prefix.
pub const GOVERNED_LABEL: &str = "gpunode.dev/governed";

/// Prefix of the label that selects the DaemonSet of one policy.
pub const POLICY_LABEL_PREFIX: &str = "gpunode.dev/policy.";

/// Label of every node that needs the MPS DaemonSet: its configuration uses MPS, or a daemon there still has clients.
pub const MPS_LABEL: &str = "gpunode.dev/mps";

/// Prefix of the labels that count the GPUs of each product on a node.
pub const PRODUCT_COUNT_PREFIX: &str = "gpunode.dev/gpus.";

/// Prefix of the labels that count the companions of each resource on a node.
pub const COMPANION_COUNT_PREFIX: &str = "gpunode.dev/companions.";

/// Maximum length of a label's value, and of its name without prefix.
pub const MAX_LABEL_VALUE: usize = 63;

/// Annotation with the record of what gpunode wrote on the node, so that gpunode can remove exactly that.
pub const OWNED_ANNOTATION: &str = "gpunode.dev/owned";

/// Label that makes gpunode leave a node alone. Users set it; gpunode never writes it.
pub const IGNORE_LABEL: &str = "gpunode.dev/ignore";

/// Label that makes gpunode release the GPUs of a node. Users or programs that replace the driver set it; gpunode never
/// writes it.
pub const RELEASE_LABEL: &str = "gpunode.dev/release";

/// Annotation with the RFC 3339 time since which the GPUs of a node work again. Users set it; gpunode never writes it.
pub const RECOVERED_ANNOTATION: &str = "gpunode.dev/recovered";

/// Key of the taint of a node with too few healthy GPUs.
pub const UNHEALTHY_TAINT: &str = "gpunode.dev/unhealthy";

/// Key of the taint of a node whose pods are evicted for a change of its GPUs.
pub const RECONFIGURING_TAINT: &str = "gpunode.dev/reconfiguring";

/// Default key of the startup taint.
pub const NOT_READY_TAINT: &str = "gpunode.dev/not-ready";

/// Prefix of the startup taints that the cluster autoscaler knows: the only Kubernetes keys that a policy may write.
pub const AUTOSCALER_STARTUP_PREFIX: &str = "startup-taint.cluster-autoscaler.kubernetes.io/";

/// NVIDIA's DRA driver of GPUs: `DriverName` in `cmd/gpu-kubelet-plugin/main.go` of kubernetes-sigs/dra-driver-nvidia-gpu. Its
/// driver of compute domains has another name and gives out no GPUs.
pub const DRA_DRIVER: &str = "gpu.nvidia.com";

/// Field manager of the operator's writes.
pub const OPERATOR_FIELD_MANAGER: &str = "gpunode-operator";

/// Field manager of the agent's writes.
pub const AGENT_FIELD_MANAGER: &str = "gpunode-agent";

/// Returns the label that selects the DaemonSet of the policy `name`.
pub fn policy_label(name: &str) -> String {
    format!("{POLICY_LABEL_PREFIX}{name}")
}

/// Returns true if a label, annotation or taint key has gpunode's own prefix.
pub fn is_gpunode_key(key: &str) -> bool {
    key.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP)
}

/// Returns true if a key is under `kubernetes.io` or `k8s.io`. gpunode writes no such key, except one under
/// [`AUTOSCALER_STARTUP_PREFIX`].
pub fn is_kubernetes_key(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"].iter().any(|owner| {
        prefix
            .strip_suffix(owner)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_kubernetes_are_known_by_their_prefix() {
        for key in [
            "kubernetes.io/os",
            "node.kubernetes.io/unreachable",
            "k8s.io/x",
            "a.b.k8s.io/x",
        ] {
            assert!(is_kubernetes_key(key), "{key}");
        }
        for key in [
            "os",
            "mykubernetes.io/x",
            "kubernetes.io.example.com/x",
            "gpunode.dev/governed",
            "nvidia.com/gpu",
        ] {
            assert!(!is_kubernetes_key(key), "{key}");
        }
    }
}
