//! The container runtime of the node and its settings that decide if containers get GPUs.
//!
//! | module | what it does |
//! |---|---|
//! | `runtime_watch` | reads the settings again when they may have changed, and publishes them |
//! | `node_runtime` | reads runtime, SELinux and the driver's root once |
//! | `cri_client` | asks the runtime over its socket |
//! | `settings` | takes the settings out of the runtime's answers |
//! | `cri_api` | generated: the Container Runtime Interface v1 |

mod cri_api;
mod cri_client;
pub mod node_runtime;
pub mod runtime_watch;
mod settings;
