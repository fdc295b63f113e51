//! The summary of one policy, from its status. Pure.

use super::rollout::RolloutSummary;
use gpunode_crds::{ConditionType, GpuNodePolicy, NodeFailure, Reason};
use gpunode_plan::NearestNode;
use kube::ResourceExt;
use serde::Serialize;

/// One policy.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySummary {
    pub name: String,
    pub mode: String,
    pub priority: i32,
    pub matched: i32,
    pub ready_nodes: i32,
    pub updating: i32,
    pub failed: i32,
    pub conflicted: i32,
    pub overridden: i32,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// Progress of its configuration on the nodes that it governs; none where it governs no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSummary>,
    /// The node that it comes nearest to matching, where it matches none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestNode>,
    /// Problems of the whole policy.
    pub messages: Vec<String>,
    /// Message of a policy that is in force and that another one overrides on some nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_message: Option<String>,
    /// Problems on single nodes.
    pub failures: Vec<NodeFailure>,
}

/// Summarises a policy.
pub fn summarise_policy(policy: &GpuNodePolicy) -> PolicySummary {
    let status = policy.status.clone().unwrap_or_default();
    let nodes = status.nodes.unwrap_or_default();
    let ready = ConditionType::Ready.find(&status.conditions);
    let obstacles = [ConditionType::Stalled, ConditionType::Conflict, ConditionType::Degraded];
    let unseen = status
        .observed_generation
        .is_none_or(|seen| policy.metadata.generation.is_some_and(|now| seen < now));
    let unseen = unseen.then(|| "the operator has not processed the current spec; check that it is running: `kubectl -n gpunode-system get pods`".to_owned());
    let in_force = ready.filter(|it| it.status == "True" && it.reason == Reason::InForce.as_str());
    let overridden = in_force.filter(|_| nodes.overridden > 0);
    let messages = obstacles
        .into_iter()
        .filter_map(|kind| kind.find(&status.conditions))
        .filter(|condition| condition.status == "True")
        .map(|condition| format!("{} ({}): {}", condition.type_, condition.reason, condition.message))
        .chain(unseen)
        .collect();
    PolicySummary {
        name: policy.name_any(),
        mode: format!("{:?}", policy.spec.mode()),
        priority: policy.spec.priority(),
        matched: nodes.matched,
        ready_nodes: nodes.ready,
        updating: nodes.updating,
        failed: nodes.failed,
        conflicted: nodes.conflicted,
        overridden: nodes.overridden,
        ready: ready.map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
        reason: ready.map(|ready| ready.reason.clone()),
        rollout: None,
        nearest: None,
        messages,
        override_message: overridden.map(|condition| condition.message.clone()),
        failures: status.failures,
    }
}
