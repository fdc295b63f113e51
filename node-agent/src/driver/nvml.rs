//! Calls NVML; no other module does. Each function except [`events::watch`] opens a session and closes it. Every call here
//! blocks.
//!
//! | module | what it does |
//! |---|---|
//! | `session` | opens sessions |
//! | `lookup` | looks GPUs and MIG devices up |
//! | `reading` | reads the GPUs, and how busy they are |
//! | `mig` | reads MIG devices |
//! | `mig_state` | reads modes, profiles and instances, for layouts |
//! | `mig_change` | changes modes and instances |
//! | `profile` | names MIG profiles |
//! | `links` | reads the links between GPUs |
//! | `probe` | probes GPUs for faults |
//! | `processes` | lists the processes on the GPUs, and what they use |
//! | `events` | waits for driver events |
//! | `modes` | reads and sets the compute mode |
//! | `compute_mode` | the compute modes |
//! | `instances` | lists MIG instances without the driver |
//! | `capabilities` | finds the device nodes of MIG instances |
//! | `elf` | checks that a library's file is complete |
//! | `error` | errors of NVML calls |
//! | `raw` | calls that nvml-wrapper lacks, the only unsafe code |

mod capabilities;
mod compute_mode;
mod elf;
mod error;
pub mod events;
mod instances;
mod links;
mod lookup;
mod mig;
mod mig_change;
mod mig_state;
mod modes;
pub mod probe;
mod processes;
mod profile;
mod raw;
mod reading;
mod session;
#[cfg(test)]
pub mod tests;

pub use capabilities::Capabilities;
pub use compute_mode::ComputeMode;
pub use error::DriverError;
pub use instances::instances;
pub use lookup::GpuAddress;
pub use mig_change::{
    ChangeEnd, MigChangeError, answer_name, change_layout, has_persistence, pids_on, read_mig_state,
    restore_persistence,
};
pub use modes::{compute_mode, set_compute_mode};
pub use processes::{DriverProcess, SampleTimes, process_use, processes};
pub use reading::{DriverReading, read, utilisation};
