//! `AgentConfig`: the configuration of the device plugin on one node.
//!
//! The same type is `spec.devicePlugin` of a `GpuNodePolicy`, the document in `GpuNode.spec` and the file that
//! `gpunode-agent run --config FILE` takes. This crate holds the type, its strict parser, its defaults and its
//! validation, and the paths on a node that flags name. It does no IO.
//!
//! | module | what it does |
//! |---|---|
//! | `agent_config` | the configuration and its resources |
//! | `device_list` | ways in which containers get their devices |
//! | `device_selector` | selection of GPUs and MIG devices, MIG strategy |
//! | `mig_layout` | layouts of MIG instances |
//! | `mig_selection` | the group of layouts that selects a GPU |
//! | `mig_parted` | layouts from a file of NVIDIA's mig-parted, and back |
//! | `nvidia_plugin` | the configuration of NVIDIA's device plugin: file, flags, environment |
//! | `companion` | resources whose devices are files of the node |
//! | `companion_root` | folders whose files companions may hand out |
//! | `allocation` | policies that choose a container's GPUs |
//! | `sharing` | time slicing, memory units and MPS |
//! | `health` | rules for XIDs and recovery |
//! | `usage` | figures of what containers use |
//! | `xid` | NVIDIA's XID catalog: meaning, resolution, effect on health |
//! | `memory` | amounts of memory |
//! | `validate` | checks that a schema cannot express |
//! | `load` | strict parsing of YAML |
//! | `fields` | the fields that a version knows, and those that a document has |
//! | `yaml_value` | YAML of other programs, with a bound on aliases |
//! | `document` | the configuration as text, with its hash |
//! | `host_path` | paths on a node, as flags name them |

mod agent_config;
mod allocation;
mod companion;
mod companion_root;
mod device_list;
mod device_selector;
mod document;
mod fields;
#[cfg(test)]
mod fuzz;
mod health;
mod host_path;
mod load;
mod memory;
mod mig_layout;
mod mig_parted;
mod mig_selection;
mod nvidia_plugin;
mod sharing;
mod usage;
mod validate;
mod xid;
mod yaml_value;

pub use agent_config::{AgentConfig, ResourceConfig};
pub use allocation::Allocation;
pub use companion::{
    CompanionConfig, CompanionDeviceNodes, CompanionGroup, CompanionInjection, CompanionMounts, CompanionVariable,
    CompanionVariableValue, MAX_COMPANION_PATH,
};
pub use companion_root::CompanionRootList;
pub use device_list::{DeviceIdStrategy, DeviceListStrategy};
pub use device_selector::{Architecture, DeviceKind, DeviceSelector, MigConfig, MigStrategy};
pub use document::{CONFIG_VERSION, ConfigDocument};
pub use fields::{fields_of, known_fields};
pub use health::{HealthRules, IgnorableFault, Recovery};
pub use host_path::{DriverRootList, HostPath, HostPathError};
pub use load::{LoadError, MAX_DOCUMENT_BYTES, load, nearest_name, unknown_field_message};
pub use memory::{MEMORY_RULE, MemoryMiB};
pub use mig_layout::{MigGpuSelector, MigGroup};
pub use mig_parted::{MigPartedError, mig_parted_file, mig_parted_layouts};
pub use mig_selection::{GroupChoice, SelectableGpu, pci_device_id, product_matches};
pub use nvidia_plugin::{
    DiscardedParts, ImportRemark, NvidiaPluginError, NvidiaPluginImport, PluginContainer, PluginPaths,
    PluginPathsError, is_nvidia_plugin_file, nvidia_plugin_config,
};
pub use sharing::{DeviceReplicas, Placement, Sharing, SharingStrategy};
pub use usage::UsageConfig;
pub use validate::{FieldProblem, is_dns_subdomain, is_name_part};
pub use xid::{Resolution, describe_xid, is_xid_fault};
pub use yaml_value::yaml_value;
