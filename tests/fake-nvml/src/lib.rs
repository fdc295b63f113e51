//! A simulated `libnvidia-ml.so.1`: NVML's C interface over a scenario file instead of a driver.
//!
//! Programs load it in place of the real library and cannot tell the difference in what gpunode
//! needs: inventory, MIG, PCI and NUMA, links, memory, processes, health and events.
//! Functions that are not simulated answer `NOT_SUPPORTED`. The hardware comes from the scenario file beside the library
//! and faults from the state file, which changes while the library is loaded (`gpunode-scenario`).
//!
//! Each module answers one part of `nvml.h` in terms of Rust values; `ffi` alone sees pointers.
//! The answers follow `nvml.h`.

mod events;
mod fabric;
mod ffi;
mod handle;
mod health;
mod inventory;
mod library;
mod links;
mod mig;
mod mig_changes;
mod modes;
mod node;
mod resource_manager;
mod usage;
