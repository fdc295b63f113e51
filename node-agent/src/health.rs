//! Follows the health of the node's devices: events of the driver, probes, MPS daemons and the recovery annotation. Publishes
//! the result; the device manager allocates nothing of a faulty device, and status reports it.
//!
//! | module | what it does |
//! |---|---|
//! | `monitor` | follows events, probes, daemons and the annotation |
//! | `node_health` | the published health of all devices of the node |
//! | `allocations` | what the monitor needs from the device manager, as a trait |
//! | `probe_loop` | probes the GPUs on a thread of its own |
//! | `probe_results` | fills in links that went down and processes of pods |
//! | `recent_xids` | recent XIDs, whose consequences a probe may not show yet |
//! | `devices` | names of devices, and the pods that hold them |
//! | `daemons` | finds MPS control daemons that died |
//! | `store` | saves faults on disk |
//! | `announce` | announces changes of faults: log lines and events |
//! | `fault_text` | text of each fault |

pub mod allocations;
mod announce;
mod daemons;
mod devices;
pub mod fault_text;
mod monitor;
pub mod node_health;
mod probe_loop;
mod probe_results;
mod recent_xids;
pub mod store;

pub use monitor::{HealthMonitor, MonitorInputs};
