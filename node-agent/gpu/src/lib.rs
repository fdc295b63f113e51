//! What can be computed about the GPUs of a node without touching them: names, resources, device ids, choices.
//!
//! This crate does no IO; `gpunode-agent` fills in the [`Inventory`] and carries out what is decided here.

mod inventory;
mod prefer;
mod product;
mod resources;

pub use inventory::{Architecture, Gpu, Inventory, Link, LinkLevel, MigMode};
pub use resources::{Device, Error, Resource, ResourceGpu, resources};
