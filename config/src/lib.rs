//! `AgentConfig`: how the device plugin of one node behaves.
//!
//! The same type is `spec.devicePlugin` of a `GpuNodePolicy`, the document in `GpuNode.spec` and the file that
//! `gpunode-agent run --config FILE` takes. This crate holds the type, its strict loader, its defaults and its
//! validation. It does no IO.

mod agent_config;
mod allocation;
mod device_selector;
mod document;
mod health;
mod load;
mod memory;
mod sharing;
mod validate;

pub use agent_config::{AgentConfig, ResourceConfig};
pub use allocation::Allocation;
pub use device_selector::{Architecture, DeviceKind, DeviceSelector, MigConfig, MigStrategy};
pub use document::{CONFIG_VERSION, ConfigDocument};
pub use health::{HealthRules, Recovery};
pub use load::{LoadError, MAX_DOCUMENT_BYTES, load, nearest_name, unknown_field_message};
pub use memory::{MEMORY_RULE, MemoryMiB};
pub use sharing::{DeviceReplicas, Placement, Sharing, SharingStrategy};
pub use validate::FieldProblem;
