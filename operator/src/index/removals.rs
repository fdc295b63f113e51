//! Removals of what policies wrote that are gone. No IO.

use gpunode_plan::{PolicyRemoval, policy_daemonset_name};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

/// Removals by name of the policy, also those that have reached every node: some nodes are left as they are.
#[derive(Debug, Default)]
pub struct PolicyRemovals(BTreeMap<String, PolicyRemoval>);

impl PolicyRemovals {
    /// Takes the nodes of each policy that is gone. Begins a removal for each that is not known, and returns their names. Ends those
    /// of policies that are back, or of which nothing is left.
    pub fn update(
        &mut self,
        gone: BTreeMap<String, BTreeSet<String>>,
        deleted: &BTreeSet<String>,
        now: Timestamp,
    ) -> Vec<String> {
        self.0.retain(|policy, _| gone.contains_key(policy));
        let mut begun = Vec::new();
        for (policy, nodes) in gone {
            if let Entry::Vacant(entry) = self.0.entry(policy) {
                let removal = PolicyRemoval::new(nodes, deleted.contains(entry.key()), now);
                begun.push(entry.key().clone());
                entry.insert(removal);
            }
        }
        begun
    }

    /// Returns the removal of a policy.
    pub fn get(&self, policy: &str) -> Option<&PolicyRemoval> {
        self.0.get(policy)
    }

    /// Returns the removal of a policy, for changes.
    pub fn get_mut(&mut self, policy: &str) -> Option<&mut PolicyRemoval> {
        self.0.get_mut(policy)
    }

    /// Returns the policies whose removal has not reached a node.
    pub fn departing(&self, node: &str) -> BTreeSet<String> {
        let departing = self.0.iter().filter(|(_, removal)| removal.keeps(node));
        departing.map(|(policy, _)| policy.clone()).collect()
    }

    /// True if a DaemonSet of this name stays, because the removal of its policy has not reached every node.
    pub fn keep_daemonset(&self, name: &str) -> bool {
        let mut waiting = self.0.iter().filter(|(_, removal)| removal.waiting() > 0);
        waiting.any(|(policy, _)| policy_daemonset_name(policy) == name)
    }

    /// Returns the names of all policies that are gone.
    pub fn policies(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Counts the nodes that keep something for now, once for each policy.
    pub fn waiting(&self) -> usize {
        self.0.values().map(PolicyRemoval::waiting).sum()
    }
}
