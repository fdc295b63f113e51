//! The rollout of a configuration over the nodes of one policy: the nodes that may change next, and what stops it. A change of
//! one node costs the logarithm of their number.
//!
//! A node keeps its permit until its write succeeds or is refused, or its stage changes, whatever is lost on the way: a
//! configuration that may have been written counts as written.

use crate::{
    fleet::messages::{rollout_progress, taints_progress},
    rollout_stage::RolloutStage,
};
use gpunode_crds::RolloutPace;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Rollout of a configuration over the nodes that one policy governs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRollout {
    stages: HashMap<String, RolloutStage>,
    done: usize,
    outside: usize,
    held: usize,
    /// Pending nodes without a permit: by the number of their last turn, then by name. Nodes that have had none come first, so that
    /// one that fails again and again holds up no other.
    pending: BTreeSet<(u64, String)>,
    /// Number of a node's last turn, or refused write, in this rollout.
    last_turns: HashMap<String, u64>,
    turns: u64,
    /// True once nothing stops the rollout any more: nodes that were being written meanwhile need another plan.
    is_resumed: bool,
    /// Pending nodes that are written next.
    granted: BTreeSet<String>,
    /// Pending nodes that may be written already.
    writing: BTreeSet<String>,
    stepping: BTreeSet<String>,
    stopped: BTreeMap<String, String>,
}

impl PolicyRollout {
    /// Sets the stage of a node; none once the policy does not govern it.
    pub fn put(&mut self, node: &str, stage: Option<&RolloutStage>) {
        if self.stages.get(node) == stage {
            return;
        }
        match self.stages.remove(node) {
            None | Some(RolloutStage::AwaitsAgent) => {}
            Some(RolloutStage::Outside) => self.outside = self.outside.saturating_sub(1),
            Some(RolloutStage::Held) => self.held = self.held.saturating_sub(1),
            Some(RolloutStage::Done) => self.done = self.done.saturating_sub(1),
            Some(RolloutStage::Pending) => self.remove_permit(node),
            Some(RolloutStage::Stepping) => drop(self.stepping.remove(node)),
            Some(RolloutStage::Stopped(_)) => {
                self.stopped.remove(node);
                self.is_resumed = self.stopped.is_empty();
            }
        }
        match stage {
            None | Some(RolloutStage::AwaitsAgent) => {}
            Some(RolloutStage::Outside) => self.outside += 1,
            Some(RolloutStage::Held) => self.held += 1,
            Some(RolloutStage::Done) => self.done += 1,
            Some(RolloutStage::Pending) => drop(self.pending.insert((self.last_turn(node), node.to_owned()))),
            Some(RolloutStage::Stepping) => {
                self.note_turn(node);
                self.stepping.insert(node.to_owned());
            }
            Some(RolloutStage::Stopped(message)) => drop(self.stopped.insert(node.to_owned(), message.clone())),
        }
        self.stages.extend(stage.map(|stage| (node.to_owned(), stage.clone())));
        if !self.is_under_way() {
            self.last_turns.clear();
        }
    }

    /// Grants permits as far as the budget goes, and takes back those beyond it. Returns the nodes with a new permit.
    pub fn advance(&mut self, pace: &RolloutPace) -> Vec<String> {
        let on_the_way = self.stepping.len() + self.writing.len();
        let free = if self.stopped.is_empty() {
            pace.budget(self.size()).saturating_sub(on_the_way)
        } else {
            0
        };
        // Takes back permits beyond the budget, then grants free ones.
        while self.granted.len() > free
            && let Some(node) = self.granted.pop_last()
        {
            self.pending.insert((self.last_turn(&node), node));
        }
        let resumed = std::mem::take(&mut self.is_resumed) && self.stopped.is_empty();
        let mut next: Vec<_> = if resumed {
            self.writing.iter().cloned().collect()
        } else {
            Vec::new()
        };
        while self.granted.len() < free
            && let Some((_, node)) = self.pending.pop_first()
        {
            self.granted.insert(node.clone());
            next.push(node);
        }
        next
    }

    /// Takes back the permits that no node has used, until the next [`PolicyRollout::advance`].
    pub fn take_back(&mut self) {
        while let Some(node) = self.granted.pop_first() {
            self.pending.insert((self.last_turn(&node), node));
        }
    }

    /// Returns true if a pending node has a permit.
    pub fn is_granted(&self, node: &str) -> bool {
        self.granted.contains(node) || (self.writing.contains(node) && self.stopped.is_empty())
    }

    /// Uses the permit of a pending node, if it has one: from now on it counts as written.
    pub fn use_permit(&mut self, node: &str) -> bool {
        let is_granted = self.is_granted(node);
        if self.granted.remove(node) {
            self.writing.insert(node.to_owned());
        }
        is_granted
    }

    /// Returns a permit after the API server refused the write. Other nodes come first now.
    pub fn return_permit(&mut self, node: &str) {
        if self.stages.get(node) == Some(&RolloutStage::Pending) {
            self.remove_permit(node);
            self.note_turn(node);
            self.pending.insert((self.turns, node.to_owned()));
        }
    }

    fn note_turn(&mut self, node: &str) {
        self.turns += 1;
        self.last_turns.insert(node.to_owned(), self.turns);
    }

    fn last_turn(&self, node: &str) -> u64 {
        self.last_turns.get(node).copied().unwrap_or_default()
    }

    fn remove_permit(&mut self, node: &str) {
        self.granted.remove(node);
        self.writing.remove(node);
        self.pending.remove(&(self.last_turn(node), node.to_owned()));
    }

    /// Returns `maxSurge` of the DaemonSet: the number of nodes on which a new agent may stand by beside the old one. Nodes
    /// that nobody waits for come on top: a new agent may stand by there for ever.
    pub fn surge(&self, pace: &RolloutPace) -> IntOrString {
        if self.outside() == 0 {
            return pace.max_unavailable();
        }
        let surge = pace.budget(self.size()).saturating_add(self.outside());
        IntOrString::Int(i32::try_from(surge).unwrap_or(i32::MAX))
    }

    /// Counts the nodes that nobody waits for.
    pub fn outside(&self) -> usize {
        self.outside + self.held
    }

    /// Counts the nodes that are part of the rollout.
    fn size(&self) -> usize {
        self.stages.len() - self.held
    }

    /// Returns the first node by name that stopped the rollout, and the reason.
    pub fn stopped(&self) -> Option<(&str, &str)> {
        self.stopped
            .first_key_value()
            .map(|(node, message)| (node.as_str(), message.as_str()))
    }

    /// Describes the progress of a rollout; none if none is under way.
    pub fn progress(&self) -> Option<String> {
        let changing = self.stepping.iter().map(String::as_str);
        self.is_under_way()
            .then(|| rollout_progress(self.done, self.size(), changing))
    }

    /// Describes the progress of taints that evict pods; none if none is under way.
    pub(crate) fn taints_progress(&self) -> Option<String> {
        let evicting = self.stepping.iter().map(String::as_str);
        self.is_under_way()
            .then(|| taints_progress(self.done, self.size(), evicting))
    }

    fn is_under_way(&self) -> bool {
        let waiting = self.pending.len() + self.granted.len() + self.writing.len();
        waiting + self.stepping.len() + self.stopped.len() > 0
    }
}

#[cfg(test)]
mod tests;
