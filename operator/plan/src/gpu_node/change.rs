//! A write to the `GpuNode` of one node.

use crate::{input::gpu_node_facts::GpuNodeFacts, time::whole_second};
use gpunode_crds::{ChangeState, Configuration, ConfigurationStep, DisruptiveChange, GpuNode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

/// Write to the `GpuNode` of one node. Each write except a creation is refused unless the object has the version given.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum GpuNodeChange {
    /// No write.
    #[default]
    None,
    /// Creates the object.
    Create(Box<GpuNode>),
    /// Sets or removes the configuration, and removes `spec.change`, which belongs to the one before.
    Configure {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.config`.
        config: Option<Configuration>,
        /// `spec.step`; set where the node worked before, so that a rollout waits for it.
        step: Option<ConfigurationStep>,
    },
    /// Ends the node's step in a rollout, or records its state; approves a change under the configuration, or takes the
    /// approval back.
    Step {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.step`.
        step: Option<ConfigurationStep>,
        /// `spec.change`.
        change: Option<DisruptiveChange>,
    },
    /// Passes on to the agent what people request, and who else serves the GPUs.
    Requests {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.release`.
        release: bool,
        /// `spec.servedByDra`.
        served_by_dra: bool,
        /// `spec.recovered`.
        recovered: Option<Time>,
    },
    /// Puts the reference to the Node back, with which the object is deleted.
    Own {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// All references afterwards.
        owners: Vec<OwnerReference>,
    },
    /// Deletes an object without configuration, GPU and MPS daemon, or one of an earlier node, if it also has this uid.
    Delete {
        /// `metadata.uid`.
        uid: String,
        /// `metadata.resourceVersion`.
        resource_version: String,
    },
}

impl GpuNodeChange {
    /// Deletes this very object.
    pub fn delete(gpu_node: &GpuNodeFacts) -> Self {
        Self::Delete {
            uid: gpu_node.uid.clone(),
            resource_version: gpu_node.resource_version.clone(),
        }
    }

    /// Returns true if this change gives the node a configuration.
    pub fn gives_configuration(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Configure { config: Some(_), .. })
    }
}

/// Returns a change to this state for what the configuration in the spec needs.
pub fn new_change(gpu_node: &GpuNodeFacts, state: ChangeState, now: Timestamp) -> Option<DisruptiveChange> {
    let before = gpu_node.change.as_ref().map(|change| change.since.0);
    Some(DisruptiveChange {
        state,
        hash: gpu_node.configuration()?.hash.clone(),
        since: Time(unused_second([before, gpu_node.finished_change], now)),
        reason: None,
        message: None,
        attempts: 0,
    })
}

/// Returns the first second that neither the step or change before nor the agent's report has, which would finish the new one.
pub fn unused_second(taken: [Option<Timestamp>; 2], now: Timestamp) -> Timestamp {
    let taken = taken.map(|start| start.map(whole_second));
    let start = whole_second(now);
    (0..=2)
        .filter_map(|seconds| start.checked_add(SignedDuration::from_secs(seconds)).ok())
        .find(|start| !taken.contains(&Some(*start)))
        .unwrap_or(start)
}
