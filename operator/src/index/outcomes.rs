//! The outcome of each policy on each node, and the sums by policy.

use gpunode_crds::Reason;
use gpunode_plan::{PolicyNodeStatus, PolicyOutcome, PolicyRollout, PolicyTally, RolloutStage, interned_text};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Status of each policy on one node, by name of the policy.
pub type PolicyNodeStatuses = BTreeMap<String, PolicyNodeStatus>;

/// Name of a policy and its status on one node, each shared with other nodes that have the same.
type KeptStatus = (Arc<str>, Arc<PolicyNodeStatus>);

/// Outcomes by node, and sums by policy.
#[derive(Debug, Default)]
pub struct OutcomeIndex {
    /// The statuses of a node take no more memory than they need.
    nodes: HashMap<String, Box<[KeptStatus]>>,
    /// Statuses without texts, which most nodes have: there are few different ones.
    plain: Vec<Arc<PolicyNodeStatus>>,
    tallies: HashMap<String, PolicyTally>,
}

/// The change of one policy's outcome on one node.
#[derive(Debug, PartialEq)]
pub struct OutcomeChange {
    pub policy: String,
    /// Reason and message of an event, if the change is worth one.
    pub event: Option<(Reason, String)>,
    /// True if the policy no longer applies to the node.
    pub left: bool,
}

impl OutcomeIndex {
    /// Replaces the outcomes of one node; empty for a deleted node. The work does not grow with the number of nodes.
    pub fn put(&mut self, node: &str, after: PolicyNodeStatuses) -> Vec<OutcomeChange> {
        let before = self.nodes.remove(node).unwrap_or_default();
        let policies = before.iter().map(|(policy, _)| &**policy);
        let policies: BTreeSet<_> = policies.chain(after.keys().map(String::as_str)).collect();
        let differing = policies
            .into_iter()
            .map(|policy| (policy.to_owned(), status_of(&before, policy), after.get(policy)))
            .filter(|(_, old, new)| old != new);
        let changes = differing
            .map(|(policy, old, new)| {
                let tally = self.tallies.entry(policy.clone()).or_default();
                let (before, after) = (counted(old), counted(new));
                if let Some(before) = before {
                    tally.remove(node, before);
                }
                match new {
                    Some(new) => tally.add(node, new),
                    None => tally.leave_rollouts(node),
                }
                let left = before.is_some() && after.is_none();
                OutcomeChange {
                    policy,
                    left,
                    event: event(before, after),
                }
            })
            .collect();
        if !after.is_empty() {
            let kept = self.kept(&before, after);
            self.nodes.insert(node.to_owned(), kept);
        }
        changes
    }

    /// Returns statuses as they are kept: those of which a copy is known already share it.
    fn kept(&mut self, before: &[KeptStatus], after: PolicyNodeStatuses) -> Box<[KeptStatus]> {
        let kept = after.into_iter().map(|(policy, status)| {
            let known = before.iter().find(|(known, _)| **known == *policy);
            let status = match known {
                Some((_, known)) if **known == status => Arc::clone(known),
                _ => self.shared(status),
            };
            (interned_text(&policy), status)
        });
        kept.collect()
    }

    fn shared(&mut self, status: PolicyNodeStatus) -> Arc<PolicyNodeStatus> {
        if !is_plain(&status) {
            return Arc::new(status);
        }
        if let Some(known) = self.plain.iter().find(|known| ***known == status) {
            return Arc::clone(known);
        }
        let status = Arc::new(status);
        self.plain.push(Arc::clone(&status));
        status
    }

    /// Returns the sum of a policy; `None` if it matches no node.
    pub fn tally(&self, policy: &str) -> Option<&PolicyTally> {
        self.tallies.get(policy)
    }

    /// Returns true if a policy counts a node.
    pub fn counts(&self, node: &str, policy: &str) -> bool {
        let status = self.nodes.get(node).and_then(|statuses| status_of(statuses, policy));
        counted(status).is_some()
    }

    /// Returns how many nodes of a policy its rollout does not wait for.
    pub fn outside(&self, policy: &str) -> i32 {
        let outside = self.tallies.get(policy).map_or(0, |tally| tally.rollout.outside());
        i32::try_from(outside).unwrap_or(i32::MAX)
    }

    /// Returns the rollouts of a policy: that of its configuration, and that of its taints that evict pods.
    pub fn rollouts(&mut self, policy: &str) -> Option<[&mut PolicyRollout; 2]> {
        let tally = self.tallies.get_mut(policy)?;
        Some([&mut tally.rollout, &mut tally.taint_rollout])
    }

