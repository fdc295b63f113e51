//! What can be computed about the GPUs of a node without touching them: names, resources, device ids, choices.
//!
//! This crate does no IO; `gpunode-agent` fills in the [`Inventory`] and carries out what is decided here.

mod allocator;
mod choice;
mod desired;
mod device;
mod health;
mod inventory;
mod product;
mod share;
mod xid;

pub use allocator::{
    AllocatedDevices, AllocationRefusal, Allocator, ContainerShares, DeviceHolder, KubeletObservation, PendingChange,
    PreferredAllocation,
};
pub use choice::{
    CandidateDevice, CandidatePool, ChoiceScore, Criterion, GpuChoice, GpuLoad, PairScores, best_choices, choose,
};
pub use desired::{
    DesiredDevice, DesiredDevices, DesiredDevicesError, DeviceProblem, DeviceProblemKind, ResourceRules,
    desired_devices,
};
pub use device::Device;
pub use gpunode_config::{Allocation, Architecture};
pub use gpunode_crds::FaultReason;
pub use health::{DeviceFaults, Fault, FaultTransition, GpuProbe, HealthObservation, MigProbe, ProbeResult, RunId};
pub use inventory::{Fabric, Gpu, GpuMode, Inventory, Link, LinkLevel, MigAttributes, MigDevice, MigMode};
pub use product::product_label;
pub use share::{AdvertisedResource, AdvertisedShare, Assignment, DeviceSharing, device_of};
pub use xid::{Resolution, describe as describe_xid};
