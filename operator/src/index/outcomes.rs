//! What became of each policy on each node, and the same summed up by policy.

use gpunode_crds::Reason;
use gpunode_plan::{PolicyNodeStatus, PolicyOutcome, PolicyRollout, PolicyTally};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where each policy stands on one node, by name.
pub type ByPolicy = BTreeMap<String, PolicyNodeStatus>;

/// All outcomes.
#[derive(Debug, Default)]
pub struct Outcomes {
    nodes: HashMap<String, ByPolicy>,
    tallies: HashMap<String, PolicyTally>,
}

/// An outcome that changed.
#[derive(Debug, PartialEq)]
pub struct Transition {
    /// The policy.
    pub policy: String,
    /// What people want to hear of it, if anything.
    pub news: Option<(Reason, String)>,
    /// Whether the policy has to do with the node no more.
    pub left: bool,
}

impl Outcomes {
    /// Takes in the outcomes of one node; none for a node that is gone. The work does not grow with the number of nodes.
    pub fn put(&mut self, node: &str, after: ByPolicy) -> Vec<Transition> {
        let before = self.nodes.remove(node).unwrap_or_default();
        let policies: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
        let changed = policies
            .into_iter()
            .filter(|policy| before.get(policy) != after.get(policy));
        let transitions = changed
            .map(|policy| {
                let (old, new) = (before.get(&policy), after.get(&policy));
                let tally = self.tallies.entry(policy.clone()).or_default();
                let (before, after) = (counted(old), counted(new));
                if let Some(before) = before {
                    tally.remove(node, before);
                }
                match new {
                    Some(new) => tally.add(node, new),
                    None => tally.rollout.put(node, None),
                }
                let left = before.is_some() && after.is_none();
                Transition {
                    policy,
                    left,
                    news: news(before, after),
                }
            })
            .collect();
        if !after.is_empty() {
            self.nodes.insert(node.to_owned(), after);
        }
        transitions
    }

    /// The sum for a policy, where it matches any node.
    pub fn tally(&self, policy: &str) -> Option<&PolicyTally> {
        self.tallies.get(policy)
    }

    /// How many nodes of a policy nobody waits for.
    pub fn outside(&self, policy: &str) -> i32 {
        let outside = self.tallies.get(policy).map_or(0, |tally| tally.rollout.outside());
        i32::try_from(outside).unwrap_or(i32::MAX)
    }

    /// The rollout of a policy.
    pub fn rollout(&mut self, policy: &str) -> Option<&mut PolicyRollout> {
        self.tallies.get_mut(policy).map(|tally| &mut tally.rollout)
    }

    /// The rollout that a node is part of, and its policy.
    pub fn rollout_of(&mut self, node: &str) -> Option<(&str, &mut PolicyRollout)> {
        let standings = self.nodes.get(node)?;
        let (policy, _) = standings.iter().find(|(_, standing)| standing.stage.is_some())?;
        Some((policy, &mut self.tallies.get_mut(policy)?.rollout))
    }

    /// Forgets the sums of policies that are gone.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.tallies.retain(|policy, _| exists(policy));
    }
}

fn counted(standing: Option<&PolicyNodeStatus>) -> Option<&PolicyOutcome> {
    standing?.outcome.as_ref()
}

/// People hear when a conflict comes or goes, and when an agent refuses its configuration.
fn news(old: Option<&PolicyOutcome>, new: Option<&PolicyOutcome>) -> Option<(Reason, String)> {
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
        _ if was_conflict && !new.is_some_and(is_conflict) => {
            Some((Reason::NoConflict, "no other owner is in the way any more".to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::NodeCounts;

    fn outcomes(outcome: PolicyOutcome) -> ByPolicy {
        BTreeMap::from([("p".to_owned(), outcome.into())])
    }

    fn put(all: &mut Outcomes, after: ByPolicy) -> Vec<Option<Reason>> {
        all.put("n", after)
            .into_iter()
            .map(|transition| transition.news.map(|(reason, _)| reason))
            .collect()
    }

    #[test]
    fn only_changes_are_told_and_only_some_are_news() {
        let mut all = Outcomes::default();
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
            (ByPolicy::new(), vec![Some(Reason::NoConflict)]),
        ] {
            assert_eq!(put(&mut all, after.clone()), expected, "{after:?}");
        }
    }

    #[test]
    fn sums_follow_each_node() {
        let mut all = Outcomes::default();
        all.put("a", outcomes(PolicyOutcome::Ready));
        all.put("b", outcomes(PolicyOutcome::Updating));
        all.put("b", outcomes(PolicyOutcome::Ready));
        all.put("a", ByPolicy::new());
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
