//! Desired devices: what each device of a node becomes under a configuration, before anything is allocated.
//!
//! | module | what it does |
//! |---|---|
//! | `node` | all entries of a configuration with all devices of a node: the desired devices |
//! | `resource` | one entry of `resources`: sharing, problems and rules of the devices that it selects |
//! | `selector` | the devices that an entry or `replicasPerDevice` selects |
//! | `list_size` | the limit of the kubelet for a device list |
//! | `devices` | desired devices, and the problems of those that a resource cannot have |
//! | `rules` | rules of a resource for requests and for the choice of devices |
//! | `error` | reasons to reject a configuration |

mod devices;
mod error;
mod list_size;
mod node;
mod resource;
mod rules;
mod selector;

pub use devices::{DesiredDevice, DesiredDevices, DeviceProblem, DeviceProblemKind};
pub use error::DesiredDevicesError;
pub use list_size::{fits_bytes, fits_list, list_bytes, most_devices};
pub use node::{desired_devices, desired_devices_beside};
pub use rules::ResourceRules;

#[cfg(test)]
mod tests;
