//! Labels, annotations and names that gpunode writes or reads on Nodes.

/// API group of gpunode's kinds and prefix of its own labels, annotations and taints.
pub const GROUP: &str = "gpunode.dev";

/// Label on every node that a policy with a `devicePlugin` governs; discovery stays off such nodes.
///
/// A fixed key, because node affinity cannot match a prefix.
pub const GOVERNED_LABEL: &str = "gpunode.dev/governed";

/// Prefix of the label that selects the DaemonSet of one policy.
pub const POLICY_LABEL_PREFIX: &str = "gpunode.dev/policy.";

/// Label on every node that needs the MPS DaemonSet: its configuration wants MPS, or a daemon there still has clients.
pub const MPS_LABEL: &str = "gpunode.dev/mps";

/// Prefix of the labels that count the GPUs of each product on a node.
pub const PRODUCT_COUNT_PREFIX: &str = "gpunode.dev/gpus.";

/// Longest value, and longest name without its prefix, that a label can have.
pub const MAX_LABEL_VALUE: usize = 63;

/// Annotation that lists what gpunode wrote on the node, so that exactly that can be removed.
pub const OWNED_ANNOTATION: &str = "gpunode.dev/owned";

/// Label by which a person keeps gpunode's hands off a node. gpunode never writes it.
pub const IGNORE_LABEL: &str = "gpunode.dev/ignore";

/// Label by which a person, or a program that replaces the driver, makes gpunode let go of the GPUs of a node. gpunode never
/// writes it.
pub const RELEASE_LABEL: &str = "gpunode.dev/release";

/// Annotation by which a person says since when the GPUs of a node are in order again: an RFC 3339 time. gpunode never writes
/// it.
pub const RECOVERED_ANNOTATION: &str = "gpunode.dev/recovered";

/// Key of the taint of a node with too few healthy GPUs.
pub const UNHEALTHY_TAINT: &str = "gpunode.dev/unhealthy";

/// Key of the startup taint where a policy names no other.
pub const NOT_READY_TAINT: &str = "gpunode.dev/not-ready";

/// Prefix of the startup taints that the cluster autoscaler knows: the only keys of Kubernetes that a policy may write.
pub const AUTOSCALER_STARTUP_PREFIX: &str = "startup-taint.cluster-autoscaler.kubernetes.io/";

/// Field manager of everything that the operator writes.
pub const OPERATOR_FIELD_MANAGER: &str = "gpunode-operator";

/// Field manager of everything that an agent writes.
pub const AGENT_FIELD_MANAGER: &str = "gpunode-agent";

/// The label that selects the DaemonSet of the policy `name`.
pub fn policy_label(name: &str) -> String {
    format!("{POLICY_LABEL_PREFIX}{name}")
}

/// Whether a label, annotation or taint key is under gpunode's own prefix.
pub fn is_gpunode_key(key: &str) -> bool {
    key.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP)
}

/// Whether a key belongs to Kubernetes, being under `kubernetes.io` or `k8s.io`. gpunode never writes such a key.
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
