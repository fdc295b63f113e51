//! The operator's own conditions in `GpuNode.status`; all others are the agent's.

use crate::{
    input::facts::NodeFacts,
    node::claim::Claims,
    node::compose::Wanted,
    node::conflicts::{ConflictKey, KeyConflict},
};
use gpunode_crds::{ConditionType, GpuNode, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Most bytes of a condition's message: a status must stay readable.
const MAX_MESSAGE: usize = 1024;

/// The conditions that the operator wants in the status of one `GpuNode`, where they are not there yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionsChange {
    /// `metadata.resourceVersion` that the difference was found at.
    pub resource_version: String,
    /// All of them; those that are missing here go.
    pub conditions: Vec<Condition>,
}

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it is about.
    pub of: ConditionType,
    /// Whether it holds.
    pub holds: bool,
    /// One word for programs.
    pub reason: Reason,
    /// A sentence for people.
    pub message: String,
}

/// The change after which the `GpuNode` tells these verdicts and no other of the operator's, but for those of types `kept`.
pub fn change(
    gpu_node: Option<&GpuNode>,
    verdicts: Vec<Verdict>,
    kept: &[ConditionType],
    now: Timestamp,
) -> Option<ConditionsChange> {
    let gpu_node = gpu_node?;
    let live = gpu_node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let is_ours = |condition: &&Condition| {
        ConditionType::OF_OPERATOR
            .iter()
            .any(|of| of.as_str() == condition.type_)
    };
    let before: Vec<&Condition> = live.iter().filter(is_ours).collect();
    let status = |holds| if holds { "True" } else { "False" };
    let condition = |verdict: Verdict| Condition {
        type_: verdict.of.as_str().to_owned(),
        status: status(verdict.holds).to_owned(),
        reason: verdict.reason.as_str().to_owned(),
        message: verdict
            .message
            .get(..verdict.message.floor_char_boundary(MAX_MESSAGE))
            .unwrap_or_default()
            .to_owned(),
        last_transition_time: before
            .iter()
            .find(|old| old.type_ == verdict.of.as_str() && old.status == status(verdict.holds))
            .map_or(Time(now), |old| old.last_transition_time.clone()),
        observed_generation: None,
    };
    let kept = before
        .iter()
        .filter(|old| kept.iter().any(|kept| kept.as_str() == old.type_));
    let conditions: Vec<Condition> = verdicts
        .into_iter()
        .map(condition)
        .chain(kept.map(|old| (*old).clone()))
        .collect();
    let is_there = conditions.len() == before.len() && conditions.iter().all(|condition| before.contains(&condition));
    let resource_version = gpu_node.metadata.resource_version.clone().unwrap_or_default();
    (!is_there).then_some(ConditionsChange {
        resource_version,
        conditions,
    })
}

/// That somebody else owns keys that policies want, if so.
pub fn foreign_keys(conflicts: &[KeyConflict]) -> Option<Verdict> {
    let told = conflicts
        .iter()
        .map(|conflict| format!("{conflict}, as {} wants", conflict.policies.join(" and ")));
    let message = told.collect::<Vec<_>>().join("; ");
    (!conflicts.is_empty()).then_some(Verdict {
        of: ConditionType::Conflict,
        holds: true,
        reason: Reason::KeyOwnedByAnother,
        message,
    })
}

/// That somebody else keeps labels with facts, if so. `wanted` is what policies and facts want, and nobody but facts wants
/// a label of no policy.
pub fn foreign_facts(node: &NodeFacts, wanted: &BTreeMap<String, Wanted>, claims: &Claims<String>) -> Option<Verdict> {
    let foreign: Vec<&String> = wanted
        .iter()
        .filter(|(key, by)| by.policies.is_empty() && !claims.entries.owned.contains_key(*key))
        .map(|(key, _)| key)
        .collect();
    if foreign.is_empty() {
        return None;
    }
    let managers: BTreeSet<&str> = foreign.iter().filter_map(|key| node.label_managers.get(key)).collect();
    let who = if managers.is_empty() {
        "somebody else".to_owned()
    } else {
        managers.into_iter().collect::<Vec<_>>().join(" and ")
    };
    let others: Vec<String> = claims
        .clashes
        .iter()
        .filter(|clash| clash.wanted.policies.is_empty())
        .map(|clash| {
            let conflict = KeyConflict::of(ConflictKey::Label(clash.key.clone()), clash, None).to_string();
            conflict.strip_prefix("label ").map(str::to_owned).unwrap_or(conflict)
        })
        .collect();
    let others = if others.is_empty() {
        "with the same values".to_owned()
    } else {
        others.join("; ")
    };
    let message = format!(
        "{who} keeps {} of the labels with facts about GPUs, as GPU feature discovery does: {others}",
        foreign.len()
    );
    Some(Verdict {
        of: ConditionType::FactLabels,
        holds: false,
        reason: Reason::OwnedByAnother,
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNodeSpec, GpuNodeStatus};

    fn condition(of: &str, status: &str) -> Condition {
        Condition {
            type_: of.to_owned(),
            status: status.to_owned(),
            reason: "R".to_owned(),
            message: "m".to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    /// What is applied to a `GpuNode` with conditions of every type there is; their types.
    fn applied(verdicts: Vec<Verdict>, kept: &[ConditionType]) -> Vec<String> {
        let agents = [
            "Ready",
            "ConfigurationAccepted",
            "Registered",
            "DevicesOffered",
            "DriverAvailable",
            "Unheard",
        ];
        let ours = ConditionType::OF_OPERATOR.map(ConditionType::as_str);
        let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
        let conditions = agents
            .into_iter()
            .chain(ours)
            .map(|of| condition(of, "False"))
            .collect();
        gpu_node.status = Some(GpuNodeStatus {
            conditions,
            ..GpuNodeStatus::default()
        });
        let change = change(Some(&gpu_node), verdicts, kept, Timestamp::UNIX_EPOCH).expect("something changes");
        change.conditions.into_iter().map(|condition| condition.type_).collect()
    }

    #[test]
    fn nothing_but_the_operators_own_conditions_is_applied() {
        let conflict = || Verdict {
            of: ConditionType::Conflict,
            holds: true,
            reason: Reason::EqualPriority,
            message: "m".to_owned(),
        };
        assert_eq!(applied(vec![conflict()], &[]), ["Conflict"]);
        assert_eq!(
            applied(vec![conflict()], &[ConditionType::FactLabels]),
            ["Conflict", "FactLabels"]
        );
        assert_eq!(applied(Vec::new(), &[]), [""; 0]);
        // One of the agent's cannot be kept by mistake either.
        assert_eq!(applied(Vec::new(), &[ConditionType::Ready]), [""; 0]);
    }
}
