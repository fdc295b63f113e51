//! Pods that a new taint with the effect NoExecute evicts from a node. Pure.

use super::change::{ChangeAction, ChangeSubject, PlannedChange};
use crate::snapshot::RunningPod;
use gpunode_crds::named;
use gpunode_plan::{Taint, TaintKey, evicted_after};
use serde::Serialize;

/// End of the key of such a taint.
const NO_EXECUTE: &str = ":NoExecute";

/// Most pods named for one taint; `-o json` has all of them.
const MAX_PODS: usize = 8;

/// A pod that a taint evicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictedPod {
    /// Key and effect of the taint.
    pub taint: String,
    pub namespace: String,
    pub pod: String,
    /// Time for which it tolerates the taint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<i64>,
}

/// Returns true for a change that may evict pods: a taint with the effect NoExecute is added or gets another value.
pub fn may_evict(change: &PlannedChange) -> bool {
    let is_new = matches!(change.action, ChangeAction::Add | ChangeAction::Change);
    let is_no_execute = change.key.as_ref().is_some_and(|key| key.ends_with(NO_EXECUTE));
    change.what == ChangeSubject::Taint && is_new && is_no_execute
}

/// Returns the pods that the changes evict, by taint, namespace and name.
pub fn evicted(changes: &[PlannedChange], pods: &[RunningPod]) -> Vec<EvictedPod> {
    let mut evicted = Vec::new();
    for change in changes.iter().filter(|change| may_evict(change)) {
        let key = change.key.as_deref().unwrap_or_default();
        let id = TaintKey {
            key: key.strip_suffix(NO_EXECUTE).unwrap_or(key).to_owned(),
            effect: "NoExecute".to_owned(),
        };
        let value = change.to.clone().unwrap_or_default();
        let taint = Taint { id, value };
        let of_taint = pods.iter().filter_map(|pod| {
            let seconds = evicted_after(&pod.tolerations, &taint)?;
            Some(EvictedPod {
                taint: key.to_owned(),
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                after_seconds: (seconds > 0).then_some(seconds),
            })
        });
        let mut of_taint: Vec<EvictedPod> = of_taint.collect();
        of_taint.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
        evicted.extend(of_taint);
    }
    evicted
}

/// Describes the effect of the taint `key` on running pods; nothing where it evicts none. Without `evicted` the pods are not known.
pub fn eviction_message(key: &str, evicted: Option<&[EvictedPod]>) -> Option<String> {
    let Some(evicted) = evicted else {
        return Some(format!("taint {key} evicts pods that do not tolerate it"));
    };
    let name = |pod: &EvictedPod| {
        let after = pod
            .after_seconds
            .map(|seconds| format!(" (after {seconds} s)"))
            .unwrap_or_default();
        format!("{}/{}{after}", pod.namespace, pod.pod)
    };
    let names: Vec<String> = evicted.iter().filter(|pod| pod.taint == key).map(name).collect();
    match names.len() {
        0 => None,
        1 => Some(format!("taint {key} evicts pod {}", names.concat())),
        count => Some(format!("taint {key} evicts {count} pods: {}", named(names, MAX_PODS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, tolerations: &Value) -> RunningPod {
        RunningPod {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            tolerations: serde_json::from_value(tolerations.clone()).expect("tolerations"),
        }
    }

    fn taint(action: ChangeAction, key: &str, to: &str) -> PlannedChange {
        PlannedChange {
            action,
            what: ChangeSubject::Taint,
            key: Some(key.to_owned()),
            from: None,
            to: Some(to.to_owned()),
        }
    }

    #[test]
    fn pods_are_evicted_as_the_control_plane_does() {
        let pods = [
            pod("b-none", &json!([])),
            pod("a-other-key", &json!([{"key": "x", "operator": "Exists"}])),
            pod("other-value", &json!([{"key": "dedicated", "value": "t4"}])),
            pod(
                "other-effect",
                &json!([{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]),
            ),
            pod(
                "for-a-while",
                &json!([{"key": "dedicated", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]),
            ),
            pod(
                "no-longer",
                &json!([{"key": "dedicated", "operator": "Exists", "tolerationSeconds": 0}]),
            ),
            pod(
                "same-value",
                &json!([{"key": "dedicated", "operator": "Equal", "value": "v100"}]),
            ),
            pod("key", &json!([{"key": "dedicated", "operator": "Exists"}])),
            pod("everything", &json!([{"operator": "Exists"}])),
        ];
        let changes = [
            taint(ChangeAction::Change, "dedicated:NoExecute", "v100"),
            taint(ChangeAction::Add, "soft:NoSchedule", ""),
            taint(ChangeAction::Remove, "old:NoExecute", ""),
        ];
        let evicted = evicted(&changes, &pods);
        let shown: Vec<_> = evicted
            .iter()
            .map(|pod| (pod.pod.as_str(), pod.after_seconds))
            .collect();
        assert_eq!(
            shown,
            [
                ("a-other-key", None),
                ("b-none", None),
                ("for-a-while", Some(300)),
                ("no-longer", None),
                ("other-effect", None),
                ("other-value", None)
            ]
        );
        assert_eq!(
            eviction_message("dedicated:NoExecute", Some(&evicted[..3])).as_deref(),
            Some(
                "taint dedicated:NoExecute evicts 3 pods: team/a-other-key, team/b-none, team/for-a-while (after 300 s)"
            )
        );
        assert_eq!(
            eviction_message("dedicated:NoExecute", Some(&evicted[..1])).as_deref(),
            Some("taint dedicated:NoExecute evicts pod team/a-other-key")
        );
        assert_eq!(eviction_message("dedicated:NoExecute", Some(&[])), None);
        assert_eq!(
            eviction_message("dedicated:NoExecute", None).as_deref(),
            Some("taint dedicated:NoExecute evicts pods that do not tolerate it")
        );
    }
}
