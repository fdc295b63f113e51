//! The simulated library, loaded through nvml-wrapper as the agent loads the real one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod boards;
mod c_interface;
mod events;
mod faults;
mod go_nvml;
mod health;
mod links;
mod mig;
mod mig_changes;
mod modes;
mod node;
mod raw;
mod raw_mig;
mod thread;
mod wrapper_bugs;
