//! The pace at which nodes lose what policies wrote that are gone: a deletion by mistake can be taken back before it reaches the
//! whole fleet. All removals share one pace.

use crate::names::policy_of_daemonset_name;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Number of nodes up to which removals reach all at once.
const AT_ONCE: usize = 20;
/// Part of the nodes that larger removals reach in a second, in percent.
const PERCENT: usize = 1;
/// Number of nodes that they reach in a second at least.
const LEAST: usize = 10;
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// Time in which a policy may come back that is missing although nobody saw its deletion. Removals with less time between them
/// count together.
const GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Removals of what policies wrote that are gone, also those that have reached every node: some nodes are left as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRemovals {
    /// Removals by name of the policy.
    removals: BTreeMap<String, PolicyRemoval>,
    /// Nodes of the removals that count together.
    nodes: BTreeSet<String>,
    /// Number of nodes that were reached without a pause of a second.
    reached: usize,
    /// Moment at which the next nodes are due.
    next: Timestamp,
}

/// Removal of what one policy wrote that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyRemoval {
    /// Nodes that keep everything for now.
    waiting: BTreeSet<String>,
    /// Moment from which nodes are due.
    from: Timestamp,
    has_begun: bool,
    is_told: bool,
}

/// Nodes that a removal reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovalBatch {
    /// Names of the nodes.
    pub nodes: Vec<String>,
    /// Number of all nodes of a removal that begins with these and is paced.
    pub begins: Option<usize>,
}

impl PolicyRemoval {
    fn is_over(&self) -> bool {
        self.has_begun && self.waiting.is_empty()
    }

    fn is_in_grace(&self, now: Timestamp) -> bool {
        !self.has_begun && now < self.from
    }
}

impl PolicyRemovals {
    /// Takes the nodes of each policy that is gone; none for one that has a DaemonSet alone. Finds a removal for each that is not
    /// known, and returns their names: it waits a minute if the policy is not among the `deleted`, whose deletion was seen. Further
    /// nodes wait with one that has not begun. Ends those of policies that are back, or of which nothing is left.
    pub fn update(
        &mut self,
        gone: BTreeMap<String, BTreeSet<String>>,
        deleted: &BTreeSet<String>,
        now: Timestamp,
    ) -> Vec<String> {
        self.removals.retain(|policy, _| gone.contains_key(policy));
        let mut found = Vec::new();
        for (policy, waiting) in gone {
            if let Some(known) = self.removals.get_mut(&policy) {
                if !known.has_begun {
                    known.waiting.extend(waiting);
                }
                continue;
            }
            let grace = if deleted.contains(&policy) {
                SignedDuration::ZERO
            } else {
                GRACE
            };
            let removal = PolicyRemoval {
                waiting,
                from: now.checked_add(grace).unwrap_or(now),
                has_begun: false,
                is_told: false,
            };
            self.removals.insert(policy.clone(), removal);
            found.push(policy);
        }
        self.begin(now);
        if !self.is_paced() {
            for policy in &found {
                self.advance(policy, now);
            }
        }
        found
    }

    /// Returns the nodes of a policy that are due. They keep nothing from then on.
    pub fn advance(&mut self, policy: &str, now: Timestamp) -> RemovalBatch {
        self.begin(now);
        if self.next <= now {
            self.reached = 0;
        }
        let is_paced = self.is_paced();
        let free = self.at_a_time().saturating_sub(self.reached);
        let Some(removal) = self.removals.get_mut(policy).filter(|removal| removal.has_begun) else {
            return RemovalBatch::default();
        };
        let all = removal.waiting.len();
        let mut nodes = Vec::new();
        while nodes.len() < free
            && let Some(node) = removal.waiting.pop_first()
        {
            nodes.push(node);
        }
        if nodes.is_empty() {
            return RemovalBatch::default();
        }
        self.reached += nodes.len();
        // Never makes up for lost time: after a pause the nodes would go together.
        self.next = now.checked_add(SECOND).unwrap_or(now);
        let is_first = is_paced && !std::mem::replace(&mut removal.is_told, true);
        RemovalBatch {
            nodes,
            begins: is_first.then_some(all),
        }
    }

