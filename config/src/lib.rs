//! `AgentConfig`: how the device plugin of one node behaves.
//!
//! The same type is `spec.devicePlugin` of a `GpuNodePolicy`, the document in `GpuNode.spec` and the file that
//! `gpunode-agent run --config FILE` takes. This crate holds the type, its strict loader, its defaults and its
//! validation. It does no IO.

mod agent_config;
mod document;
mod load;
mod validate;

pub use agent_config::{
    AgentConfig, DEFAULT_RESOURCE, DeviceSelector, MAX_REPLICAS, ResourceConfig, Sharing, SharingStrategy,
};
pub use document::{CONFIG_VERSION, Document};
pub use load::{LoadError, MAX_DOCUMENT_BYTES, load, load_strict, unknown_field_message};
pub use validate::{Problem, is_extended_resource_name};
