//! How a new configuration goes through the nodes of one policy: who may change next, and where it stops. Kept node by node;
//! a change of one node costs the logarithm of their number.
//!
//! | stage | the node | counts against the budget |
//! |---|---|---|
//! | `Outside` | is down, was failing already, or has its first configuration: nobody waits for it | no |
//! | `Pending` | works with another configuration | once it is granted its turn |
//! | `Stepping` | has been given the wanted configuration at its turn | yes |
//! | `Stopped` | failed with it, or is not there in time: no other node gets it | no |
//! | `Done` | has it in force | no |
//!
//! A node that is granted its turn stays so until it is written, refused or something else becomes of it, whatever is lost on
//! the way: what may have been written counts as written.

use gpunode_crds::RolloutPace;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most nodes that a sentence names.
const NAMED: usize = 3;

/// Where a node is on its way to the configuration of the policy that governs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStage {
    /// Nobody waits for it.
    Outside,
    /// The same of one that is left as it is. It is no part of the rollout, but has an agent of the policy.
    Held,
    /// It works, with another configuration.
    Pending,
    /// It is changing, having worked before.
    Stepping,
    /// It worked before and failed with this configuration, as said.
    Stopped(String),
    /// It has the configuration in force.
    Done,
}

/// The nodes that one policy governs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRollout {
    stages: HashMap<String, RolloutStage>,
    done: usize,
    outside: usize,
    held: usize,
    /// Pending without a turn: those that the API server refused last, in that order, then by name.
    pending: BTreeSet<(u64, String)>,
    /// The number of the last refusal of a pending node.
    refused: HashMap<String, u64>,
    refusals: u64,
    /// Nothing stops it any more: nodes that were being written meanwhile have to be looked at again.
    is_resumed: bool,
    /// Pending, and next to be written.
    granted: BTreeSet<String>,
    /// Pending, and perhaps written already.
    writing: BTreeSet<String>,
    stepping: BTreeSet<String>,
    stopped: BTreeMap<String, String>,
}

impl PolicyRollout {
    /// Takes in where a node is; nowhere once the policy does not govern it.
    pub fn put(&mut self, node: &str, stage: Option<&RolloutStage>) {
        if self.stages.get(node) == stage {
            return;
        }
        match self.stages.remove(node) {
            None => {}
            Some(RolloutStage::Outside) => self.outside = self.outside.saturating_sub(1),
            Some(RolloutStage::Held) => self.held = self.held.saturating_sub(1),
            Some(RolloutStage::Done) => self.done = self.done.saturating_sub(1),
            Some(RolloutStage::Pending) => {
                self.forget_turn(node);
                self.refused.remove(node);
            }
            Some(RolloutStage::Stepping) => drop(self.stepping.remove(node)),
            Some(RolloutStage::Stopped(_)) => {
                self.stopped.remove(node);
                self.is_resumed = self.stopped.is_empty();
            }
        }
        match stage {
            None => return,
            Some(RolloutStage::Outside) => self.outside += 1,
            Some(RolloutStage::Held) => self.held += 1,
            Some(RolloutStage::Done) => self.done += 1,
            Some(RolloutStage::Pending) => drop(self.pending.insert((0, node.to_owned()))),
            Some(RolloutStage::Stepping) => drop(self.stepping.insert(node.to_owned())),
            Some(RolloutStage::Stopped(message)) => drop(self.stopped.insert(node.to_owned(), message.clone())),
        }
        self.stages.extend(stage.map(|stage| (node.to_owned(), stage.clone())));
    }

    /// Grants turns as far as the budget goes, by name, and takes back those that go beyond it. Returns the nodes whose turn it
    /// now is.
    pub fn advance(&mut self, pace: &RolloutPace) -> Vec<String> {
        let on_the_way = self.stepping.len() + self.writing.len();
        let free = if self.stopped.is_empty() {
            pace.budget(self.size()).saturating_sub(on_the_way)
        } else {
            0
        };
        while self.granted.len() > free
            && let Some(node) = self.granted.pop_last()
        {
            self.pending.insert((self.refusal_of(&node), node));
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

    /// Whether it is the turn of a pending node.
    pub fn is_granted(&self, node: &str) -> bool {
        self.granted.contains(node) || (self.writing.contains(node) && self.stopped.is_empty())
    }

    /// Takes the turn of a pending node, if it is its turn: from here on it counts as written.
    pub fn take_turn(&mut self, node: &str) -> bool {
        let is_granted = self.is_granted(node);
        if self.granted.remove(node) {
            self.writing.insert(node.to_owned());
        }
        is_granted
    }

    /// Gives a turn back, since the API server refused the write. Others come first now.
    pub fn give_back(&mut self, node: &str) {
        if self.stages.get(node) == Some(&RolloutStage::Pending) {
            self.forget_turn(node);
            self.refusals += 1;
            self.refused.insert(node.to_owned(), self.refusals);
            self.pending.insert((self.refusals, node.to_owned()));
        }
    }

    fn refusal_of(&self, node: &str) -> u64 {
        self.refused.get(node).copied().unwrap_or_default()
    }

    fn forget_turn(&mut self, node: &str) {
        self.granted.remove(node);
        self.writing.remove(node);
        self.pending.remove(&(self.refusal_of(node), node.to_owned()));
    }

    /// On how many nodes a new agent may stand by beside the old one, as a DaemonSet takes it. Nodes that
    /// nobody waits for come on top: a new agent may stand by there for ever.
    pub fn surge(&self, pace: &RolloutPace) -> IntOrString {
        if self.outside() == 0 {
            return pace.max_unavailable();
        }
        let surge = pace.budget(self.size()).saturating_add(self.outside());
        IntOrString::Int(i32::try_from(surge).unwrap_or(i32::MAX))
    }

    /// How many nodes nobody waits for.
    pub fn outside(&self) -> usize {
        self.outside + self.held
    }

    /// How many are part of the rollout.
    fn size(&self) -> usize {
        self.stages.len() - self.held
    }

    /// The first node by name that stopped the rollout, and why.
    pub fn stopped(&self) -> Option<(&str, &str)> {
        self.stopped
            .first_key_value()
            .map(|(node, message)| (node.as_str(), message.as_str()))
    }

    /// How far a change has come, in words; nothing where none is under way.
    pub fn progress(&self) -> Option<String> {
        let waiting = self.pending.len() + self.granted.len() + self.writing.len();
        if waiting + self.stepping.len() + self.stopped.len() == 0 {
            return None;
        }
        let (done, all) = (self.done, self.size());
        let have = if done == 1 { "has" } else { "have" };
        let changing: Vec<_> = self.stepping.iter().take(NAMED).map(String::as_str).collect();
        let more = self.stepping.len() - changing.len();
        let changing = match (changing.len(), more) {
            (0, _) => String::new(),
            (1, 0) => format!("; {} is being changed", changing.join("")),
            (_, 0) => format!("; {} are being changed", changing.join(", ")),
            (_, more) => format!("; {} and {more} more are being changed", changing.join(", ")),
        };
        Some(format!("{done} of {all} nodes {have} the new configuration{changing}"))
    }
}

#[cfg(test)]
mod tests;