    /// Begins the removals whose time has come. A clock that goes back makes none wait longer than from now.
    fn begin(&mut self, now: Timestamp) {
        let within =
            |moment: Timestamp, limit: SignedDuration| now.checked_add(limit).map_or(moment, |end| moment.min(end));
        self.next = within(self.next, SECOND);
        let is_under_way = |removal: &PolicyRemoval| removal.has_begun && !removal.waiting.is_empty();
        let is_quiet = self.next.checked_add(GRACE).is_ok_and(|end| end <= now);
        if is_quiet && !self.removals.values().any(is_under_way) {
            self.nodes.clear();
        }
        for removal in self.removals.values_mut().filter(|removal| !removal.has_begun) {
            removal.from = within(removal.from, GRACE);
            if removal.from <= now {
                removal.has_begun = true;
                self.nodes.extend(removal.waiting.iter().cloned());
            }
        }
    }

    /// True if the removals have too many nodes to reach all at once.
    fn is_paced(&self) -> bool {
        self.nodes.len() > AT_ONCE
    }

    /// Returns the number of nodes in a second.
    fn at_a_time(&self) -> usize {
        if self.is_paced() {
            (self.nodes.len().saturating_mul(PERCENT) / 100).max(LEAST)
        } else {
            usize::MAX
        }
    }

    /// Returns the moment at which the next nodes of a policy are due; none once all were.
    pub fn next(&self, policy: &str) -> Option<Timestamp> {
        let removal = self.removals.get(policy).filter(|removal| !removal.is_over())?;
        Some(if removal.has_begun {
            self.next
        } else {
            removal.from.max(self.next)
        })
    }

    /// Returns true if a policy that is gone is known.
    pub fn contains(&self, policy: &str) -> bool {
        self.removals.contains_key(policy)
    }

    /// Returns true if everything of a policy stays because it may come back: nobody saw its deletion.
    pub fn is_in_grace(&self, policy: &str, now: Timestamp) -> bool {
        self.removals
            .get(policy)
            .is_some_and(|removal| removal.is_in_grace(now))
    }

    /// Returns the policies whose removal has not reached a node.
    pub fn departing(&self, node: &str) -> BTreeSet<String> {
        let departing = self.removals.iter().filter(|(_, it)| it.waiting.contains(node));
        departing.map(|(policy, _)| policy.clone()).collect()
    }

    /// Returns those of a node's departing policies that may come back, with the end of their grace.
    pub fn missing(&self, node: &str, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let missing = self.removals.iter().filter(|(_, it)| it.is_in_grace(now));
        let missing = missing.filter(|(_, it)| it.waiting.contains(node));
        missing.map(|(policy, it)| (policy.clone(), it.from)).collect()
    }

    /// True if a DaemonSet of this name stays, because the removal of its policy has not reached every node.
    pub fn keep_daemonset(&self, name: &str) -> bool {
        let removal = policy_of_daemonset_name(name).and_then(|policy| self.removals.get(policy));
        removal.is_some_and(|removal| !removal.is_over())
    }

    /// Returns the names of all policies that are gone.
    pub fn policies(&self) -> Vec<String> {
        self.removals.keys().cloned().collect()
    }

    /// Counts the nodes that keep something of a policy for now.
    pub fn waiting_of(&self, policy: &str) -> usize {
        self.removals.get(policy).map_or(0, |removal| removal.waiting.len())
    }

    /// Counts the nodes that keep something for now, once for each policy.
    pub fn waiting(&self) -> usize {
        self.removals.values().map(|removal| removal.waiting.len()).sum()
    }

