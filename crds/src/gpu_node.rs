//! `GpuNode`: one per node that has a GPU or is governed by a `devicePlugin`. The operator writes `spec`, the agent of the
//! node writes `status`, but for two conditions that are the operator's.

#![allow(clippy::duplicated_attributes, reason = "each printer column has a type and a path")]

use crate::{GpuDevice, Vgpu};
use gpunode_config::{MigStrategy, SharingStrategy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most entries of `status.holders`.
pub const MAX_HOLDERS: usize = 256;

/// Most devices of a resource, most devices that wait, and most MPS control daemons: more than a node has.
pub const MAX_DEVICES: usize = 64;

/// Most characters of what a device waits for.
pub const MAX_WAITING_MESSAGE: usize = 512;

/// Most pods that `status.waiting` names for one device.
pub const MAX_WAITING_PODS: usize = 16;

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
    doc = "The GPUs of one node: what the operator asks of the agent there (spec, written by the operator alone) and what the agent found and did (status, written by that agent; but for the conditions `Conflict` and `FactLabels`, which are the operator's).",
    printcolumn(name = "Hardware", type_ = "string", json_path = ".status.hardware"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.config.policy"),
    printcolumn(name = "In Use", type_ = "string", json_path = ".status.inUse"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
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
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// The configuration that the agent is to put in force. Absent while no policy with a `devicePlugin` governs the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Configuration>,

    /// There while the change to `config` counts against its policy's `rollout.maxUnavailable`: the node was Ready when it
    /// was written, and does not have it in force yet. Agents do not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<ConfigurationStep>,
}

/// The turn of a node in a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStep {
    /// When the configuration was written.
    #[schemars(schema_with = "crate::conditions::time")]
    pub started_at: Time,
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

    /// `Ready`, `ConfigurationAccepted`, `Registered`, `DevicesOffered` and `DriverAvailable` by the agent, `Conflict` and
    /// `FactLabels` by the operator.
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

/// One resource that the agent offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Name of the extended resource.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Shares in the list that the kubelet was given.
    pub capacity: i32,
    /// Those of them that are healthy.
    pub allocatable: i32,
    /// Whether the kubelet has taken the list.
    pub registered: bool,
    /// How its devices are shared; absent where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingStrategy>,
    /// Whether the name says that its devices are shared: it ends with `.shared`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renamed: bool,
    /// Free shares that the kubelet was told are unhealthy, so that the scheduler sees no more free than fits on one device.
    /// They come back when something is freed. Left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<i32>,
    /// The devices in the list, full GPUs first, each ordered by index; at most 64. A device of no resource is not offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub devices: Vec<OfferedDevice>,
}

/// A device in the list of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct OfferedDevice {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// Its shares: 1 for a whole one, else replicas or units.
    pub shares: i32,
    /// Those of them that are healthy.
    pub healthy: i32,
}

/// A container that holds a device, from the kubelet's `PodResources` API.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// Name of the container.
    #[schemars(length(max = 63))]
    pub container: String,
    /// The resource that it asked for.
    #[schemars(length(max = 253))]
    pub resource: String,
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// How many shares of the device it holds: 1 for a whole one, else replicas or units.
    pub count: i32,
}

/// A device that has to wait before it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingDevice {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// What it waits for, in words.
    #[schemars(length(max = MAX_WAITING_MESSAGE))]
    pub message: String,
    /// The pods that hold it, as `NAMESPACE/NAME`, ordered; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING_PODS), inner(length(max = 317)))]
    pub pods: Vec<String>,
}

/// The MPS control daemon of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MpsDaemon {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// What it does.
    pub state: MpsDaemonState,
}

/// What an MPS control daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MpsDaemonState {
    /// It has to run and does not answer.
    NotAnswering,
    /// It answers.
    Answering,
    /// It is no longer needed and on its way out.
    Stopping,
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
