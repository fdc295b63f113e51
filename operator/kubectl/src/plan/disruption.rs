//! Changes that disrupt running pods on one node, with which `plan` ends with exit code 2. Pure.
//!
//! - A taint with the effect NoExecute is added or changed and evicts pods, or the pods of the node are not known.
//! - A device that containers hold gets another resource, sharing or id: it stays as it is until they end, and pods that
//!   request the new resource wait until then.
//! - The device plugin is removed from the node while containers hold devices: nothing counts those devices any more.
//!
//! Evictions by the policy's drain come on top: see `drain_forecast`.

use super::{
    change::{ChangeAction, ChangeSubject, PlannedChange},
    eviction::{EvictedPod, eviction_message, may_evict},
};
use gpunode_crds::{GpuNode, named};
use std::collections::BTreeSet;

/// Most pods named.
const MAX_PODS: usize = 3;

/// Returns the disruptions. `waiting` says which devices stay unchanged, and for which pods; `evicted` are the pods that taints
/// evict, where they are known.
pub fn disruptions(
    changes: &[PlannedChange],
    waiting: Vec<String>,
    gpu_node: Option<&GpuNode>,
    evicted: Option<&[EvictedPod]>,
) -> Vec<String> {
    changes
        .iter()
        .filter_map(|change| disruption(change, gpu_node, evicted))
        .chain(waiting)
        .collect()
}

fn disruption(change: &PlannedChange, gpu_node: Option<&GpuNode>, evicted: Option<&[EvictedPod]>) -> Option<String> {
    match (change.what, change.action) {
        _ if may_evict(change) => eviction_message(change.key.as_deref().unwrap_or_default(), evicted),
        (ChangeSubject::Governing, ChangeAction::Remove) => {
            Some(format!("the device plugin is removed while {}", holders(gpu_node?)?))
        }
        _ => None,
    }
}

/// Says which pods hold devices, if any.
fn holders(gpu_node: &GpuNode) -> Option<String> {
    let holders = gpu_node.status.as_ref()?.holders.iter();
    let pods: BTreeSet<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    match pods.len() {
        0 => None,
        1 => Some(format!("pod {} holds a device", named(&pods, MAX_PODS))),
        _ => Some(format!("pods {} hold devices", named(&pods, MAX_PODS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn change(action: ChangeAction, what: ChangeSubject, key: &str) -> PlannedChange {
        PlannedChange {
            action,
            what,
            key: Some(key.to_owned()),
            from: None,
            to: None,
        }
    }

    fn gpu_node(pods: &[&str]) -> GpuNode {
        let holder = |pod: &&str| json!({"namespace": "team", "pod": pod, "container": "c", "resource": "a.b/c", "device": "GPU-1", "count": 1});
        let holders: Vec<_> = pods.iter().map(holder).collect();
        let object = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
            "status": {"holders": holders},
        });
        serde_json::from_value(object).expect("a GpuNode")
    }

    #[test]
    fn what_running_pods_would_notice_is_named() {
        use ChangeAction::{Add, Change as Changed, Remove};
        use ChangeSubject::{Governing, Image, Label, Taint};
        let cases = [
            (
                change(Add, Taint, "t:NoExecute"),
                Some("taint t:NoExecute evicts pods that do not tolerate it"),
            ),
            (
                change(Changed, Taint, "t:NoExecute"),
                Some("taint t:NoExecute evicts pods that do not tolerate it"),
            ),
            (change(Remove, Taint, "t:NoExecute"), None),
            (change(Add, Taint, "t:NoSchedule"), None),
            (change(Add, Label, "x"), None),
            (
                change(Remove, Governing, ""),
                Some("the device plugin is removed while pod team/p holds a device"),
            ),
            (change(Changed, Governing, ""), None),
            (change(Changed, Image, ""), None),
        ];
        let (held, free) = (gpu_node(&["p"]), gpu_node(&[]));
        for (change, expected) in cases {
            assert_eq!(
                disruption(&change, Some(&held), None).as_deref(),
                expected,
                "{change:?}"
            );
            let evicts = expected.filter(|text| text.contains("evicts"));
            assert_eq!(
                disruption(&change, Some(&free), None).as_deref(),
                evicts,
                "{change:?} with nobody there"
            );
            assert_eq!(
                disruption(&change, None, None).as_deref(),
                evicts,
                "{change:?} on a node that is not known"
            );
        }
    }

    #[test]
    fn many_pods_are_counted() {
        let change = change(ChangeAction::Remove, ChangeSubject::Governing, "");
        let text = disruption(&change, Some(&gpu_node(&["p1", "p2", "p2", "p3", "p4", "p5"])), None);
        let expected = "the device plugin is removed while pods team/p1, team/p2, team/p3 and 2 more hold devices";
        assert_eq!(text.as_deref(), Some(expected));
    }
}
