//! Previews: what the policies in mode Preview would change. They are computed in passes over all nodes, a few plans at
//! a time, and not with each event: a preview costs one more plan per node and policy, and only a status shows it.

use crate::index::outcomes::PolicyNodeStatuses;
use gpunode_plan::PolicyTally;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Plans at a time.
const PLANS: usize = 16;
/// Pause between passes over a fleet that changes.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// Length of the pause in lengths of the pass: a large fleet costs a tenth of the time at most.
const PAUSE_PER_PASS: i32 = 10;
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);

/// Results of the last passes, and the pass under way.
#[derive(Debug, Default)]
pub struct PreviewPasses {
    /// Counts over all nodes, by policy.
    results: BTreeMap<String, PreviewResult>,
    /// Generations of the policies that were edited since the last pass began.
    edited: BTreeMap<String, Option<i64>>,
    /// True if a node may have changed since a pass began.
    has_fleet_changed: bool,
    /// End of the pause after the last pass over the fleet that changed.
    pause_ends: Option<Timestamp>,
    pass: Option<PreviewPass>,
}

/// Changes that a policy would make, by the last pass.
#[derive(Debug)]
pub struct PreviewResult {
    /// `metadata.generation` of the policy when the pass began.
    pub generation: Option<i64>,
    pub tally: PolicyTally,
}

#[derive(Debug)]
struct PreviewPass {
    began: Timestamp,
    /// True if a change of the fleet asked for it.
    is_for_fleet: bool,
    /// Nodes that are left, by falling name.
    nodes: Vec<String>,
    results: BTreeMap<String, PreviewResult>,
}

impl PreviewPasses {
    /// Asks for another pass for a policy that was edited. The result before stays until then, and a pass under way goes on: edits
    /// that never stop would leave the policy without any.
    pub fn edit(&mut self, policy: &str, generation: Option<i64>) {
        self.edited.insert(policy.to_owned(), generation);
    }

    /// Forgets a policy that is not in mode Preview, or another one of its name.
    pub fn forget(&mut self, policy: &str) {
        self.results.remove(policy);
        self.edited.remove(policy);
        if let Some(pass) = &mut self.pass {
            pass.results.remove(policy);
        }
        // Nobody asks for it any more.
        if self.pass.as_ref().is_some_and(|pass| pass.results.is_empty()) {
            self.pass = None;
        }
    }

    /// Records that a node may have changed. Returns the moment of the next pass, if it was not known.
    pub fn change_fleet(&mut self, now: Timestamp) -> Option<Timestamp> {
        let has_results = !self.results.is_empty() || self.pass.is_some();
        if !has_results || std::mem::replace(&mut self.has_fleet_changed, true) {
            return None;
        }
        Some(self.fleet_pass_at(now))
    }

    fn fleet_pass_at(&self, now: Timestamp) -> Timestamp {
        // A clock that goes back makes no pause longer than the longest.
        let longest = now.checked_add(LONGEST_PAUSE).unwrap_or(now);
        self.pause_ends.map_or(now, |end| end.max(now).min(longest))
    }

    /// Begins a pass over `nodes` if none is under way and one is due. Returns the moment at which the next one is, if
    /// there is nothing to do now.
    pub fn begin(&mut self, nodes: impl FnOnce() -> Vec<String>, now: Timestamp) -> Option<Timestamp> {
        if self.pass.is_some() {
            return None;
        }
        let fleet_pass_at = self.has_fleet_changed.then(|| self.fleet_pass_at(now));
        let is_for_fleet = fleet_pass_at.is_some_and(|at| at <= now);
        let mut policies = std::mem::take(&mut self.edited);
        if is_for_fleet {
            self.has_fleet_changed = false;
            for (policy, result) in &self.results {
                policies.entry(policy.clone()).or_insert(result.generation);
            }
        }
        if policies.is_empty() {
            return fleet_pass_at.filter(|at| *at > now);
        }
        let mut nodes = nodes();
        nodes.sort_unstable_by(|a, b| b.cmp(a));
        self.pass = Some(PreviewPass {
            began: now,
            is_for_fleet,
            nodes,
            results: policies
                .into_iter()
                .map(|(name, generation)| {
                    let tally = PolicyTally::default();
                    (name, PreviewResult { generation, tally })
                })
                .collect(),
        });
        None
    }

    /// Returns the policies of the pass under way, and the nodes that are next.
    pub fn next_slice(&mut self) -> (BTreeSet<String>, Vec<String>) {
        let Some(pass) = &mut self.pass else {
            return (BTreeSet::new(), Vec::new());
        };
        let policies: BTreeSet<String> = pass.results.keys().cloned().collect();
        // Without and with each policy.
        let count = (PLANS / (policies.len() + 2)).max(1).min(pass.nodes.len());
        let first = pass.nodes.len() - count;
        (policies, pass.nodes.drain(first..).rev().collect())
    }

    /// Counts a node of the pass under way.
    pub fn count(&mut self, node: &str, statuses: PolicyNodeStatuses) {
        let Some(pass) = &mut self.pass else { return };
        for (policy, status) in statuses {
            if let Some(result) = pass.results.get_mut(&policy) {
                result.tally.add_in_order(node, status);
            }
        }
    }

