//! Hardware of a simulated GPU node, and its current state.
//!
//! Both are in files beside the simulated NVML library. The *scenario* ([`Scenario`],
//! [`SCENARIO_FILE`]) is the hardware and does not change while the node runs. The *state*
//! ([`State`], [`STATE_FILE`]) is what happens to it: faults, XIDs, processes; tests change it
//! through [`StateFile`] while other processes have the library loaded. The *driver state*
//! ([`DriverState`], [`DRIVER_FILE`]) is what programs set through the library, until a reboot: modes and MIG instances.
//!
//! This crate knows files and hardware tables, nothing of the C interface.

#![forbid(unsafe_code)]

mod board;
mod capabilities;
mod driver_files;
mod driver_state;
mod elf_library;
mod gpu;
mod kernel_files;
mod mig;
mod mig_profile;
mod mig_state;
mod return_code;
mod scenario;
mod shared_file;
mod state;
mod state_file;
mod topology;
mod watch;

pub use board::{Architecture, Board, BoardNvLink, Brand};
pub use driver_files::HOOK_PROGRAM;
pub use driver_state::{ComputeMode, DRIVER_FILE, DriverState, GpuModes};
pub use elf_library::shared_library;
pub use gpu::{Gpu, NvLink, NvLinkEnd};
pub use kernel_files::{DeviceNode, KernelFiles, MakeNode};
pub use mig::{ComputeInstance, GpuInstance, MigGroup};
pub use mig_profile::{ComputeProfile, Engines, MigProfile};
pub use mig_state::{ComputeInstanceRecord, GpuInstanceRecord, InstanceKey, MigState};
pub use return_code::{ReturnCode, UnknownReturnCode};
pub use scenario::{AdditionalBoards, Fabric, MigUuids, SCENARIO_FILE, Scenario, ScenarioError, Virtualization};
pub use state::{
    EccCounts, Event, FabricState, FailureAt, GpuProcess, GpuState, OpenHandle, ProcessKind, RecoveryAction,
    RetiredPages, RowRemap, State,
};
pub use state_file::{STATE_FILE, StateError, StateFile};
pub use topology::{DGX1_VOLTA_LINKS, PcieLevel, Topology};
pub use watch::FolderWatch;
