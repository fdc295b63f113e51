//! The devices of the node: their holders, their lists for the kubelet, and their allocation to containers.
//!
//! | module | what it does |
//! |---|---|
//! | `manager` | allocates devices, behind one lock |
//! | `state` | state of all devices, pure |
//! | `served` | detects that another plugin serves a registered resource, pure |
//! | `advertised` | the device list of one resource |
//! | `companion_injection` | device nodes, mounts and environment of a container that gets companions |
//! | `injection` | ways in which containers get their devices, pure |
//! | `allocation` | environment, mounts and device nodes of a container |

pub mod advertised;
pub mod allocation;
mod companion_injection;
pub mod injection;
pub mod manager;
pub mod served;
pub mod state;
