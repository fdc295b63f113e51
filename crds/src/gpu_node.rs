//! `GpuNode`: one per node that has a GPU or is governed by a `devicePlugin`. The operator writes `spec`; the agent of the
//! node writes `status`, except for three conditions that the operator writes.

#![allow(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]

use crate::{
    Configuration, ConfigurationStep, DisruptiveChange, GpuDevice, Holder, MAX_DEVICES, MAX_RESOURCES, MpsDaemon,
    RejectedConfiguration, ResourceStatus, RuntimeStatus, Vgpu, WaitingDevice,
};
use gpunode_config::MigStrategy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of entries in `status.holders`.
pub const MAX_HOLDERS: usize = 256;

/// Desired state of the agent on one node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "gpunode.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    shortname = "gn",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    doc = "GPUs of one node. The operator writes the spec, which tells the agent of the node what to do. The agent writes the status, except for the conditions `Conflict`, `FactLabels` and `RecoveredAnnotation`, which the operator writes.",
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
        description = "First pod that delays a change of sharing; `kubectl gpunode status NODE` shows all of them."
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
    /// Configuration that the agent must put in force. Absent while no policy with a `devicePlugin` governs the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,

    /// Turn of the node in a rollout. Set if the node was Ready when `config` was written; over once
    /// `status.finishedStep` is its `startedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<ConfigurationStep>,

    /// Change of the node that disturbs it, once it may begin. Over once `status.finishedChange` is its `since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<DisruptiveChange>,

    /// Tells the agents of the node to release its GPUs because the driver is being replaced: they advertise no device
    /// as healthy and keep no session with the driver. Set from the node's labels (`docs/health.md`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,

    /// Tells the agents of the node to leave its GPUs to NVIDIA's DRA driver: containers keep what they hold, and no container
    /// gets another device. Set while a ResourceSlice of driver `gpu.nvidia.com` belongs to the node, and for two minutes
    /// after (`docs/staying-up.md`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub served_by_dra: bool,

    /// Faults that began before this time are over; an XID that the driver reports again begins anew. Set from the
    /// annotation `gpunode.dev/recovered` of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub recovered: Option<Time>,
}

/// Observed state of the GPUs and of the agent on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Agent that wrote this status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,

    /// Summary of the GPUs, such as `8 x Tesla-V100-SXM2-32GB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub hardware: Option<String>,

    /// Summary of the resources in use, such as `nvidia.com/gpu 5/8`; `holders` has the details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub in_use: Option<String>,

    /// Summary of the pods that hold devices, such as `ml/train-0, ml/notebook and 3 more`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub held_by: Option<String>,

    /// Version of the NVIDIA driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub driver_version: Option<String>,

    /// Latest CUDA version that the driver supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cuda_version: Option<String>,

    /// Machine type from DMI in label form, such as `NVIDIA-DGX-2H`; absent if DMI does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub machine: Option<String>,

    /// Host driver, if the GPUs are virtual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<Vgpu>,

    /// Container runtime of the node, as the agent read it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStatus>,

    /// MIG strategy in force; absent if MIG devices are not advertised.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub mig_strategy: Option<MigStrategy>,

    /// GPUs of the node, ordered by index, including those that have been missing for less than 15 minutes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub gpus: Vec<GpuDevice>,

    /// Resources that the agent advertises, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_RESOURCES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub resources: Vec<ResourceStatus>,

    /// Containers that hold devices, in order; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_HOLDERS))]
    pub holders: Vec<Holder>,

    /// True if there are more holders than `holders` lists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,

    /// Devices that keep their present sharing, name or place until their last holder ends, because the configuration
    /// in force changes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub waiting: Vec<WaitingDevice>,

    /// MPS control daemons that run on the node or should run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub mps_daemons: Vec<MpsDaemon>,

    /// Hash of the configuration in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config_hash: Option<String>,

    /// `spec.step.startedAt` of the last step that the agent finished: it was Ready with `spec.config` in force. Stays
    /// when the agent is not Ready later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub finished_step: Option<Time>,

    /// `spec.change.since` of the last change that the agent finished: nothing that it approved is left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub finished_change: Option<Time>,

    /// Configuration that the agent rejected. The previous configuration stays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_config: Option<RejectedConfiguration>,

    /// Conditions of the node. The agent writes `Ready`, `ConfigurationAccepted`, `Registered`, `DevicesOffered`, `Waiting`,
    /// `MigLayout` and `DriverAvailable`; the operator writes `Conflict`, `FactLabels` and `RecoveredAnnotation`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Agent process that writes the status of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Name of the agent's pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// UID of the agent's pod.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// Policy whose DaemonSet the pod belongs to; absent for discovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub policy: Option<String>,
    /// Task of the agent on the node.
    pub mode: AgentMode,
    /// Version of the agent.
    #[schemars(length(max = 64))]
    pub version: String,
    /// Versions of the configuration document that the agent can read.
    #[schemars(length(max = 16))]
    pub config_versions: Vec<i32>,
    /// Fields of the configuration document that the agent knows, such as `resources.sharing.replicas`, and values of its
    /// enums, such as `resources.sharing.strategy=Mps`. The operator writes no document with others. If empty, the agent
    /// does not report them, and the operator writes any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512), inner(length(max = 128)))]
    pub config_fields: Vec<String>,
}

/// Task of an agent on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AgentMode {
    /// Only reports hardware.
    #[default]
    Discovery,
    /// Runs the device plugin.
    DevicePlugin,
    /// A task that this version does not know.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}
