//! The operator's own conditions in `GpuNode.status`; all others are the agent's.

use crate::gpu_node::change::resource_version;
use gpunode_crds::{ConditionType, GpuNode, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum size of a condition's message in bytes: a status must stay readable.
const MAX_MESSAGE: usize = 1024;

/// Write of the operator's conditions to the status of one `GpuNode`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionsChange {
    /// `metadata.resourceVersion` that guards the write.
    pub resource_version: String,
    /// All of the operator's conditions; it removes any other of its own.
    pub conditions: Vec<Condition>,
}

/// Condition without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorCondition {
    /// Type of the condition.
    pub of: ConditionType,
    /// True for status `True`.
    pub holds: bool,
    /// Reason for programs.
    pub reason: Reason,
    /// Sentence for people.
    pub message: String,
}

/// Returns the change after which the `GpuNode` has these conditions of the operator and no other, except those of types
/// `kept`; none if it already has.
pub fn conditions_change(
    gpu_node: Option<&GpuNode>,
    desired: Vec<OperatorCondition>,
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
    // Turns a desired condition into a full one, with the old time where the status is the same.
    let condition = |desired: OperatorCondition| Condition {
        type_: desired.of.as_str().to_owned(),
        status: status(desired.holds).to_owned(),
        reason: desired.reason.as_str().to_owned(),
        message: desired
            .message
            .get(..desired.message.floor_char_boundary(MAX_MESSAGE))
            .unwrap_or_default()
            .to_owned(),
        last_transition_time: before
            .iter()
            .find(|old| old.type_ == desired.of.as_str() && old.status == status(desired.holds))
            .map_or(Time(now), |old| old.last_transition_time.clone()),
        observed_generation: None,
    };
    let kept = before
        .iter()
        .filter(|old| kept.iter().any(|kept| kept.as_str() == old.type_));
    let conditions: Vec<Condition> = desired
        .into_iter()
        .map(condition)
        .chain(kept.map(|old| (*old).clone()))
        .collect();
    let is_unchanged =
        conditions.len() == before.len() && conditions.iter().all(|condition| before.contains(&condition));
    (!is_unchanged).then(|| ConditionsChange {
        resource_version: resource_version(gpu_node),
        conditions,
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

    /// Returns the types applied to a `GpuNode` that has conditions of every type.
    fn applied(desired: Vec<OperatorCondition>, kept: &[ConditionType]) -> Vec<String> {
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
        let change =
            conditions_change(Some(&gpu_node), desired, kept, Timestamp::UNIX_EPOCH).expect("something changes");
        change.conditions.into_iter().map(|condition| condition.type_).collect()
    }

    #[test]
    fn nothing_but_the_operators_own_conditions_is_applied() {
        let conflict = || OperatorCondition {
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
