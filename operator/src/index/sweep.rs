//! Sweeps: the plans of all nodes that are due after an edit of policies, and on a process that begins to lead. A few
//! nodes at a time join the work queue, by name. After an edit meanwhile every node is due again, and the sweep goes on
//! with the next name, so that edits without an end reach every node all the same.
//!
//! | during a sweep | policies with an edit that some node misses, on a new leader all | other policies |
//! |---|---|---|
//! | permits of rollouts | none: stages are of the spec before | none while a node misses an edit that may matter to it |
//! | status | waits a second for that; on a new leader until each node was planned once | as always |

use jiff::{SignedDuration, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

/// Nodes that join the queue together. Some milliseconds of planning: everything else has its turn in between.
const SLICE: usize = 32;
/// Time for which the status of an edited policy waits for the end of the sweep.
const STATUS_WAIT: SignedDuration = SignedDuration::from_secs(1);

/// The sweep under way, if any.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Nodes that are not planned yet.
    waiting: HashMap<String, WaitingNode>,
    /// Counts of these nodes, by the number of the first edit that they miss.
    missed: BTreeMap<u64, usize>,
    /// Counts of these nodes, by policy whose rollouts wait for them.
    holding: HashMap<Arc<str>, usize>,
    /// Those that have not joined the queue. The next one is the last.
    to_queue: Vec<String>,
    /// The last node that joined the queue.
    last_queued: Option<String>,
    /// Policies that were edited, by name.
    edits: BTreeMap<String, PolicyEdit>,
    /// Number of the last edit.
    last_edit: u64,
    is_under_way: bool,
    /// True until a process that begins to lead has planned every node.
    is_first: bool,
    /// Number of the edit that counts for nodes without any plan on this process.
    first_edit: u64,
    /// Edits since the sweep began last, if any.
    new_edits: Option<NewEdits>,
}

/// Edits that came since the sweep began last: it begins once for all of them.
#[derive(Debug, Default)]
pub struct NewEdits {
    /// Moment of the first one, by policy.
    pub policies: BTreeMap<String, Timestamp>,
    /// Policies whose edits may change the stages of nodes in the rollouts of others.
    pub of_rollouts: BTreeSet<String>,
    /// True if it is not known which policies changed.
    pub may_be_others: bool,
}

/// A node that is not planned yet.
#[derive(Debug)]
struct WaitingNode {
    /// Number of the first edit that it misses.
    first: u64,
    /// Policies whose rollouts wait for its plan.
    holds: Vec<Arc<str>>,
}

#[derive(Debug)]
struct PolicyEdit {
    /// Number of its last edit.
    last: u64,
    /// Moment of its first edit in this sweep.
    since: Timestamp,
}

/// Parts of a sweep that a plan completed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// True if every node has been planned now since the process began to lead.
    pub is_first_over: bool,
    /// Policies whose last edit has reached every node.
    pub policies: Vec<String>,
    /// True if no node is left.
    pub is_over: bool,
}

/// Time for which a status waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusHold {
    UntilEnd,
    Until(Timestamp),
}

impl Sweep {
    /// Begins the sweep of a process that begins to lead.
    pub fn begin_first(&mut self, nodes: Vec<String>) {
        self.is_first = true;
        self.begin(nodes);
        self.first_edit = self.last_edit;
    }

    /// Records an edit. Every node misses it, and every rollout waits, until the sweep begins with it.
    pub fn edit(&mut self, policies: &BTreeSet<String>, now: Timestamp) -> &mut NewEdits {
        let edits = self.new_edits.get_or_insert_default();
        for policy in policies {
            edits.policies.entry(policy.clone()).or_insert(now);
        }
        edits
    }

    /// Returns true if edits came since the sweep began last.
    pub fn has_new_edits(&self) -> bool {
        self.new_edits.is_some()
    }

