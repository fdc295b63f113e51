//! The result of planning one node: the writes, and the outcome of each policy.

use crate::{
    gpu_node::{change::GpuNodeChange, conditions::ConditionsChange, drain::DrainWork},
    intervention::Intervention,
    node::{compose::Disagreement, conflicts::KeyConflict, hold::NodeHold, settled::SettledNode},
    node_drain::NodeDrain,
    outcome::{PolicyNodeStatus, PolicyOutcome, PolicyOverride},
    rollout_stage::RolloutStage,
};
use gpunode_crds::{NodePreview, NodeWaiting, Reason};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Plan for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// Reason to write nothing at all, if any.
    pub hold: Option<NodeHold>,
    /// Enforced policies that match, by falling priority.
    pub matched: Vec<String>,
    /// Policy whose device plugin runs on the node. On a node that keeps its configuration, the
    /// policy whose configuration it has.
    pub governing: Option<String>,
    /// JSON patch of labels, taints and the record, guarded by resourceVersion. `None` if the node is as desired.
    pub patch: Option<json_patch::Patch>,
    /// Things that `patch` takes away from somebody.
    pub interventions: Vec<Intervention>,
    /// JSON patch of the node's status that removes the keys of stale resources.
    pub status_patch: Option<json_patch::Patch>,
    /// Write to the `GpuNode`.
    pub gpu_node: GpuNodeChange,
    /// Write to its conditions, once no other write to it is left.
    pub conditions: Option<ConditionsChange>,
    /// Keys that keep somebody else's value.
    pub conflicts: Vec<KeyConflict>,
    /// Keys, or the configuration, about which policies of equal priority disagree: they stay as they are.
    pub disagreements: Vec<Disagreement>,
    /// Matching policies that the node's labels no longer select, and the moments at which they leave.
    pub leaving: BTreeMap<String, Timestamp>,
    /// Losses of matching policies to policies of higher priority.
    pub overridden: BTreeMap<String, PolicyOverride>,
    /// Outcome of each matching policy, also of those in mode Preview.
    pub outcomes: BTreeMap<String, PolicyOutcome>,
    /// Changes that each matching policy in mode Preview would make.
    pub previews: BTreeMap<String, NodePreview>,
    /// Devices whose change to the governing policy's configuration waits for their holders, or for another obstacle.
    pub waiting: Vec<NodeWaiting>,
    /// Reason why pods get no GPU on the node with the governing policy's configuration, if they get none.
    pub gpu_refusal: Option<String>,
    /// Stage of the node on its way to the governing policy's configuration.
    pub stage: Option<RolloutStage>,
    /// Stage of the node for each policy with taints that evict pods, by name.
    pub taint_stages: BTreeMap<String, RolloutStage>,
    /// Taints that evict pods from the node.
    pub drain: NodeDrain,
    /// Work of a drain for a change of the node's GPUs.
    pub drain_work: DrainWork,
    /// True if the node keeps another configuration, or MIG layout, only for lack of a permit.
    pub waits: bool,
    /// Moment to plan again though nothing changed.
    pub recheck: Option<Timestamp>,
    /// The same for a health or startup taint, which people wait for; not before `recheck`.
    pub urgent_recheck: Option<Timestamp>,
    /// The node once `patch` is carried out, where that leaves nothing else to do on the Node itself.
    pub settled: Option<Box<SettledNode>>,
}

impl NodePlan {
    /// Returns true if policies disagree about the configuration of the node.
    pub fn is_configuration_disputed(&self) -> bool {
        self.disagreements.iter().any(Disagreement::is_about_configuration)
    }

    /// Returns the sentences of the disagreements that a policy takes part in.
    pub(crate) fn disagreements_of(&self, policy: &str) -> Vec<String> {
        let taking_part = self.disagreements.iter().filter(|it| it.values.contains_key(policy));
        taking_part.map(ToString::to_string).collect()
    }

    /// Returns true if there is something to write.
    pub fn has_work(&self) -> bool {
        self.patch.is_some()
            || self.status_patch.is_some()
            || self.gpu_node != GpuNodeChange::None
            || self.conditions.is_some()
    }

    /// Returns true if the node and its `GpuNode` are as desired.
    pub fn is_settled(&self) -> bool {
        !self.has_work() && !self.waits && !self.awaits_taints()
    }

    /// Returns true if the node lacks taints only for lack of a permit.
    pub fn awaits_taints(&self) -> bool {
        self.taint_stages.values().any(|stage| *stage == RolloutStage::Pending)
    }

    /// Returns the node once the plan is carried out; none unless the patch is its only write and nothing is left to do
    /// then.
    pub fn settled_node(&self) -> Option<&SettledNode> {
        let is_only_write =
            self.status_patch.is_none() && self.gpu_node == GpuNodeChange::None && self.conditions.is_none();
        self.settled.as_deref().filter(|_| is_only_write && self.hold.is_none())
    }

    /// Returns the status of each policy once the plan is carried out, on a node of which that is known.
    pub fn settled_statuses(&self) -> Option<BTreeMap<String, PolicyNodeStatus>> {
        self.settled_node().map(|settled| self.statuses(&settled.outcomes))
    }

    /// Returns the status of each policy on the node. With an `error` of the last write, policies that are updating fail:
    /// nobody waits for such a node.
    pub fn policy_statuses_after(&self, error: Option<&str>) -> BTreeMap<String, PolicyNodeStatus> {
        let error = error.filter(|_| !self.is_settled());
        let outcome = |(name, outcome): (&String, &PolicyOutcome)| {
            let failed = error.filter(|_| *outcome == PolicyOutcome::Updating && self.matched.contains(name));
            let outcome = failed.map_or_else(
                || outcome.clone(),
                |error| PolicyOutcome::failed(Reason::WriteFailed, error),
            );
            (name.clone(), outcome)
        };
        self.statuses(&self.outcomes.iter().map(outcome).collect())
    }

    fn statuses(&self, outcomes: &BTreeMap<String, PolicyOutcome>) -> BTreeMap<String, PolicyNodeStatus> {
        let status = |(name, outcome): (&String, &PolicyOutcome)| {
            let governs = self.governing.as_ref() == Some(name);
            let waiting = if governs { self.waiting.clone() } else { Vec::new() };
            let stage = self.stage.clone().filter(|_| governs);
            (
                name.clone(),
                PolicyNodeStatus {
                    outcome: Some(outcome.clone()),
                    preview: self.previews.get(name).cloned(),
                    waiting,
                    gpu_refusal: self.gpu_refusal.clone().filter(|_| governs),
                    stage,
                    taint_stage: self.taint_stages.get(name).cloned(),
                    overridden: self.overridden.get(name).cloned(),
                },
            )
        };
        let mut statuses: BTreeMap<_, _> = outcomes.iter().map(status).collect();
        if let (Some(governing), Some(stage)) = (&self.governing, &self.stage) {
            statuses
                .entry(governing.clone())
                .or_insert_with(|| PolicyNodeStatus::in_rollout(stage.clone()));
        }
        statuses
    }
}
