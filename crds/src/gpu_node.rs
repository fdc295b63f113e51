//! `GpuNode`: one per node that has a GPU or is governed by a `devicePlugin`. The operator writes `spec`, the agent of the
//! node writes `status`, but for two conditions that are the operator's.

#![allow(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]

use crate::{
    Configuration, ConfigurationStep, GpuDevice, Holder, MAX_DEVICES, MpsDaemon, RejectedConfiguration, ResourceStatus,
    Vgpu, WaitingDevice,
};
use gpunode_config::MigStrategy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most entries of `status.holders`.
pub const MAX_HOLDERS: usize = 256;

/// What the operator asks of the agent on one node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "gpunode.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    doc = "The GPUs of one node: what the operator asks of the agent there (spec, written by the operator alone) and what the agent found and did (status, written by that agent; but for the conditions `Conflict`, `FactLabels` and `RecoveredAnnotation`, which are the operator's).",
    printcolumn(name = "Hardware", type_ = "string", json_path = ".status.hardware"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.config.policy"),
    printcolumn(
        name = "Fault",
        type_ = "string",
        json_path = ".status.gpus[?(@.health.state=='Unhealthy')].health.reason"
    ),
    printcolumn(name = "In Use", type_ = "string", json_path = ".status.inUse"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(
        name = "Waits For",
        type_ = "string",
        json_path = ".status.waiting[0].pods[0]",
        description = "The first of the pods that a change of sharing waits for; `kubectl gpunode status NODE` shows all of them."
    ),
    printcolumn(name = "Held By", type_ = "string", json_path = ".status.heldBy", priority = 1),
    printcolumn(name = "Driver", type_ = "string", json_path = ".status.driverVersion", priority = 1),
    printcolumn(name = "Config", type_ = "string", json_path = ".status.configHash", priority = 1),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agent.pod", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// The configuration that the agent is to put in force. Absent while no policy with a `devicePlugin` governs the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,

    /// There from the moment on in which `config` was written at the node's turn in a rollout, as the node was Ready, until
    /// it is in force. Agents do not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<ConfigurationStep>,

    /// The agents of the node are to let go of its GPUs, whose driver is being replaced: they offer no device as healthy and
    /// keep no session with the driver. From the node's labels (`docs/health.md`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,

    /// Faults that began before are over, as a person said by the annotation `gpunode.dev/recovered` of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub recovered: Option<Time>,
}

/// What the agent found and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// The agent that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,

    /// The GPUs in a few words, such as `8 x Tesla-V100-SXM2-32GB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub hardware: Option<String>,

    /// How much of each resource containers hold, in a few words, such as `nvidia.com/gpu 5/8`; `holders` has it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub in_use: Option<String>,

    /// The pods that hold something, in a few words, such as `ml/train-0, ml/notebook and 3 more`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub held_by: Option<String>,

    /// Version of the NVIDIA driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver_version: Option<String>,

    /// Newest CUDA version that the driver supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cuda_version: Option<String>,

    /// What the machine is, from DMI, in label form, such as `NVIDIA-DGX-2H`; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub machine: Option<String>,

    /// Where the GPUs are virtual: the driver of the machine that lends them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<Vgpu>,

    /// How MIG devices are offered; absent where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_strategy: Option<MigStrategy>,

    /// The GPUs of the node, ordered by index; those that have been missing for less than 15 minutes too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub gpus: Vec<GpuDevice>,

    /// The resources that the agent offers, ordered as in the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub resources: Vec<ResourceStatus>,

    /// Which containers hold which devices, ordered; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HOLDERS))]
    pub holders: Vec<Holder>,

    /// Whether there are more holders than `holders` lists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,

    /// Devices that stay as they are until their last holder is gone, because the configuration in force gives them another
    /// sharing, name or place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub waiting: Vec<WaitingDevice>,

    /// MPS control daemons that run or have to run on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub mps_daemons: Vec<MpsDaemon>,

    /// Hash of the configuration in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config_hash: Option<String>,

    /// The configuration that the agent refused; the one before it stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_config: Option<RejectedConfiguration>,

    /// `Ready`, `ConfigurationAccepted`, `Registered`, `DevicesOffered` and `DriverAvailable` by the agent, `Conflict`,
    /// `FactLabels` and `RecoveredAnnotation` by the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Which process speaks for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Name of its pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// UID of its pod.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The policy whose DaemonSet the pod belongs to; absent for discovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub policy: Option<String>,
    /// What it does on the node.
    pub mode: AgentMode,
    /// Version of the program.
    #[schemars(length(max = 64))]
    pub version: String,
    /// Versions of the configuration document that it reads.
    #[schemars(length(max = 16))]
    pub config_versions: Vec<i32>,
}

/// What an agent does on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AgentMode {
    /// It only reports hardware.
    #[default]
    Discovery,
    /// It runs the device plugin.
    DevicePlugin,
}
