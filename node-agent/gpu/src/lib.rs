//! What can be computed about the GPUs of a node without touching them: names, resources, device ids, choices.
//!
//! This crate does no IO; `gpunode-agent` fills in the [`Inventory`] and carries out what is decided here.

mod device;
mod inventory;
mod ledger;
mod product;
mod share;
mod wanted;

pub use device::Device;
pub use gpunode_config::Architecture;
pub use inventory::{Fabric, Gpu, GpuMode, Inventory, Link, LinkLevel, MigAttributes, MigDevice, MigMode};
pub use ledger::{Granted, Holder, Holding, Ledger, Observation, Refusal, Waiting};
pub use product::product_label;
pub use share::{Assignment, DeviceSharing, ResourceList, Share, device_of};
pub use wanted::{DeviceProblem, Error, ProblemKind, Rules, Wanted, WantedDevice, wanted};
