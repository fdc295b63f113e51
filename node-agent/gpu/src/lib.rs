//! Everything that can be computed about the GPUs of a node without touching them.
//!
//! This crate does no IO: `gpunode-agent` fills in the [`Inventory`] and carries out the decisions. The operator and the
//! kubectl plugin use it for forecasts.
//!
//! | module | what it does |
//! |---|---|
//! | `hardware` | the GPUs and MIG devices of a node |
//! | `sharing` | shares of a device: their number, their ids, the lists that the kubelet gets |
//! | `desired` | configuration and hardware to desired devices: what each becomes, which problems there are |
//! | `companion` | devices that are files of the node |
//! | `choice` | the best set of GPUs for a container, by their links |
//! | `allocator` | who holds what, what is advertised, what a container gets |
//! | `health` | faults of devices and the evidence that ends them |
//! | `mig` | layouts of MIG instances: from what is there to what is wanted |
//! | `usage` | what containers use of the devices that they hold, beside what they were given |
//! | `injection` | decides if containers get the GPUs that the kubelet allocates |
//! | `diagnosis` | findings about a node, with what to do |

mod allocator;
mod choice;
mod companion;
mod desired;
mod diagnosis;
mod hardware;
mod health;
mod injection;
mod mig;
mod sharing;
mod usage;

pub use allocator::{
    AllocatedDevices, AllocationRefusal, Allocator, ContainerShares, DeviceHolder, KubeletObservation, PendingChange,
    PreferredAllocation,
};
pub use choice::{
    CandidateDevice, CandidatePool, ChoiceScore, Criterion, GpuChoice, GpuLoad, PairScores, best_choices, choose,
};
pub use companion::{
    CompanionDevice, CompanionFile, CompanionFiles, DesiredCompanion, DesiredCompanions, MatchedFiles,
    desired_companions, is_companion,
};
pub use desired::{
    DesiredDevice, DesiredDevices, DesiredDevicesError, DeviceProblem, DeviceProblemKind, ResourceRules,
    desired_devices, desired_devices_beside, fits_list,
};
pub use diagnosis::{Finding, FindingSeverity, NodeSurroundings, diagnose, findings_table, is_without_gpus};
pub use gpunode_config::{Allocation, Architecture};
pub use gpunode_crds::{
    Fabric, FaultGrade, FaultReason, GpuLink, GpuMode, LinkLevel, MigDevice, MigEngines, MigMode, MigSlices,
};
pub use hardware::{
    ComputeInstance, Device, FabricRegistration, Gpu, GpuInstance, GpuLayout, GpuMigState, GpuVirtualization,
    Inventory, MigInstance, product_label,
};
pub use health::{
    DeviceFaults, Fault, FaultTransition, GpuProbe, HealthObservation, LastXids, MigProbe, ProbeResult, RunId,
    recovery_request,
};
pub use injection::{InjectionWays, injection, injects_by_cdi_alone, unread_cdi_file};
pub use mig::{
    AttemptHistory, AttemptResult, ChangeRecord, DeviceHold, DeviceUse, FailedDrain, LayoutHolds, LayoutTarget,
    MigAttempt, MigDecision, MigFailure, MigInputs, MigRecord, MigStep, MigWork, MigWorkKind, UsedDevices, decide,
    forget, next_step,
};
pub use sharing::{AdvertisedResource, AdvertisedShare, Assignment, DeviceSharing, device_of};
pub use usage::{
    IdleClocks, ListedProcess, NotTold, ProcessOwner, ProcessesOnGpu, SmSample, UsageHolder, UsageInputs,
    container_usage, usage_holders,
};