    /// Ends a pass that has reached every node. Returns its policies; none while it goes on.
    pub fn end(&mut self, now: Timestamp) -> Option<Vec<String>> {
        let pass = self.pass.take_if(|pass| pass.nodes.is_empty())?;
        if pass.is_for_fleet {
            let took = now.duration_since(pass.began).max(SignedDuration::ZERO);
            let pause = took.saturating_mul(PAUSE_PER_PASS).clamp(PAUSE, LONGEST_PAUSE);
            self.pause_ends = now.checked_add(pause).ok();
        }
        let policies = pass.results.keys().cloned().collect();
        self.results.extend(pass.results);
        Some(policies)
    }

    /// Returns the moment at which another pass is due; none if nothing asks for one.
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        if self.edited.is_empty() {
            self.has_fleet_changed.then(|| self.fleet_pass_at(now))
        } else {
            Some(now)
        }
    }

    /// Returns the result for a policy; none before its first pass is over.
    pub fn result(&self, policy: &str) -> Option<&PreviewResult> {
        self.results.get(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_plan::PolicyOutcome;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("n-{index:03}")).collect()
    }

    /// Runs the pass under way to its end. Returns its nodes in order, and its policies.
    fn run(passes: &mut PreviewPasses, now: Timestamp) -> (Vec<String>, Vec<String>) {
        let mut seen = Vec::new();
        loop {
            let (policies, slice) = passes.next_slice();
            assert!(slice.len() * (policies.len() + 2) <= PLANS || slice.len() == 1);
            for node in slice {
                let status = |name: &String| (name.clone(), PolicyOutcome::Updating.into());
                passes.count(&node, policies.iter().map(status).collect());
                seen.push(node);
            }
            if let Some(policies) = passes.end(now) {
                return (seen, policies);
            }
        }
    }

    #[test]
    fn edited_policy_is_previewed_on_every_node_in_the_order_of_names() {
        let mut passes = PreviewPasses::default();
        passes.edit("p", Some(1));
        assert_eq!(passes.begin(|| nodes(40), at(0)), None);
        assert!(passes.result("p").is_none(), "no part of a pass is a result");
        let (seen, policies) = run(&mut passes, at(0));
        assert_eq!((seen, policies), (nodes(40), vec!["p".to_owned()]));
        assert_eq!(
            passes.result("p").map(|result| result.tally.counts().updating),
            Some(40)
        );
        assert_eq!(passes.next(at(0)), None);
    }

    #[test]
    fn change_of_the_fleet_leads_to_one_pass_after_a_pause() {
        let mut passes = PreviewPasses::default();
        assert_eq!(passes.change_fleet(at(0)), None, "there is no policy to preview");
        passes.edit("p", Some(1));
        passes.begin(|| nodes(1), at(0));
        run(&mut passes, at(0));
        assert_eq!(
            (passes.change_fleet(at(1)), passes.change_fleet(at(1))),
            (Some(at(1)), None)
        );
        assert_eq!(passes.begin(|| nodes(1), at(1)), None);
        assert_eq!(passes.change_fleet(at(2)), Some(at(2)), "it may have missed this");
        // It took 5 seconds.
        run(&mut passes, at(6));
        assert_eq!(passes.next(at(6)), Some(at(56)));
        assert_eq!(passes.begin(|| nodes(1), at(55)), Some(at(56)));
        assert_eq!(passes.begin(|| nodes(1), at(56)), None);
        assert_eq!(run(&mut passes, at(56)).0.len(), 1);
        assert_eq!(passes.next(at(56)), None);
    }

    #[test]
    fn edit_during_a_pass_is_previewed_by_the_next_one_and_the_pass_has_a_result_all_the_same() {
        let mut passes = PreviewPasses::default();
        let generation = |passes: &PreviewPasses| passes.result("p").and_then(|result| result.generation);
        passes.edit("p", Some(1));
        passes.edit("q", Some(1));
        // Edits that come faster than a pass ends.
        for before in 1..4 {
            passes.begin(|| nodes(1), at(0));
            passes.edit("p", Some(before + 1));
            assert_eq!(
                generation(&passes),
                Some(before - 1).filter(|it| *it > 0),
                "the result before"
            );
            run(&mut passes, at(0));
            assert_eq!((generation(&passes), passes.next(at(0))), (Some(before), Some(at(0))));
        }
        passes.begin(|| nodes(1), at(0));
        assert_eq!(run(&mut passes, at(0)).1, ["p"]);
        assert_eq!((generation(&passes), passes.next(at(0))), (Some(4), None));
        passes.forget("q");
        assert!(passes.result("q").is_none());
    }

    #[test]
    fn cluster_without_nodes_has_a_result() {
        let mut passes = PreviewPasses::default();
        passes.edit("p", Some(1));
        passes.begin(Vec::new, at(0));
        assert_eq!(run(&mut passes, at(0)).0, [""; 0]);
        assert!(passes.result("p").is_some());
    }
}