    /// Begins a sweep with the edits that came since the last one, and returns them. One under way goes on with the next name
    /// and takes every node again, since each needs a plan with these edits.
    pub fn begin(&mut self, mut nodes: Vec<String>) -> NewEdits {
        let edited = self.new_edits.take().unwrap_or_default();
        self.is_under_way = true;
        self.last_edit += 1;
        for (policy, since) in &edited.policies {
            let edit = self.edits.entry(policy.clone()).or_insert(PolicyEdit {
                last: self.last_edit,
                since: *since,
            });
            edit.last = self.last_edit;
        }
        let last_queued = self.last_queued.as_deref();
        let had_its_turn = |node: &str| last_queued.is_some_and(|last| node <= last);
        nodes.sort_unstable_by(|a, b| (had_its_turn(b), b).cmp(&(had_its_turn(a), a)));
        let mut before = std::mem::replace(&mut self.waiting, HashMap::with_capacity(nodes.len()));
        self.missed.clear();
        self.holding.clear();
        let first = self.last_edit;
        for node in &nodes {
            let new = || WaitingNode {
                first,
                holds: Vec::new(),
            };
            let waiting = before.remove(node).unwrap_or_else(new);
            *self.missed.entry(waiting.first).or_default() += 1;
            for policy in &waiting.holds {
                *self.holding.entry(Arc::clone(policy)).or_default() += 1;
            }
            self.waiting.insert(node.clone(), waiting);
        }
        self.to_queue = nodes;
        edited
    }

