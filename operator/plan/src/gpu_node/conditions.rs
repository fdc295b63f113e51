//! The operator's own conditions in `GpuNode.status`; all others are the agent's.

use crate::input::gpu_node_facts::GpuNodeFacts;
use gpunode_crds::{ConditionType, UntimedCondition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Write of the operator's conditions to the status of one `GpuNode`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionsChange {
    /// `metadata.resourceVersion` that guards the write.
    pub resource_version: String,
    /// All of the operator's conditions; it removes any other of its own.
    pub conditions: Vec<Condition>,
}

/// Returns the change after which the `GpuNode` has these conditions of the operator and no other, except those of types
/// `kept`; none if it already has.
pub fn conditions_change(
    gpu_node: Option<&GpuNodeFacts>,
    desired: Vec<UntimedCondition>,
    kept: &[ConditionType],
    now: Timestamp,
) -> Option<ConditionsChange> {
    let gpu_node = gpu_node?;
    let live = &gpu_node.conditions;
    let is_ours = |condition: &&Condition| {
        ConditionType::OF_OPERATOR
            .iter()
            .any(|of| of.as_str() == condition.type_)
    };
    let before: Vec<&Condition> = live.iter().filter(is_ours).collect();
    let kept = before
        .iter()
        .filter(|old| kept.iter().any(|kept| kept.as_str() == old.type_));
    let conditions: Vec<Condition> = desired
        .into_iter()
        .map(|condition| condition.at(now, live))
        .chain(kept.map(|old| (*old).clone()))
        .collect();
    let is_unchanged =
        conditions.len() == before.len() && conditions.iter().all(|condition| before.contains(&condition));
    (!is_unchanged).then(|| ConditionsChange {
        resource_version: gpu_node.resource_version.clone(),
        conditions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNode, GpuNodeSpec, GpuNodeStatus, Reason};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
    fn applied(desired: Vec<UntimedCondition>, kept: &[ConditionType]) -> Vec<String> {
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
        let change = conditions_change(Some(&GpuNodeFacts::of(gpu_node)), desired, kept, Timestamp::UNIX_EPOCH)
            .expect("something changes");
        change.conditions.into_iter().map(|condition| condition.type_).collect()
    }

    #[test]
    fn nothing_but_the_operators_own_conditions_is_applied() {
        let conflict = || UntimedCondition {
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
