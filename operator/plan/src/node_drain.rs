//! Taints with the effect NoExecute that evict pods from a node, until no pod is left that does not tolerate them.

use crate::taint::Taint;
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

    /// Returns true if a pod has to go: it has not ended, and does not tolerate one of the taints for as long as it runs.
    fn evicts(&self, pod: &Pod) -> bool {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
        let tolerations = tolerations.unwrap_or_default();
        let is_tolerated = |taint: &Taint| tolerations.iter().any(|toleration| tolerates(toleration, taint));
        !matches!(phase, Some("Succeeded" | "Failed")) && !self.0.keys().all(is_tolerated)
    }
}

/// Returns true if a toleration covers a taint for ever, by the rules of Kubernetes. An operator of a later version covers nothing.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let covers = match text(&toleration.operator).as_str() {
        "Exists" => key.is_empty() || key == taint.id.key,
        "" | "Equal" => key == taint.id.key && text(&toleration.value) == taint.value,
        _ => false,
    };
    covers && (effect.is_empty() || effect == taint.id.effect) && toleration.toleration_seconds.is_none()
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