    /// Lets the rollouts of these policies wait for the plan of a node that the sweep has to plan.
    pub fn hold<'a>(&mut self, node: &str, policies: impl Iterator<Item = &'a Arc<str>>) {
        let Some(waiting) = self.waiting.get_mut(node) else {
            return;
        };
        for policy in policies {
            if !waiting.holds.contains(policy) {
                waiting.holds.push(Arc::clone(policy));
                *self.holding.entry(Arc::clone(policy)).or_default() += 1;
            }
        }
    }

    /// Returns the nodes that join the queue next; none once all have.
    pub fn next_slice(&mut self) -> Vec<String> {
        let mut slice = Vec::with_capacity(SLICE);
        while slice.len() < SLICE
            && let Some(node) = self.to_queue.pop()
        {
            if self.waiting.contains_key(&node) {
                slice.push(node);
            }
        }
        if let Some(last) = slice.last() {
            self.last_queued = Some(last.clone());
        }
        slice
    }

    /// Returns true if the sweep has to plan a node.
    pub fn is_waiting(&self, node: &str) -> bool {
        self.has_new_edits() || self.waiting.contains_key(node)
    }

    /// Number of nodes that the sweep has to plan.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if the next plan of a node is the first one on this process since it leads.
    pub fn is_first_plan(&self, node: &str) -> bool {
        let waiting = self.waiting.get(node);
        self.is_first && waiting.is_some_and(|waiting| waiting.first == self.first_edit)
    }

    /// Returns true if a policy was edited since a node was planned last.
    pub fn is_edited(&self, policy: &str, node: &str) -> bool {
        let missed = self.waiting.get(node).zip(self.edits.get(policy));
        self.is_newly_edited(policy) || missed.is_some_and(|(waiting, edit)| waiting.first <= edit.last)
    }

    fn is_newly_edited(&self, policy: &str) -> bool {
        let edits = self.new_edits.as_ref();
        edits.is_some_and(|edits| edits.policies.contains_key(policy))
    }

    /// Records the plan of a node. Returns what it completed, if anything.
    pub fn planned(&mut self, node: &str) -> Option<SweepProgress> {
        let WaitingNode { first, holds } = self.waiting.remove(node)?;
        for policy in holds {
            if let Entry::Occupied(mut nodes) = self.holding.entry(policy) {
                let left = nodes.get().saturating_sub(1);
                if left == 0 {
                    nodes.remove();
                } else {
                    nodes.insert(left);
                }
            }
        }
        if let Some(count) = self.missed.get_mut(&first) {
            *count = count.saturating_sub(1);
            if *count > 0 {
                return None;
            }
            self.missed.remove(&first);
        }
        self.progress()
    }

    /// Returns what is complete and was not before, if anything.
    pub fn progress(&mut self) -> Option<SweepProgress> {
        let first_missed = self.missed.first_key_value().map(|(edit, _)| *edit);
        let is_complete = |edit: u64| first_missed.is_none_or(|missed| edit < missed);
        let is_first_over = self.is_first && is_complete(self.first_edit);
        if is_first_over {
            self.is_first = false;
        }
        let edits = std::mem::take(&mut self.edits).into_iter();
        let (complete, others): (BTreeMap<_, _>, BTreeMap<_, _>) = edits.partition(|(_, edit)| is_complete(edit.last));
        self.edits = others;
        let is_over = first_missed.is_none() && std::mem::take(&mut self.is_under_way);
        if is_over {
            self.to_queue = Vec::new();
            self.waiting = HashMap::new();
            self.holding = HashMap::new();
            self.last_queued = None;
        }
        let progress = SweepProgress {
            is_first_over,
            policies: complete.into_keys().collect(),
            is_over,
        };
        (progress != SweepProgress::default()).then_some(progress)
    }

    /// Returns true if a process that begins to lead has not planned every node.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns true if nodes may be counted with an earlier spec of a policy.
    pub fn awaits_plans(&self, policy: &str) -> bool {
        self.is_first || self.edits.contains_key(policy) || self.is_newly_edited(policy)
    }

    /// Returns true while stages of a policy's nodes may be those of an earlier spec, or not be known: an edit can also
    /// give the nodes of one policy to another, with changes under way. Other edits hold nothing.
    pub fn holds_rollouts(&self, policy: &str) -> bool {
        self.has_new_edits() || self.awaits_plans(policy) || self.holding.contains_key(policy)
    }

    /// Returns how long the status of a policy waits; none if it does not.
    pub fn status_hold(&self, policy: &str, now: Timestamp) -> Option<StatusHold> {
        if self.is_first {
            return Some(StatusHold::UntilEnd);
        }
        // A clock that goes back makes none wait longer than from now.
        let earlier = self.edits.get(policy).map(|edit| edit.since);
        let new = || self.new_edits.as_ref()?.policies.get(policy).copied();
        let since = earlier.or_else(new)?.min(now);
        let until = since.checked_add(STATUS_WAIT).ok()?;
        (now < until).then_some(StatusHold::Until(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(nodes: &[&str]) -> Vec<String> {
        nodes.iter().map(|node| (*node).to_owned()).collect()
    }

    fn edited(policy: &str) -> BTreeSet<String> {
        BTreeSet::from([policy.to_owned()])
    }

    impl Sweep {
        fn begin_after(&mut self, nodes: Vec<String>, edited: &BTreeSet<String>, now: Timestamp) {
            self.edit(edited, now);
            self.begin(nodes);
        }
    }

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    fn progress(is_first_over: bool, policies: &[&str], is_over: bool) -> SweepProgress {
        SweepProgress {
            is_first_over,
            policies: names(policies),
            is_over,
        }
    }

    #[test]
    fn nodes_join_by_name_and_the_last_plan_ends_the_sweep() {
        let mut sweep = Sweep::default();
        sweep.begin_after(names(&["b", "c", "a"]), &edited("p"), at(0));
        assert_eq!(sweep.planned("c"), None, "an event came first");
        assert_eq!(sweep.next_slice(), names(&["a", "b"]));
        assert!(sweep.next_slice().is_empty());
        assert_eq!(sweep.waiting(), 2, "queued, but not planned");
        assert!(sweep.holds_rollouts("p") && sweep.awaits_plans("p") && !sweep.awaits_plans("q"));
        assert_eq!((sweep.planned("other"), sweep.planned("a")), (None, None));
        assert_eq!(sweep.planned("b"), Some(progress(false, &["p"], true)));
        assert!(!sweep.holds_rollouts("p") && !sweep.awaits_plans("p"));
        assert_eq!((sweep.planned("b"), sweep.progress()), (None, None));
    }

    #[test]
    fn large_fleet_joins_a_slice_at_a_time() {
        let mut sweep = Sweep::default();
        let nodes: Vec<_> = (0..100).map(|index| format!("n-{index:03}")).collect();
        sweep.begin_first(nodes.clone());
        let mut all = Vec::new();
        loop {
            let slice = sweep.next_slice();
            assert!(slice.len() <= SLICE);
            if slice.is_empty() {
                break;
            }
            all.extend(slice);
        }
        assert_eq!(all, nodes);
    }

    #[test]
    fn each_node_misses_the_edits_since_its_last_plan() {
        let mut sweep = Sweep::default();
        let nodes = || names(&["a", "b"]);
        sweep.begin_after(nodes(), &edited("p"), at(0));
        sweep.planned("a");
        sweep.begin_after(nodes(), &edited("q"), at(1));
        assert!(!sweep.is_edited("p", "a") && sweep.is_edited("q", "a"));
        assert!(sweep.is_edited("p", "b") && sweep.is_edited("q", "b"));
        assert!(!sweep.is_edited("r", "b"));
        assert_eq!(sweep.planned("b"), Some(progress(false, &["p"], false)));
        assert!(!sweep.awaits_plans("p") && sweep.awaits_plans("q") && sweep.holds_rollouts("q"));
        assert_eq!(sweep.planned("a"), Some(progress(false, &["q"], true)));
    }

    #[test]
    fn sweep_goes_on_with_the_next_name_after_an_edit_and_the_next_one_begins_at_the_start() {
        let mut sweep = Sweep::default();
        let nodes: Vec<_> = (0..3 * SLICE).map(|index| format!("n-{index:03}")).collect();
        sweep.begin_after(nodes.clone(), &edited("p"), at(0));
        assert_eq!(sweep.next_slice(), nodes[..SLICE]);
        assert_eq!(sweep.planned(&nodes[0]), None);
        let joined = [nodes.clone(), names(&["a"])].concat();
        sweep.begin_after(joined, &edited("p"), at(1));
        assert_eq!(sweep.next_slice(), nodes[SLICE..2 * SLICE]);
        assert_eq!(sweep.next_slice(), nodes[2 * SLICE..]);
        assert_eq!(sweep.next_slice()[..2], names(&["a", "n-000"]));
        for node in &nodes {
            assert_eq!(sweep.planned(node), None);
        }
        assert_eq!(sweep.planned("a"), Some(progress(false, &["p"], true)));
        sweep.begin_after(nodes.clone(), &edited("p"), at(2));
        assert_eq!(sweep.next_slice(), nodes[..SLICE]);
    }

    #[test]
    fn first_sweep_is_over_once_each_node_was_planned_although_edits_follow() {
        let mut sweep = Sweep::default();
        let nodes = || names(&["a", "b", "c"]);
        sweep.begin_first(nodes());
        for node in ["a", "b"] {
            assert_eq!(sweep.planned(node), None);
            sweep.begin_after(nodes(), &edited("p"), at(0));
            assert!(sweep.is_first() && !sweep.is_first_plan(node) && sweep.is_first_plan("c"));
        }
        assert_eq!(sweep.planned("c"), Some(progress(true, &[], false)));
        assert!(!sweep.is_first() && sweep.awaits_plans("p") && !sweep.awaits_plans("q"));
    }

    #[test]
    fn rollouts_wait_for_the_nodes_that_hold_them_and_for_no_others() {
        let mut sweep = Sweep::default();
        let nodes = || names(&["a", "b", "c"]);
        let policies: [Arc<str>; 2] = ["p".into(), "r".into()];
        sweep.begin_after(nodes(), &edited("q"), at(0));
        for node in ["a", "a", "b", "gone"] {
            sweep.hold(node, policies[..1].iter());
        }
        sweep.hold("c", policies.iter());
        let held = |sweep: &Sweep| ["p", "q", "r", "s"].map(|policy| sweep.holds_rollouts(policy));
        assert_eq!(held(&sweep), [true, true, true, false]);
        assert_eq!((sweep.planned("c"), held(&sweep)), (None, [true, true, false, false]));
        // What a node holds it holds until its own plan, however many edits of others follow.
        sweep.begin_after(names(&["a", "c"]), &edited("s"), at(1));
        assert_eq!(held(&sweep), [true, true, false, true], "b is gone");
        assert_eq!(sweep.planned("a"), Some(progress(false, &["q"], false)));
        assert_eq!(held(&sweep), [false, false, false, true]);
        assert_eq!(sweep.planned("c"), Some(progress(false, &["s"], true)));
        assert_eq!(held(&sweep), [false; 4]);
    }

    #[test]
    fn node_that_is_gone_holds_up_no_sweep_that_begins_again() {
        let mut sweep = Sweep::default();
        sweep.begin_after(names(&["a", "gone"]), &edited("p"), at(0));
        sweep.begin_after(names(&["a"]), &edited("p"), at(1));
        assert!(sweep.planned("a").is_some());
    }

    #[test]
    fn status_of_an_edited_policy_waits_a_second_and_that_of_a_new_leader_for_the_end() {
        let mut sweep = Sweep::default();
        sweep.begin_after(names(&["a"]), &edited("p"), at(0));
        assert_eq!(sweep.status_hold("p", at(999)), Some(StatusHold::Until(at(1000))));
        assert_eq!(
            (sweep.status_hold("p", at(1000)), sweep.status_hold("q", at(0))),
            (None, None)
        );
        sweep.begin_after(names(&["a"]), &edited("p"), at(900));
        assert_eq!(
            sweep.status_hold("p", at(1000)),
            None,
            "edits again and again delay it no further"
        );
        sweep.begin_first(names(&["a"]));
        assert_eq!(sweep.status_hold("q", at(9999)), Some(StatusHold::UntilEnd));
        assert_eq!(sweep.planned("a"), Some(progress(true, &["p"], true)));
        assert_eq!(sweep.status_hold("p", at(9999)), None);
    }

    #[test]
    fn edits_that_come_together_begin_one_sweep_and_count_from_the_first() {
        let mut sweep = Sweep::default();
        sweep.edit(&edited("p"), at(0));
        sweep.edit(&edited("q"), at(500));
        sweep.edit(&edited("p"), at(900));
        let check = |sweep: &Sweep| {
            assert!(sweep.is_edited("p", "a") && sweep.is_edited("q", "a") && !sweep.is_edited("r", "a"));
            assert!(sweep.awaits_plans("p") && !sweep.awaits_plans("r"));
            assert_eq!(sweep.status_hold("p", at(900)), Some(StatusHold::Until(at(1000))));
            assert_eq!(sweep.status_hold("q", at(900)), Some(StatusHold::Until(at(1500))));
        };
        check(&sweep);
        assert!(
            sweep.is_waiting("a") && sweep.holds_rollouts("r"),
            "nobody knows what they concern"
        );
        let edits = sweep.begin(names(&["a"]));
        assert_eq!(edits.policies.into_keys().collect::<Vec<_>>(), ["p", "q"]);
        check(&sweep);
        assert!(!sweep.has_new_edits() && !sweep.holds_rollouts("r"));
        assert_eq!(sweep.planned("a"), Some(progress(false, &["p", "q"], true)));
    }

    #[test]
    fn sweep_without_nodes_is_over_at_once() {
        let mut sweep = Sweep::default();
        assert_eq!(sweep.progress(), None);
        sweep.begin_first(Vec::new());
        assert_eq!(sweep.progress(), Some(progress(true, &[], true)));
        assert!(!sweep.is_first());
    }
}
