//! The plan for one node: what has to be written, and where each policy stands there.

use crate::{
    fleet::rollout::RolloutStage,
    gpu_node::conditions::ConditionsChange,
    gpu_node::configuration::GpuNodeChange,
    node::conflicts::KeyConflict,
    node::hold::NodeHold,
    outcome::{PolicyNodeStatus, PolicyOutcome},
};
use gpunode_crds::{NodePreview, NodeWaiting, Reason};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Whether a node that works may change to another configuration now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutPermit {
    /// It may.
    Granted,
    /// Others come first: it keeps its configuration, and the agent that it has.
    Withheld,
    /// It may, and its agents have followed: what is there only until then is not to be seen.
    Simulated,
}

/// The plan for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// Why nothing is to be written at all, if so.
    pub hold: Option<NodeHold>,
    /// The enforced policies that match, by falling priority.
    pub matched: Vec<String>,
    /// The policy whose device plugin runs on the node. On a node that is left as it is, the one whose configuration it has.
    pub governing: Option<String>,
    /// One JSON patch that moves labels, taints and the record together; it begins with a test on resourceVersion. `None`
    /// where the node is as it is to be.
    pub patch: Option<json_patch::Patch>,
    /// One JSON patch of the node's status that removes the keys of resources that nobody serves.
    pub status_patch: Option<json_patch::Patch>,
    /// What is to be written about the `GpuNode`.
    pub gpu_node: GpuNodeChange,
    /// What is to be written in its status, once nothing else is to be written about it.
    pub conditions: Option<ConditionsChange>,
    /// Keys that stay as somebody else wants them.
    pub conflicts: Vec<KeyConflict>,
    /// What became of each policy that matches, also of those in mode Preview.
    pub outcomes: BTreeMap<String, PolicyOutcome>,
    /// What each matching policy in mode Preview would change.
    pub previews: BTreeMap<String, NodePreview>,
    /// Devices whose change to the governing policy's configuration waits for their holders.
    pub waiting: Vec<NodeWaiting>,
    /// Where the node is on its way to the governing policy's configuration.
    pub stage: Option<RolloutStage>,
    /// Whether it keeps another configuration only because it is not its turn.
    pub waits: bool,
    /// When to plan again though nothing changed.
    pub recheck: Option<Timestamp>,
}

impl NodePlan {
    /// Whether there is something to write.
    pub fn has_work(&self) -> bool {
        self.patch.is_some()
            || self.status_patch.is_some()
            || self.gpu_node != GpuNodeChange::None
            || self.conditions.is_some()
    }

    /// Whether the node and its `GpuNode` are as they are to be.
    pub fn is_settled(&self) -> bool {
        !self.has_work() && !self.waits
    }

    /// Where each policy stands if writing failed with `error`, if it did: nobody waits for such a node.
    pub fn policy_statuses_after(&self, error: Option<&str>) -> BTreeMap<String, PolicyNodeStatus> {
        let error = error.filter(|_| !self.is_settled());
        let standing = |(name, outcome): (&String, &PolicyOutcome)| {
            let failed = error.filter(|_| *outcome == PolicyOutcome::Updating && self.matched.contains(name));
            let outcome = failed.map_or_else(
                || outcome.clone(),
                |error| PolicyOutcome::failed(Reason::WriteFailed, error),
            );
            let governs = self.governing.as_ref() == Some(name);
            let waiting = if governs { self.waiting.clone() } else { Vec::new() };
            let stage = self.stage.clone().filter(|_| governs);
            let outcome = Some(outcome);
            (
                name.clone(),
                PolicyNodeStatus {
                    outcome,
                    preview: self.previews.get(name).cloned(),
                    waiting,
                    stage,
                },
            )
        };
        let mut standings: BTreeMap<_, _> = self.outcomes.iter().map(standing).collect();
        if let (Some(governing), Some(stage)) = (&self.governing, &self.stage) {
            standings
                .entry(governing.clone())
                .or_insert_with(|| PolicyNodeStatus::in_rollout(stage.clone()));
        }
        standings
    }
}
