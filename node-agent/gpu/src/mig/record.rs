//! Knowledge of a GPU's layout after a restart of the agent or of the node. The agent saves it.

use super::{MigWork, MigWorkKind};
use crate::{GpuInstance, GpuLayout, GpuMigState, RunId};
use gpunode_mig::PlacedInstance;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Record of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigRecord {
    /// Boot and driver load in which `applied` was last seen on the GPU.
    pub run: RunId,
    /// Last layout that the GPU had; a reboot makes it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<GpuLayout>,
    /// Change under way. It is saved before the first call of the driver, and removed once the GPU has the layout, or the one
    /// from before again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeRecord>,
    /// Attempts with the configuration of this hash that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<MigFailure>,
    /// Attempts to make `applied` again that failed, under any configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_failure: Option<MigFailure>,
}

/// Change of a GPU under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeRecord {
    /// Hash of the configuration that wants it.
    pub hash: String,
    /// Layout from before.
    pub before: GpuLayout,
    /// Layout that the GPU gets.
    pub wanted: GpuLayout,
    /// True once the change goes back to `before`.
    pub rolls_back: bool,
    /// True if the change makes a layout again that was lost, which is `before`, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restores: bool,
    /// True if the MIG mode is not the one from before in a layout that it wants, or wanted before it went to another one: which mode
    /// the GPU has, only a reading from after that change can tell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changes_mode: bool,
    /// Instances that it wanted before it went to another layout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<PlacedInstance>,
    /// Names of what kept it from its end, if it goes back for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gives_up: Option<String>,
}

impl MigRecord {
    /// Returns true if another boot or driver load may have taken the recorded instances.
    pub fn may_be_lost(&self, run: &RunId) -> bool {
        self.applied.as_ref().is_some_and(|applied| applied.enabled) && self.run.is_other(run)
    }
}

impl ChangeRecord {
    /// Returns the record to save before the first call for work on a GPU in this state. `begun` is the change under way. Of a GPU that
    /// somebody else has divided meanwhile, nothing of that change is left.
    pub fn begin(work: &MigWork, begun: Option<&Self>, state: &GpuMigState) -> Self {
        let begun = begun.filter(|begun| !begun.is_overtaken(state));
        let restores = work.kind == MigWorkKind::Restore;
        let before = match begun {
            Some(begun) => begun.before.clone(),
            // What a boot has left is nothing to go back to.
            None if restores => work.layout.clone(),
            None => state.layout(),
        };
        let changed_mode = begun.is_some_and(|begun| begun.changes_mode);
        Self {
            hash: work.hash.clone(),
            changes_mode: changed_mode || before.enabled != work.layout.enabled,
            before,
            wanted: work.layout.clone(),
            rolls_back: work.kind == MigWorkKind::RollBack,
            restores,
            passed: begun.map(|begun| begun.passed_before(&work.layout)).unwrap_or_default(),
            gives_up: work.gives_up.clone(),
        }
    }

    /// Returns true if the GPU has an instance that this change never wanted: while no agent ran, somebody else has divided it.
    pub fn is_overtaken(&self, state: &GpuMigState) -> bool {
        let known = [&self.before.instances, &self.wanted.instances, &self.passed];
        let is_known = |instance: &GpuInstance| known.iter().any(|instances| instances.contains(&instance.placed));
        !state.instances.iter().all(is_known)
    }

    /// Returns the instances that the change has wanted so far, apart from those of `next`.
    fn passed_before(&self, next: &GpuLayout) -> Vec<PlacedInstance> {
        let mut passed = self.passed.clone();
        passed.extend(&self.wanted.instances);
        passed.retain(|placed| !next.instances.contains(placed));
        passed.sort_unstable();
        passed.dedup();
        passed
    }
}

impl MigFailure {
    /// Returns the failure once the layout from before is back: that of the attempts with the configuration, or what kept the change
    /// from its end.
    pub fn rolled_back(hash: &str, before: Option<Self>, change: Option<&ChangeRecord>, now: Timestamp) -> Self {
        let failure = before.filter(|failure| failure.hash == hash).unwrap_or_else(|| Self {
            hash: hash.to_owned(),
            at: now,
            ..Self::default()
        });
        let gives_up = change.and_then(|change| change.gives_up.clone());
        Self {
            rolled_back: true,
            // Agents before this one know no failure without an attempt.
            attempts: failure.attempts.max(1),
            message: gives_up.unwrap_or(failure.message),
            ..failure
        }
    }
}

/// Failed attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigFailure {
    /// Hash of the configuration.
    pub hash: String,
    /// Number of attempts that the driver answered with an error.
    pub attempts: u32,
    /// Time of the last one.
    pub at: Timestamp,
    /// The driver's answer, or what kept the change from its end.
    pub message: String,
    /// True if the layout from before is back.
    pub rolled_back: bool,
}
