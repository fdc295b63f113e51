//! What people are told: transitions only, since status says how things are.

use gpunode_crds::{ConditionType, GpuNodePolicy, GpuNodePolicyStatus, Mode, Reason};
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::Resource;

/// Something for people, which becomes an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The policy or pod.
    pub about: ObjectReference,
    /// The node that it is about, if one.
    pub node: Option<String>,
    /// Whether somebody should look.
    pub is_warning: bool,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl Notice {
    /// Something about a policy on one node.
    pub fn of_node(policy: &GpuNodePolicy, node: &str, reason: Reason, message: &str) -> Self {
        Self {
            about: policy.object_ref(&()),
            node: Some(node.to_owned()),
            is_warning: reason != Reason::NoConflict,
            reason: reason.as_str().to_owned(),
            message: format!("{node}: {message}"),
        }
    }

    /// The conditions that people want to hear of and that are otherwise in the new status of a policy than in the one
    /// that it has. A policy in mode Preview writes nothing but its status.
    pub fn of_status(policy: &GpuNodePolicy, after: &GpuNodePolicyStatus) -> Vec<Self> {
        if policy.spec.mode() == Mode::Preview {
            return Vec::new();
        }
        let before = policy
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        [ConditionType::Ready, ConditionType::Degraded, ConditionType::Conflict]
            .into_iter()
            .filter_map(|type_| {
                let condition = type_.find(&after.conditions)?;
                is_news(type_, type_.find(before), condition).then(|| Self {
                    about: policy.object_ref(&()),
                    node: None,
                    is_warning: (type_ != ConditionType::Ready && condition.status == "True")
                        || [Reason::InvalidSpec, Reason::RolloutStopped]
                            .iter()
                            .any(|it| condition.reason == it.as_str()),
                    reason: condition.reason.clone(),
                    message: format!("{}: {}", condition.type_, condition.message),
                })
            })
            .collect()
    }
}

fn is_news(type_: ConditionType, before: Option<&Condition>, after: &Condition) -> bool {
    match before {
        Some(before) => (&before.status, &before.reason) != (&after.status, &after.reason),
        // That nothing is wrong with a new policy is no news.
        None => type_ == ConditionType::Ready || after.status == "True",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNodePolicySpec;
    use gpunode_plan::{AgentUpdate, PolicyOutcome, PolicySet, PolicyTally, policy_status};
    use jiff::Timestamp;

    fn policy(spec: &str) -> GpuNodePolicy {
        GpuNodePolicy::new("p", serde_yaml::from_str::<GpuNodePolicySpec>(spec).unwrap())
    }

    /// Gives the policy the status that it has with this outcome on its only node, and returns what people are told.
    fn tell(policy: &mut GpuNodePolicy, outcome: &PolicyOutcome) -> Vec<(String, bool)> {
        let mut tally = PolicyTally::default();
        tally.add("n", &outcome.clone().into());
        let set = PolicySet::new([&*policy]);
        let status = policy_status(
            set.get("p").unwrap(),
            &tally,
            &AgentUpdate::default(),
            policy.status.as_ref(),
            Timestamp::UNIX_EPOCH,
        );
        let notices = Notice::of_status(policy, &status);
        policy.status = Some(status);
        notices
            .into_iter()
            .map(|notice| (notice.reason, notice.is_warning))
            .collect()
    }

    fn told(reason: Reason, is_warning: bool) -> (String, bool) {
        (reason.as_str().to_owned(), is_warning)
    }

    #[test]
    fn conditions_are_told_when_they_come_and_when_they_go() {
        let mut policy = policy("{nodeSelector: {}, labels: {x: y}}");
        assert_eq!(
            tell(&mut policy, &PolicyOutcome::Updating),
            [told(Reason::NodesUpdating, false)]
        );
        assert_eq!(tell(&mut policy, &PolicyOutcome::Updating), []);
        let conflict = PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m");
        let expected = [
            told(Reason::KeyOwnedByAnother, false),
            told(Reason::KeyOwnedByAnother, true),
        ];
        assert_eq!(tell(&mut policy, &conflict), expected);
        assert_eq!(tell(&mut policy, &conflict), []);
        assert_eq!(
            tell(&mut policy, &PolicyOutcome::Ready),
            [told(Reason::InForce, false), told(Reason::NoConflict, false)]
        );
        let failed = PolicyOutcome::failed(Reason::WriteFailed, "m");
        assert_eq!(
            tell(&mut policy, &failed),
            [told(Reason::WriteFailed, false), told(Reason::NodesFailed, true)]
        );
    }

    #[test]
    fn spec_that_cannot_be_carried_out_is_a_warning() {
        let mut policy = policy("{nodeSelector: {}, devicePlugin: {resources: [{name: nodomain}]}}");
        assert_eq!(
            tell(&mut policy, &PolicyOutcome::Ready),
            [told(Reason::InvalidSpec, true)]
        );
    }

    #[test]
    fn policy_in_mode_preview_tells_nothing() {
        let mut policy = policy("{mode: Preview, nodeSelector: {}, labels: {x: y}}");
        assert_eq!(
            tell(&mut policy, &PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m")),
            []
        );
    }
}
