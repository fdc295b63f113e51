//! What running pods would notice of the changes on one node; `plan` ends with exit code 2 then. Pure.
//!
//! - A taint with the effect NoExecute is added or changed: pods that do not tolerate it are evicted.
//! - A device that containers hold is to have another resource, sharing or id: it keeps its present offer until they are gone,
//!   and what queues for the new one waits until then.
//! - The device plugin leaves the node while containers hold devices: nothing counts what they hold any more.

use super::change::{ChangeAction, ChangeSubject, PlannedChange};
use crate::output::plural;
use gpunode_crds::GpuNode;
use std::collections::BTreeSet;

/// Most pods that are named.
const MAX_PODS: usize = 3;

/// What running pods would notice. `waiting` says which devices keep their present offer, and for whom.
pub fn disruptions(changes: &[PlannedChange], waiting: Vec<String>, gpu_node: Option<&GpuNode>) -> Vec<String> {
    changes
        .iter()
        .filter_map(|change| disruption(change, gpu_node))
        .chain(waiting)
        .collect()
}

fn disruption(change: &PlannedChange, gpu_node: Option<&GpuNode>) -> Option<String> {
    let key = change.key.as_deref().unwrap_or_default();
    match (change.what, change.action) {
        (ChangeSubject::Taint, ChangeAction::Add | ChangeAction::Change) if key.ends_with(":NoExecute") => {
            Some(format!("taint {key} evicts the pods that do not tolerate it"))
        }
        (ChangeSubject::Governing, ChangeAction::Remove) => {
            Some(format!("the device plugin leaves while {}", holders(gpu_node?)?))
        }
        _ => None,
    }
}

/// Who holds devices, if anybody does.
fn holders(gpu_node: &GpuNode) -> Option<String> {
    let holders = gpu_node.status.as_ref()?.holders.iter();
    let pods: BTreeSet<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    let named: Vec<&str> = pods.iter().take(MAX_PODS).map(String::as_str).collect();
    let more = pods.len().saturating_sub(MAX_PODS);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {}", plural(more, "other pod", "other pods"))
    };
    let hold = if pods.len() == 1 {
        "holds a device"
    } else {
        "hold devices"
    };
    (!pods.is_empty()).then(|| format!("{}{more} {hold}", named.join(", ")))
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
                Some("taint t:NoExecute evicts the pods that do not tolerate it"),
            ),
            (
                change(Changed, Taint, "t:NoExecute"),
                Some("taint t:NoExecute evicts the pods that do not tolerate it"),
            ),
            (change(Remove, Taint, "t:NoExecute"), None),
            (change(Add, Taint, "t:NoSchedule"), None),
            (change(Add, Label, "x"), None),
            (
                change(Remove, Governing, ""),
                Some("the device plugin leaves while team/p holds a device"),
            ),
            (change(Changed, Governing, ""), None),
            (change(Changed, Image, ""), None),
        ];
        let (held, free) = (gpu_node(&["p"]), gpu_node(&[]));
        for (change, expected) in cases {
            assert_eq!(disruption(&change, Some(&held)).as_deref(), expected, "{change:?}");
            let evicts = expected.filter(|text| text.contains("evicts"));
            assert_eq!(
                disruption(&change, Some(&free)).as_deref(),
                evicts,
                "{change:?} with nobody there"
            );
            assert_eq!(
                disruption(&change, None).as_deref(),
                evicts,
                "{change:?} on a node that is not known"
            );
        }
    }

    #[test]
    fn many_pods_are_counted() {
        let change = change(ChangeAction::Remove, ChangeSubject::Governing, "");
        let text = disruption(&change, Some(&gpu_node(&["p1", "p2", "p2", "p3", "p4", "p5"])));
        let expected = "the device plugin leaves while team/p1, team/p2, team/p3 and 2 other pods hold devices";
        assert_eq!(text.as_deref(), Some(expected));
    }
}