    /// Drops nodes on which nothing of a policy is left.
    pub fn retain(&mut self, policy: &str, is_there: impl Fn(&str) -> bool) {
        if let Some(removal) = self.removals.get_mut(policy) {
            removal.waiting.retain(|node| is_there(node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(count: usize) -> BTreeSet<String> {
        (0..count).map(|index| format!("gpu-{index:05}")).collect()
    }

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    /// Takes the nodes of the policies that are gone; their deletion was seen or not.
    fn update(removals: &mut PolicyRemovals, gone: &[(&str, BTreeSet<String>)], is_seen: bool, now: Timestamp) {
        let gone: BTreeMap<_, _> = gone
            .iter()
            .map(|(name, nodes)| ((*name).to_owned(), nodes.clone()))
            .collect();
        let deleted: BTreeSet<String> = gone.keys().filter(|_| is_seen).cloned().collect();
        removals.update(gone, &deleted, now);
    }

    /// Removal of a policy `p` from so many nodes.
    fn removal(count: usize, is_seen: bool) -> PolicyRemovals {
        let mut removals = PolicyRemovals::default();
        update(&mut removals, &[("p", nodes(count))], is_seen, at(0));
        removals
    }

    fn keeps(removals: &PolicyRemovals, node: &str) -> bool {
        removals.departing(node).contains("p")
    }

    #[test]
    fn small_removal_is_done_at_once() {
        let removals = removal(20, true);
        assert_eq!((removals.waiting(), removals.next("p")), (0, None));
        assert!(!removals.keep_daemonset("gpunode-agent-p"));
    }

    #[test]
    fn large_removal_begins_with_ten_nodes_and_goes_on_by_name_each_second() {
        let mut removals = removal(21, true);
        let first = removals.advance("p", at(0));
        assert_eq!((first.nodes.len(), first.begins), (10, Some(21)));
        assert_eq!(first.nodes[0], "gpu-00000");
        assert!(!keeps(&removals, "gpu-00009") && keeps(&removals, "gpu-00010"));
        assert_eq!(removals.advance("p", at(999)), RemovalBatch::default());
        assert_eq!(removals.next("p"), Some(at(1000)));
        let second = removals.advance("p", at(1000));
        assert_eq!((second.nodes.len(), second.begins), (10, None));
        assert!(removals.keep_daemonset("gpunode-agent-p"));
        assert_eq!(removals.advance("p", at(60_000)).nodes, ["gpu-00020"]);
        assert_eq!(removals.next("p"), None);
        assert!(!removals.keep_daemonset("gpunode-agent-p"));
    }

    #[test]
    fn hundredth_of_many_nodes_goes_in_a_second() {
        let mut removals = removal(5_000, true);
        assert_eq!(removals.advance("p", at(0)).nodes.len(), 50);
        assert_eq!(
            removals.advance("p", at(30_000)).nodes.len(),
            50,
            "nothing is made up for"
        );
    }

    #[test]
    fn policy_whose_deletion_nobody_saw_has_a_minute_to_come_back() {
        for (count, first) in [(0, 0), (3, 3), (400, 10)] {
            let mut removals = removal(count, false);
            assert_eq!(removals.next("p"), Some(at(60_000)));
            assert_eq!(removals.advance("p", at(59_999)), RemovalBatch::default());
            assert!(removals.is_in_grace("p", at(59_999)) && removals.keep_daemonset("gpunode-agent-p"));
            assert_eq!(keeps(&removals, "gpu-00000"), count > 0);
            assert_eq!(removals.advance("p", at(60_000)).nodes.len(), first);
            assert!(!removals.is_in_grace("p", at(60_000)));
            assert_eq!(removals.keep_daemonset("gpunode-agent-p"), count > 20);
        }
    }

    #[test]
    fn nodes_that_come_while_a_policy_may_come_back_wait_with_the_others() {
        let mut removals = removal(0, false);
        update(&mut removals, &[("p", nodes(3))], false, at(30_000));
        assert!(keeps(&removals, "gpu-00000") && removals.keep_daemonset("gpunode-agent-p"));
        assert_eq!(removals.advance("p", at(60_000)).nodes.len(), 3);
        update(&mut removals, &[("p", nodes(3))], false, at(61_000));
        assert_eq!(
            removals.waiting(),
            0,
            "nodes that are left as they are begin no other minute"
        );
    }

    #[test]
    fn small_removals_that_follow_each_other_count_together() {
        let mut removals = PolicyRemovals::default();
        let of_pool = |pool: usize| -> BTreeSet<String> { nodes(800).into_iter().skip(pool * 20).take(20).collect() };
        let names: Vec<String> = (0..40).map(|pool| format!("p-{pool:02}")).collect();
        let mut gone = Vec::new();
        for (pool, name) in names.iter().enumerate() {
            gone.push((name.as_str(), of_pool(pool)));
            update(&mut removals, &gone, true, at(0));
        }
        assert_eq!(removals.waiting(), 780, "the first is small");
        for second in 1..=78 {
            let batches = names.iter().map(|name| removals.advance(name, at(second * 1000)));
            let reached: usize = batches.map(|batch| batch.nodes.len()).sum();
            assert_eq!(reached, 10, "second {second}");
        }
        assert_eq!(removals.waiting(), 0);
        update(&mut removals, &[("later", nodes(20))], true, at(200_000));
        assert_eq!(removals.waiting(), 0, "after a minute the next one is small again");
    }

    #[test]
    fn policies_that_are_missing_together_go_at_one_pace() {
        let mut removals = PolicyRemovals::default();
        let first = nodes(20);
        let second: BTreeSet<String> = nodes(40).difference(&first).cloned().collect();
        update(&mut removals, &[("a", first), ("b", second)], false, at(0));
        assert_eq!(removals.advance("b", at(60_000)).nodes.len(), 10);
        assert_eq!(removals.advance("a", at(60_000)).nodes.len(), 0);
        assert_eq!(removals.advance("a", at(61_000)).begins, Some(20));
    }

    #[test]
    fn clock_that_goes_back_stops_no_removal() {
        let hour = 3_600_000;
        let mut removals = PolicyRemovals::default();
        update(&mut removals, &[("p", nodes(30))], true, at(hour));
        removals.advance("p", at(hour));
        assert_eq!(removals.advance("p", at(0)).nodes.len(), 0);
        assert_eq!(removals.advance("p", at(1000)).nodes.len(), 10);

        let mut missing = PolicyRemovals::default();
        update(&mut missing, &[("p", nodes(3))], false, at(hour));
        assert_eq!(missing.advance("p", at(0)).nodes.len(), 0);
        assert_eq!(missing.advance("p", at(60_000)).nodes.len(), 3);
    }

    #[test]
    fn nodes_that_went_are_not_waited_for() {
        let mut removals = removal(30, true);
        removals.retain("p", |node| node < "gpu-00002");
        assert_eq!(removals.advance("p", at(0)).nodes.len(), 2);
        assert_eq!(removals.next("p"), None);
    }

    proptest! {
        #[test]
        fn no_second_sees_more_than_a_hundredth_and_in_the_end_every_node_was_due_once(
            count in 21_usize..3_000,
            pools in 1_usize..4,
            pauses in proptest::collection::vec(0_i64..3_000, 1..400),
        ) {
            let mut removals = PolicyRemovals::default();
            let names = ["a", "b", "c"];
            let of_pool = |pool: usize| -> BTreeSet<String> { nodes(count).into_iter().skip(pool).step_by(pools).collect() };
            let gone: Vec<_> = names.iter().take(pools).enumerate().map(|(pool, name)| (*name, of_pool(pool))).collect();
            update(&mut removals, &gone, true, at(0));
            let (mut now, mut batches) = (0, Vec::<(i64, usize)>::new());
            let mut seen = BTreeSet::new();
            for (index, pause) in pauses.into_iter().chain(std::iter::repeat_n(1_000, 400)).enumerate() {
                now += pause;
                let name = names[index % pools];
                let batch = removals.advance(name, at(now));
                batches.push((now, batch.nodes.len()));
                for node in batch.nodes {
                    prop_assert!(!removals.departing(&node).contains(name));
                    prop_assert!(seen.insert(node));
                }
            }
            prop_assert_eq!(seen.len(), count);
            for (index, (start, _)) in batches.iter().enumerate() {
                let within = batches[index..].iter().take_while(|(moment, _)| moment - start < 1_000);
                let sum: usize = within.map(|(_, nodes)| nodes).sum();
                prop_assert!(sum <= (count / 100).max(10), "{sum} in the second after {start}");
            }
        }
    }
}
