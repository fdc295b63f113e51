//! The Kubernetes API of gpunode: `GpuNodePolicy`, which a platform team writes, and `GpuNode`, through which the operator
//! and the agent of a node communicate.
//!
//! Names and types are settled in `docs/adr/0001-api.md`. Every list, map and string has a bound, because the API server
//! charges CEL rules for the worst case. This crate does no IO.
//!
//! | module | what it does |
//! |---|---|
//! | `policy` | `GpuNodePolicy`: the spec |
//! | `selector` | selection of nodes by labels and by GPUs |
//! | `taint` | taints of a policy |
//! | `rollout` | pace of a change of configuration |
//! | `drain` | drain of a node for a change that touches GPUs in use |
//! | `policy_status` | status of a policy |
//! | `gpu_node` | `GpuNode`: spec and status |
//! | `configuration` | configuration of an agent, and its turn in a rollout |
//! | `gpu_device` | GPUs, MIG devices and links in the status of a node |
//! | `mig_status` | layout of MIG instances on a GPU |
//! | `health` | health of a device |
//! | `resources` | advertised resources, holders and waiting devices |
//! | `runtime_status` | the container runtime, CDI and SELinux of a node |
//! | `usage_report` | report of what containers use, from an agent to the kubectl plugin |
//! | `reason` | types and reasons of conditions |
//! | `untimed_condition` | a condition before its transition time is known |
//! | `newer_value` | values of enums that a newer agent writes |
//! | `keys` | labels, annotations and taints on Nodes |
//! | `conditions` | schemas of times and conditions |
//! | `label_map` | schemas of label maps |
//! | `name_list` | lists of names in messages |
//! | `line_break` | lines of a limited width |
//! | `manifest` | the CRDs as YAML |

mod conditions;
mod configuration;
mod drain;
mod gpu_device;
mod gpu_node;
mod health;
mod keys;
mod label_map;
mod line_break;
mod manifest;
mod mig_status;
mod name_list;
mod newer_value;
mod policy;
mod policy_status;
mod reason;
mod resources;
mod rollout;
mod runtime_status;
mod selector;
mod taint;
mod untimed_condition;
mod usage_report;

pub use configuration::{
    ChangeState, Configuration, ConfigurationStep, DisruptiveChange, DrainFailure, MAX_DRAIN_MESSAGE,
    MAX_FAILED_MESSAGE, RejectedConfiguration,
};
pub use drain::{DrainPolicy, DrainRules, EvictablePods, PodSelector};
pub use gpu_device::{
    Fabric, GpuDevice, GpuLink, GpuMode, LastXid, LinkLevel, MigDevice, MigEngines, MigMode, MigSlices, Vgpu,
};
pub use gpu_node::{Agent, AgentMode, GpuNode, GpuNodeSpec, GpuNodeStatus, MAX_HOLDERS};
pub use gpunode_config::{Architecture, MigStrategy, SharingStrategy};
pub use health::{DeviceHealth, FaultGrade, FaultReason, HealthState};
pub use keys::{
    AGENT_FIELD_MANAGER, AUTOSCALER_STARTUP_PREFIX, COMPANION_COUNT_PREFIX, DRA_DRIVER, GOVERNED_LABEL, GROUP,
    IGNORE_LABEL, MAX_LABEL_VALUE, MPS_LABEL, NOT_READY_TAINT, OPERATOR_FIELD_MANAGER, OWNED_ANNOTATION,
    POLICY_LABEL_PREFIX, PRODUCT_COUNT_PREFIX, RECONFIGURING_TAINT, RECOVERED_ANNOTATION, RELEASE_LABEL,
    UNHEALTHY_TAINT, is_gpunode_key, is_kubernetes_key, policy_label,
};
pub use line_break::wrapped;
pub use manifest::{Manifest, ManifestError, manifests};
pub use mig_status::{MAX_LAYOUT_TEXT, MAX_MIG_MESSAGE, MigPhase, MigReason, MigStatus};
pub use name_list::{named, plural};
pub use policy::{GpuNodePolicy, GpuNodePolicySpec, OnConflict, PolicyMode};
pub use policy_status::{
    GpuNodePolicyStatus, LayoutPreview, MAX_FAILURES, MAX_LAYOUT_PREVIEWS, MAX_PREVIEW, MAX_WAITING, NodeCounts,
    NodeFailure, NodePreview, NodeWaiting,
};
pub use reason::{ConditionType, EVERY_GPU_ANSWERS, Reason, SERVED_BY_DRA};
pub use resources::{
    AdvertisedDevice, Holder, MAX_DEVICE_NAME, MAX_DEVICES, MAX_HOLDER_DEVICE, MAX_RESOURCES, MAX_WAITING_MESSAGE,
    MAX_WAITING_PODS, MpsDaemon, MpsDaemonState, ResourceStatus, WaitingDevice,
};
pub use rollout::RolloutPace;
pub use runtime_status::{
    CdiMode, MAX_CDI_SPEC_DIRS, MAX_RUNTIME_HANDLERS, MAX_RUNTIME_NAME, MAX_RUNTIME_PATH, MAX_RUNTIME_PROBLEM,
    RuntimeStatus, SelinuxMode,
};
pub use selector::{GpuSelector, NodeSelector, NodeSelectorRequirement, SelectorOperator};
pub use taint::{PolicyTaint, PreviewTaint, StartupTaint, TaintEffect, UnhealthyTaint};
pub use untimed_condition::UntimedCondition;
pub use usage_report::{ContainerUsage, MAX_USAGE_ENTRIES, UsageReport};