    /// Returns the policies with a permit to add taints that evict pods to a node.
    pub fn taint_permits(&self, node: &str) -> BTreeSet<String> {
        let is_granted = |policy: &str| {
            let tally = self.tallies.get(policy);
            tally.is_some_and(|tally| tally.taint_rollout.is_granted(node))
        };
        let waiting = self.waiting_for_taints(node);
        waiting.filter(|policy| is_granted(policy)).map(str::to_owned).collect()
    }

    /// Uses these permits: from now on the node counts as written.
    pub fn use_taint_permits(&mut self, node: &str, policies: &BTreeSet<String>) {
        for policy in policies {
            if let Some(tally) = self.tallies.get_mut(policy) {
                tally.taint_rollout.use_permit(node);
            }
        }
    }

    /// Returns the permits of a node after the API server refused the write, and the policies that may grant others.
    pub fn return_taint_permits(&mut self, node: &str) -> Vec<String> {
        let policies: Vec<String> = self.waiting_for_taints(node).map(str::to_owned).collect();
        for policy in &policies {
            if let Some(tally) = self.tallies.get_mut(policy) {
                tally.taint_rollout.return_permit(node);
            }
        }
        policies
    }

    fn waiting_for_taints(&self, node: &str) -> impl Iterator<Item = &str> {
        let statuses = self.nodes.get(node).into_iter().flat_map(|statuses| statuses.iter());
        let waits = |status: &PolicyNodeStatus| status.taint_stage == Some(RolloutStage::Pending);
        statuses
            .filter(move |(_, status)| waits(status))
            .map(|(policy, _)| &**policy)
    }

    /// Returns the rollout that a node is part of, and its policy.
    pub fn rollout_of(&mut self, node: &str) -> Option<(&str, &mut PolicyRollout)> {
        let statuses = self.nodes.get(node)?;
        let (policy, _) = statuses.iter().find(|(_, status)| status.stage.is_some())?;
        Some((policy, &mut self.tallies.get_mut(&**policy)?.rollout))
    }

    /// Returns the names of the nodes that are counted.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Returns the nodes that are counted, and the policies with a status on each.
    pub fn policies_by_node(&self) -> impl Iterator<Item = (&str, &[KeptStatus])> {
        self.nodes.iter().map(|(node, statuses)| (node.as_str(), &**statuses))
    }

    /// Prepares the sums of a policy for plans with another spec: ready nodes count as updating until they are planned
    /// again, since nobody knows, and no permit of a rollout is used before.
    pub fn await_plans(&mut self, policy: &str) {
        let Some(tally) = self.tallies.get_mut(policy) else {
            return;
        };
        tally.rollout.take_back();
        tally.taint_rollout.take_back();
        for statuses in self.nodes.values_mut() {
            if let Some((_, status)) = statuses.iter_mut().find(|(known, _)| **known == *policy) {
                tally.unsettle(Arc::make_mut(status));
            }
        }
    }

    /// Drops the sums of policies that do not exist. No node may have an outcome of one: it would be subtracted later.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.tallies.retain(|policy, _| exists(policy));
    }
}

/// Returns the status of a policy.
fn status_of<'a>(statuses: &'a [KeptStatus], policy: &str) -> Option<&'a PolicyNodeStatus> {
    let (_, status) = statuses.iter().find(|(known, _)| **known == *policy)?;
    Some(status)
}

/// Returns true for a status without texts and lists of its own.
fn is_plain(status: &PolicyNodeStatus) -> bool {
    let PolicyNodeStatus {
        outcome,
        preview,
        waiting,
        gpu_refusal,
        stage,
        taint_stage,
        overridden,
    } = status;
    let has_text = |stage: Option<&RolloutStage>| matches!(stage, Some(RolloutStage::Stopped(_)));
    matches!(outcome, None | Some(PolicyOutcome::Ready | PolicyOutcome::Updating))
        && preview.is_none()
        && waiting.is_empty()
        && gpu_refusal.is_none()
        && overridden.is_none()
        && !has_text(stage.as_ref())
        && !has_text(taint_stage.as_ref())
}

fn counted(status: Option<&PolicyNodeStatus>) -> Option<&PolicyOutcome> {
    status?.outcome.as_ref()
}

