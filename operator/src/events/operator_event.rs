//! Events that the operator sends: changes only, since status holds the present state.

use gpunode_crds::{ConditionType, GpuNodePolicy, GpuNodePolicyStatus, PolicyMode, Reason};
use gpunode_plan::ConditionsChange;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::Resource;

/// An event to send.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorEvent {
    /// The policy or pod.
    pub about: ObjectReference,
    /// Name of the related node, if any.
    pub node: Option<String>,
    pub is_warning: bool,
    /// In CamelCase, for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

impl OperatorEvent {
    /// An event of a policy on one node.
    pub fn of_node(policy: &GpuNodePolicy, node: &str, reason: Reason, message: &str) -> Self {
        Self {
            about: policy.object_ref(&()),
            node: Some(node.to_owned()),
            is_warning: reason != Reason::NoConflict,
            reason: reason.as_str().to_owned(),
            message: format!("{node}: {message}"),
        }
    }

    /// An event of a policy that is gone: nobody knows its UID.
    pub fn of_gone_policy(policy: &str, reason: Reason, message: String) -> Self {
        Self {
            about: ObjectReference {
                api_version: Some(GpuNodePolicy::api_version(&()).into_owned()),
                kind: Some(GpuNodePolicy::kind(&()).into_owned()),
                name: Some(policy.to_owned()),
                ..ObjectReference::default()
            },
            node: None,
            is_warning: true,
            reason: reason.as_str().to_owned(),
            message,
        }
    }

    /// An event of a node whose recovery annotation has become unreadable with these conditions: people look for the effect of
    /// the annotation at the node.
    pub fn of_annotation(node: &str, before: &[Condition], after: Option<&ConditionsChange>) -> Option<Self> {
        let of = ConditionType::RecoveredAnnotation;
        let condition = of.find(&after?.conditions)?;
        let is_known = of
            .find(before)
            .is_some_and(|before| before.message == condition.message);
        (!is_known).then(|| Self {
            // As kubelets do: `kubectl describe node` looks for events under the name.
            about: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                uid: Some(node.to_owned()),
                ..ObjectReference::default()
            },
            node: None,
            is_warning: true,
            reason: of.as_str().to_owned(),
            message: condition.message.clone(),
        })
    }

    /// Conditions worth an event whose status or reason differs between the policy's present status and `after`. None for a
    /// policy in mode Preview, which writes nothing but its status.
    pub fn of_status(policy: &GpuNodePolicy, after: &GpuNodePolicyStatus) -> Vec<Self> {
        if policy.spec.mode() == PolicyMode::Preview {
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
                is_worth_an_event(type_, type_.find(before), condition).then(|| Self {
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

fn is_worth_an_event(type_: ConditionType, before: Option<&Condition>, after: &Condition) -> bool {
    match before {
        Some(before) => (&before.status, &before.reason) != (&after.status, &after.reason),
        // A new policy without a fault is not worth an event.
        None => type_ == ConditionType::Ready || after.status == "True",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNodePolicySpec;
    use gpunode_plan::{AgentUpdate, PolicyOutcome, PolicySet, PolicyTally, policy_status};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn policy(spec: &str) -> GpuNodePolicy {
        GpuNodePolicy::new("p", serde_yaml::from_str::<GpuNodePolicySpec>(spec).unwrap())
    }

    /// Gives the policy the status for this outcome on its only node, and returns reason and severity of the events.
    fn events_after(policy: &mut GpuNodePolicy, outcome: &PolicyOutcome) -> Vec<(String, bool)> {
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
        let events = OperatorEvent::of_status(policy, &status);
        policy.status = Some(status);
        events
            .into_iter()
            .map(|event| (event.reason, event.is_warning))
            .collect()
    }

    fn event(reason: Reason, is_warning: bool) -> (String, bool) {
        (reason.as_str().to_owned(), is_warning)
    }

    #[test]
    fn condition_is_an_event_when_it_comes_and_when_it_goes() {
        let mut policy = policy("{nodeSelector: {}, labels: {x: y}}");
        assert_eq!(
            events_after(&mut policy, &PolicyOutcome::Updating),
            [event(Reason::NodesUpdating, false)]
        );
        assert_eq!(events_after(&mut policy, &PolicyOutcome::Updating), []);
        let conflict = PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m");
        let expected = [
            event(Reason::KeyOwnedByAnother, false),
            event(Reason::KeyOwnedByAnother, true),
        ];
        assert_eq!(events_after(&mut policy, &conflict), expected);
        assert_eq!(events_after(&mut policy, &conflict), []);
        assert_eq!(
            events_after(&mut policy, &PolicyOutcome::Ready),
            [event(Reason::InForce, false), event(Reason::NoConflict, false)]
        );
        let failed = PolicyOutcome::failed(Reason::WriteFailed, "m");
        assert_eq!(
            events_after(&mut policy, &failed),
            [event(Reason::WriteFailed, false), event(Reason::NodesFailed, true)]
        );
    }

    #[test]
    fn invalid_spec_is_a_warning() {
        let mut policy = policy("{nodeSelector: {}, devicePlugin: {resources: [{name: nodomain}]}}");
        assert_eq!(
            events_after(&mut policy, &PolicyOutcome::Ready),
            [event(Reason::InvalidSpec, true)]
        );
    }

    #[test]
    fn policy_in_mode_preview_sends_no_event() {
        let mut policy = policy("{mode: Preview, nodeSelector: {}, labels: {x: y}}");
        assert_eq!(
            events_after(&mut policy, &PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m")),
            []
        );
    }

    #[test]
    fn unreadable_annotation_is_an_event_of_the_node_once() {
        let condition = |message: &str| Condition {
            type_: ConditionType::RecoveredAnnotation.as_str().to_owned(),
            status: "False".to_owned(),
            reason: Reason::Unreadable.as_str().to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        };
        let after = ConditionsChange {
            resource_version: "1".to_owned(),
            conditions: vec![condition("yesterday is no time")],
        };
        let event = |before: Option<&str>, after| {
            let before: Vec<_> = before.map(condition).into_iter().collect();
            OperatorEvent::of_annotation("n", &before, after)
        };
        let sent = event(None, Some(&after)).unwrap();
        assert_eq!(
            (sent.about.name.as_deref(), sent.message.as_str(), sent.is_warning),
            (Some("n"), "yesterday is no time", true)
        );
        assert!(event(Some("soon is no time"), Some(&after)).is_some());
        assert_eq!(event(Some("yesterday is no time"), Some(&after)), None);
        assert_eq!(event(None, None), None);
    }
}
