//! The configuration of an agent in `GpuNode`: what it is asked for, its turn in a rollout, and what it refused.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Most characters of why a node failed at its turn.
pub const MAX_FAILED_MESSAGE: usize = 1024;

/// The turn of a node in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStep {
    /// When the configuration was written, or the policy changed since then.
    #[schemars(schema_with = "crate::conditions::time")]
    pub started_at: Time,
    /// `metadata.generation` of the policy then. With another one, as after a pause, the time begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Why the node failed with the configuration, if it did: no other node gets it, whatever becomes of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_FAILED_MESSAGE))]
    pub failed: Option<String>,
}

/// A configuration as the agent reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// The policy that governs the node.
    #[schemars(length(max = 40))]
    pub policy: String,
    /// Version of the document's format; an agent reports which ones it reads.
    pub version: i32,
    /// Identifies the document; an agent reports the hash of the one in force.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// The configuration, YAML as `gpunode-agent run --config FILE` takes it.
    #[schemars(length(max = gpunode_config::MAX_DOCUMENT_BYTES))]
    pub document: String,
}

/// A configuration that could not be put in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RejectedConfiguration {
    /// Its hash.
    #[schemars(length(max = 64))]
    pub hash: String,
    /// Why, with the path of the field.
    #[schemars(length(max = 1024))]
    pub message: String,
}