/// Returns the event for a change: a conflict that comes or goes, or an agent that rejects its configuration.
fn event(old: Option<&PolicyOutcome>, new: Option<&PolicyOutcome>) -> Option<(Reason, String)> {
    let is_conflict = |outcome: &PolicyOutcome| matches!(outcome, PolicyOutcome::Conflicted { .. });
    let was_conflict = old.is_some_and(is_conflict);
    match new {
        Some(PolicyOutcome::Conflicted { reason, message }) if !was_conflict => Some((*reason, message.clone())),
        Some(PolicyOutcome::Failed {
            reason: Reason::ConfigurationRejected,
            message,
        }) if !matches!(
            old,
            Some(PolicyOutcome::Failed {
                reason: Reason::ConfigurationRejected,
                ..
            })
        ) =>
        {
            Some((Reason::ConfigurationRejected, message.clone()))
        }
        _ if was_conflict && !new.is_some_and(is_conflict) => Some((
            Reason::NoConflict,
            "no other owner holds a key of this policy".to_owned(),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::NodeCounts;

    fn outcomes(outcome: PolicyOutcome) -> PolicyNodeStatuses {
        BTreeMap::from([("p".to_owned(), outcome.into())])
    }

    fn put(all: &mut OutcomeIndex, after: PolicyNodeStatuses) -> Vec<Option<Reason>> {
        all.put("n", after)
            .into_iter()
            .map(|change| change.event.map(|(reason, _)| reason))
            .collect()
    }

    #[test]
    fn only_changes_are_returned_and_only_some_are_worth_an_event() {
        let mut all = OutcomeIndex::default();
        let conflict = || outcomes(PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m"));
        let rejected = |message: &str| outcomes(PolicyOutcome::failed(Reason::ConfigurationRejected, message));
        for (after, expected) in [
            (outcomes(PolicyOutcome::Updating), vec![None]),
            (outcomes(PolicyOutcome::Updating), vec![]),
            (outcomes(PolicyOutcome::Ready), vec![None]),
            (conflict(), vec![Some(Reason::KeyOwnedByAnother)]),
            (conflict(), vec![]),
            (rejected("m"), vec![Some(Reason::ConfigurationRejected)]),
            (rejected("other"), vec![None]),
            (conflict(), vec![Some(Reason::KeyOwnedByAnother)]),
            (PolicyNodeStatuses::new(), vec![Some(Reason::NoConflict)]),
        ] {
            assert_eq!(put(&mut all, after.clone()), expected, "{after:?}");
        }
    }

    #[test]
    fn nodes_with_the_same_status_share_it() {
        let mut all = OutcomeIndex::default();
        let failed = || outcomes(PolicyOutcome::failed(Reason::NodeNotReady, "m"));
        for node in ["a", "b"] {
            all.put(node, outcomes(PolicyOutcome::Ready));
        }
        assert!(Arc::ptr_eq(&all.nodes["a"][0].1, &all.nodes["b"][0].1));
        all.put("a", failed());
        let before = all.nodes["a"][0].1.clone();
        all.put("a", failed());
        assert!(
            Arc::ptr_eq(&before, &all.nodes["a"][0].1),
            "nothing is made anew that is known"
        );
        assert_eq!(all.plain.len(), 1);
    }

    #[test]
    fn ready_nodes_of_an_edited_policy_are_updating_until_they_are_counted_again() {
        let mut all = OutcomeIndex::default();
        for node in ["a", "b"] {
            all.put(node, outcomes(PolicyOutcome::Ready));
        }
        all.put("c", outcomes(PolicyOutcome::failed(Reason::NodeNotReady, "m")));
        let counts = |all: &OutcomeIndex| {
            let counts = all.tally("p").unwrap().counts();
            (counts.ready, counts.updating, counts.failed)
        };
        all.await_plans("p");
        assert_eq!(counts(&all), (0, 2, 1));
        assert_eq!(all.put("a", outcomes(PolicyOutcome::Ready)).len(), 1);
        all.put("b", PolicyNodeStatuses::new());
        assert_eq!(counts(&all), (1, 0, 1));
    }

    #[test]
    fn sums_follow_each_node() {
        let mut all = OutcomeIndex::default();
        all.put("a", outcomes(PolicyOutcome::Ready));
        all.put("b", outcomes(PolicyOutcome::Updating));
        all.put("b", outcomes(PolicyOutcome::Ready));
        all.put("a", PolicyNodeStatuses::new());
        let expected = NodeCounts {
            matched: 1,
            ready: 1,
            ..NodeCounts::default()
        };
        assert_eq!(all.tally("p").map(PolicyTally::counts), Some(expected));
        all.retain(|_| false);
        assert_eq!(all.tally("p"), None);
    }
}
