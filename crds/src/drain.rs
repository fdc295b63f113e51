//! Drain of a node for a change that touches GPUs in use.

use crate::NodeSelectorRequirement;
use jiff::SignedDuration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Default of `timeout`: three times the longest grace period that many clusters allow.
const TIMEOUT: SignedDuration = SignedDuration::from_mins(15);

/// Handling of pods that hold GPUs whose sharing, resource or MIG layout changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = Rule::new("(has(self.policy) && self.policy == 'Evict') || !(has(self.gracePeriod) || has(self.timeout) || has(self.evict))")
    .message("gracePeriod, timeout and evict need `policy: Evict`; under Wait no pod is evicted").field_path(".policy"))]
pub struct DrainRules {
    /// `Wait` changes a GPU once its pods have ended by themselves. `Evict` adds the taint `gpunode.dev/reconfiguring`
    /// to the node, withdraws the GPUs that change, and evicts the pods that hold them, within their
    /// PodDisruptionBudgets and within `rollout.maxUnavailable`. Default: Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<DrainPolicy>,

    /// Time between SIGTERM and SIGKILL for an evicted pod, such as `60s`. If unset, the pod's own
    /// `terminationGracePeriodSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 16),
        regex(pattern = r"^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,3}m)?([1-9][0-9]{0,4}s)?$")
    )]
    pub grace_period: Option<String>,

    /// Time in which the pods of a node must have gone, such as `15m`. After it the attempt ends: pods keep what they
    /// hold, the taint goes, and the next attempt follows later. Default: 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 16),
        regex(pattern = r"^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,3}m)?([1-9][0-9]{0,4}s)?$")
    )]
    pub timeout: Option<String>,

    /// Pods that hold no GPU and may be evicted as well, such as a monitor with open handles on MIG instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub evict: Vec<EvictablePods>,
}

/// Handling of pods that hold GPUs which change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum DrainPolicy {
    /// The change waits for the pods.
    #[default]
    Wait,
    /// The pods are evicted.
    Evict,
}

/// Pods of a namespace that may be evicted though they hold no GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictablePods {
    /// Namespace of the pods.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Selects pods by their labels.
    pub pod_selector: PodSelector,
}

/// Selects pods by their labels; a pod must meet all conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.matchLabels) || has(self.matchExpressions)")
    .message("podSelector needs matchLabels or matchExpressions; a selector of every pod is refused"))]
pub struct PodSelector {
    /// Labels that the pod must have, with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::label_map")]
    #[x_kube(validation = Rule::new(crate::label_map::key_rule())
        .message("matchLabels must have keys of the form [PREFIX/]NAME: a name of at most 63 letters, digits, '-', '_' and '.', and a DNS name as prefix; at most 253 characters together"))]
    pub match_labels: BTreeMap<String, String>,

    /// Further conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
}

impl DrainRules {
    /// Returns true if pods are evicted.
    pub fn evicts(&self) -> bool {
        self.policy == Some(DrainPolicy::Evict)
    }

    /// Returns the grace period of evicted pods in seconds; none for that of the pod.
    pub fn grace_seconds(&self) -> Option<i64> {
        Some(duration(self.grace_period.as_deref())?.as_secs())
    }

    /// Returns the timeout in force. One that cannot be parsed, which the CRD refuses, counts as unset.
    pub fn timeout(&self) -> SignedDuration {
        duration(self.timeout.as_deref()).unwrap_or(TIMEOUT)
    }
}

fn duration(text: Option<&str>) -> Option<SignedDuration> {
    text?.parse().ok().filter(SignedDuration::is_positive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_and_unreadable_durations_have_defaults() {
        for (text, evicts, grace, minutes) in [
            ("{}", false, None, 15),
            ("{policy: Wait}", false, None, 15),
            ("{policy: Evict, gracePeriod: 1m30s, timeout: 1h}", true, Some(90), 60),
            ("{policy: Evict, gracePeriod: 0s, timeout: nonsense}", true, None, 15),
        ] {
            let rules: DrainRules = serde_yaml::from_str(text).unwrap();
            let read = (rules.evicts(), rules.grace_seconds(), rules.timeout());
            assert_eq!(read, (evicts, grace, SignedDuration::from_mins(minutes)), "{text}");
        }
    }
}
