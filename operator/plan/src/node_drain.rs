//! Taints with the effect NoExecute that evict pods from a node, until no pod is left that does not tolerate them.

use crate::{pods::has_ended, taint::Taint};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use std::collections::BTreeMap;

/// Taints that evict pods from a node, with the second since 1970 in which gpunode added each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDrain(pub(crate) BTreeMap<Taint, i64>);

impl NodeDrain {
    /// Returns true if no taint evicts pods.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if none of the pods of the node has to go any more.
    pub fn is_over<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> bool {
        !pods.into_iter().any(|pod| self.evicts(pod))
    }

    /// Adds the taints of another drain, and drops those that the node no longer has.
    pub fn extend(&mut self, other: Self, node: &[Taint]) {
        self.0.extend(other.0);
        self.0.retain(|taint, _| node.contains(taint));
    }

    /// Returns true if a pod has to go: it has not ended, and one of the taints evicts it, now or later.
    fn evicts(&self, pod: &Pod) -> bool {
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
        let tolerations = tolerations.unwrap_or_default();
        let mut taints = self.0.keys();
        !has_ended(pod) && taints.any(|taint| evicted_after(tolerations, taint).is_some())
    }
}

/// Returns the seconds after which a taint with the effect NoExecute evicts a pod with these tolerations; none if it stays. As in
/// Kubernetes' `GetMatchingTolerations`, the first toleration that matches counts.
pub fn evicted_after(tolerations: &[Toleration], taint: &Taint) -> Option<i64> {
    match tolerations.iter().find(|toleration| tolerates(toleration, taint)) {
        None => Some(0),
        Some(toleration) => toleration.toleration_seconds.map(|seconds| seconds.max(0)),
    }
}

/// Returns true if a toleration covers a taint, by the rules of Kubernetes. An operator of a later version covers nothing.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_empty_or = |text: &Option<String>, wanted: &str| {
        let text = text.as_deref().unwrap_or_default();
        text.is_empty() || text == wanted
    };
    is_empty_or(&toleration.effect, &taint.id.effect)
        && is_empty_or(&toleration.key, &taint.id.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taint::TaintKey;
    use serde_json::{Value, json};

    fn drain() -> NodeDrain {
        let id = TaintKey {
            key: "dedicated".to_owned(),
            effect: "NoExecute".to_owned(),
        };
        let value = "v100".to_owned();
        NodeDrain(BTreeMap::from([(Taint { id, value }, 7)]))
    }

    fn pod(phase: &str, tolerations: &Value) -> Pod {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "tolerations": tolerations}, "status": {"phase": phase}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pod_has_to_go_unless_it_tolerates_every_taint_for_ever() {
        let cases = [
            (json!([]), false),
            (json!([{"operator": "Exists"}]), true),
            (json!([{"operator": "Exists", "effect": "NoSchedule"}]), false),
            (
                json!([{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}]),
                true,
            ),
            (json!([{"key": "dedicated", "value": "v100"}]), true),
            (json!([{"key": "dedicated", "operator": "Equal", "value": "t4"}]), false),
            (
                json!([{"key": "other", "operator": "Exists"}, {"key": "dedicated", "value": "v100"}]),
                true,
            ),
            (
                json!([{"key": "dedicated", "operator": "Exists", "tolerationSeconds": 60}]),
                false,
            ),
            (
                json!([{"key": "dedicated", "operator": "Exists", "tolerationSeconds": 300}, {"operator": "Exists"}]),
                false,
            ),
            (
                json!([{"operator": "Exists"}, {"key": "dedicated", "operator": "Exists", "tolerationSeconds": 300}]),
                true,
            ),
            (json!([{"key": "dedicated", "operator": "Lt", "value": "v100"}]), false),
        ];
        for (tolerations, stays) in cases {
            let pods = [pod("Running", &tolerations)];
            assert_eq!(drain().is_over(&pods), stays, "{tolerations}");
            assert_eq!(drain().is_over(&[pod("Pending", &tolerations)]), stays, "{tolerations}");
        }
        assert!(NodeDrain::default().is_over(&[pod("Running", &json!([]))]));
    }

    #[test]
    fn pod_that_has_ended_holds_nothing_up() {
        for phase in ["Succeeded", "Failed"] {
            assert!(drain().is_over(&[pod(phase, &json!([]))]), "{phase}");
        }
    }

    #[test]
    fn taints_that_the_node_lost_are_forgotten() {
        let mut known = drain();
        known.extend(NodeDrain::default(), &[]);
        assert!(known.is_empty());
        let taints: Vec<Taint> = drain().0.into_keys().collect();
        known.extend(drain(), &taints);
        assert_eq!(known, drain());
    }
}
