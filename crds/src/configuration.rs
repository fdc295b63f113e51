//! Configuration of an agent in `GpuNode`: the document, its turn in a rollout, and a rejected document.

use crate::mig_status::MigReason;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of `spec.step.failed`, in characters.
pub const MAX_FAILED_MESSAGE: usize = 1024;

/// Maximum length of `spec.change.message`, in characters.
pub const MAX_DRAIN_MESSAGE: usize = 512;

/// Turn of a node in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStep {
    /// Time at which the configuration was written, or at which the policy last changed since then. The agent repeats
    /// it in `status.finishedStep`, so no two steps of a node have the same.
    #[schemars(schema_with = "crate::conditions::time")]
    pub started_at: Time,
    /// `metadata.generation` of the policy at `startedAt`. If it changes, as after a pause, the time starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Message of the node's failure with this configuration. Once it is set, no further node gets the configuration,
    /// even if this node recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_FAILED_MESSAGE))]
    pub failed: Option<String>,
}

/// Change on a node that disturbs it, beside the node's turn in a rollout: the operator tells the agent when to prepare it
/// and when to carry it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptiveChange {
    /// `Prepare` withdraws the devices that have to become free while their pods are evicted. `Approved` lets the agent
    /// change MIG. `Failed` is left of a drain that did not free them.
    pub state: ChangeState,
    /// Hash of the configuration that needs the change. It is void for any other one.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Time at which `state` was set. The agent repeats it in `status.finishedChange`, so no two changes of a node have the
    /// same.
    #[schemars(schema_with = "crate::conditions::time")]
    pub since: Time,
    /// Reason for `Failed`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub reason: Option<DrainFailure>,
    /// Description of the failure, and the time of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DRAIN_MESSAGE))]
    pub message: Option<String>,
    /// Number of drains for this configuration that failed; 0 is left out.
    #[serde(default, skip_serializing_if = "crate::mig_status::is_zero")]
    #[schemars(with = "i32")]
    pub attempts: u32,
}

/// States of a disruptive change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum ChangeState {
    /// The agent withdraws the devices that have to become free, and lets nobody have them.
    Prepare,
    /// The agent may carry the change out.
    Approved,
    /// The pods did not go. The devices are offered as before, and the next attempt follows later.
    Failed,
    /// A state that this version does not know: it approves nothing.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Reasons why a drain failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum DrainFailure {
    /// A pod that cannot be evicted, or comes straight back, holds what has to go.
    CannotEvict,
    /// The pods did not go within `drain.timeout`.
    DrainTimedOut,
}

impl From<DrainFailure> for MigReason {
    fn from(failure: DrainFailure) -> Self {
        match failure {
            DrainFailure::CannotEvict => Self::CannotEvict,
            DrainFailure::DrainTimedOut => Self::DrainTimedOut,
        }
    }
}

/// Configuration document for the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// Name of the policy that governs the node.
    #[schemars(length(max = 40))]
    pub policy: String,
    /// Version of the document's format. An agent reports the versions that it can read.
    pub version: i32,
    /// Hash that identifies the document. An agent reports the hash of the document in force.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// The configuration in YAML, in the format that `gpunode-agent run --config FILE` reads.
    #[schemars(length(max = gpunode_config::MAX_DOCUMENT_BYTES))]
    pub document: String,
}

/// Configuration that the agent cannot put in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RejectedConfiguration {
    /// Hash of the rejected document.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Reason, with the path of the field.
    #[schemars(length(max = 1024))]
    pub message: String,
}
