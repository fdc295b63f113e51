//! The pace at which nodes lose what a policy wrote that is gone: a deletion by mistake can be taken back before it reaches the
//! whole fleet.

use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;

/// Number of nodes up to which a removal reaches all at once.
const AT_ONCE: usize = 20;
/// Part of the nodes that a larger removal reaches in a second, in percent.
const PERCENT: usize = 1;
/// Number of nodes that it reaches in a second at least.
const LEAST: usize = 10;
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// Time in which a policy may come back that is missing although nobody saw its deletion.
const GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Removal of what one policy wrote that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRemoval {
    /// Nodes that keep everything for now.
    waiting: BTreeSet<String>,
    /// Moment at which the next nodes are due.
    next: Timestamp,
    /// Number of nodes at the start; none before.
    total: Option<usize>,
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
    /// Removal of a policy from the nodes on which it wrote something. Waits a minute if nobody saw the deletion.
    pub fn new(nodes: BTreeSet<String>, is_deletion_seen: bool, now: Timestamp) -> Self {
        let next = if is_deletion_seen {
            now
        } else {
            now.checked_add(GRACE).unwrap_or(now)
        };
        let mut removal = Self {
            waiting: nodes,
            next,
            total: None,
        };
        if is_deletion_seen && removal.waiting.len() <= AT_ONCE {
            removal.advance(now);
        }
        removal
    }

    /// Returns the nodes that are due. They keep nothing from then on.
    pub fn advance(&mut self, now: Timestamp) -> RemovalBatch {
        if now < self.next || self.waiting.is_empty() {
            return RemovalBatch::default();
        }
        let begins = self.total.is_none() && self.waiting.len() > AT_ONCE;
        let total = *self.total.get_or_insert(self.waiting.len());
        // Never makes up for lost time: after a pause the nodes would go together.
        self.next = now.checked_add(SECOND).unwrap_or(now);
        let mut nodes = Vec::new();
        while nodes.len() < at_a_time(total)
            && let Some(node) = self.waiting.pop_first()
        {
            nodes.push(node);
        }
        RemovalBatch {
            nodes,
            begins: begins.then_some(total),
        }
    }

    /// Returns the moment at which the next nodes are due; none once all were.
    pub fn next(&self) -> Option<Timestamp> {
        Some(self.next).filter(|_| !self.waiting.is_empty())
    }

    /// Returns true if nodes keep everything because the policy may come back: nobody saw its deletion.
    pub fn is_in_grace(&self, now: Timestamp) -> bool {
        self.total.is_none() && now < self.next && !self.waiting.is_empty()
    }

    /// Returns true if a node keeps everything for now.
    pub fn keeps(&self, node: &str) -> bool {
        self.waiting.contains(node)
    }

    /// Counts the nodes that keep everything for now.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Drops nodes on which nothing of the policy is left.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.waiting.retain(|node| is_there(node));
    }
}

/// Returns the number of nodes in a second.
fn at_a_time(total: usize) -> usize {
    if total <= AT_ONCE {
        return total;
    }
    (total.saturating_mul(PERCENT) / 100).max(LEAST)
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

    #[test]
    fn small_removal_is_done_at_once() {
        let removal = PolicyRemoval::new(nodes(20), true, at(0));
        assert_eq!((removal.waiting(), removal.next()), (0, None));
    }

    #[test]
    fn large_removal_begins_with_ten_nodes_and_goes_on_by_name_each_second() {
        let mut removal = PolicyRemoval::new(nodes(21), true, at(0));
        let first = removal.advance(at(0));
        assert_eq!((first.nodes.len(), first.begins), (10, Some(21)));
        assert_eq!(first.nodes[0], "gpu-00000");
        assert!(!removal.keeps("gpu-00009") && removal.keeps("gpu-00010"));
        assert_eq!(removal.advance(at(999)), RemovalBatch::default());
        assert_eq!(removal.next(), Some(at(1000)));
        let second = removal.advance(at(1000));
        assert_eq!((second.nodes.len(), second.begins), (10, None));
        assert_eq!(removal.advance(at(60_000)).nodes, ["gpu-00020"]);
        assert_eq!(removal.next(), None);
    }

    #[test]
    fn hundredth_of_many_nodes_goes_in_a_second() {
        let mut removal = PolicyRemoval::new(nodes(5_000), true, at(0));
        assert_eq!(removal.advance(at(0)).nodes.len(), 50);
        assert_eq!(removal.advance(at(30_000)).nodes.len(), 50, "nothing is made up for");
    }

    #[test]
    fn policy_whose_deletion_nobody_saw_has_a_minute_to_come_back() {
        for (count, first) in [(3, 3), (400, 10)] {
            let mut removal = PolicyRemoval::new(nodes(count), false, at(0));
            assert_eq!(removal.next(), Some(at(60_000)));
            assert_eq!(removal.advance(at(59_999)), RemovalBatch::default());
            assert!(removal.keeps("gpu-00000") && removal.is_in_grace(at(59_999)));
            assert_eq!(removal.advance(at(60_000)).nodes.len(), first);
            assert!(!removal.is_in_grace(at(60_000)));
        }
    }

    #[test]
    fn nodes_that_went_are_not_waited_for() {
        let mut removal = PolicyRemoval::new(nodes(30), true, at(0));
        removal.retain(|node| node < "gpu-00002");
        assert_eq!(removal.advance(at(0)).nodes.len(), 2);
        assert_eq!(removal.next(), None);
    }

    proptest! {
        #[test]
        fn no_second_sees_more_than_a_hundredth_and_in_the_end_every_node_was_due_once(
            count in 21_usize..3_000,
            pauses in proptest::collection::vec(0_i64..3_000, 1..400),
        ) {
            let mut removal = PolicyRemoval::new(nodes(count), true, at(0));
            let (mut now, mut batches) = (0, Vec::<(i64, usize)>::new());
            let mut seen = BTreeSet::new();
            for pause in pauses.into_iter().chain(std::iter::repeat_n(1_000, 400)) {
                now += pause;
                let batch = removal.advance(at(now));
                batches.push((now, batch.nodes.len()));
                for node in batch.nodes {
                    prop_assert!(!removal.keeps(&node));
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
