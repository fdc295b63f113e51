//! Faults of devices, and the evidence that ends them: a pure state machine.
//!
//! Each fault stands for itself: a milder one does not replace a graver one, and each ends by its own evidence, never by
//! the passing of time. A fault has a grade, which says what follows from it. A fault of a GPU counts for its MIG devices
//! too; a fault of a MIG device counts for that device alone.
//!
//! | module | what it does |
//! |---|---|
//! | `faults` | the faults of a node's devices: which begin and end with an observation |
//! | `fault` | one fault of one device, its resolution, and the text that says when it clears |
//! | `last_xids` | the last XIDs of each GPU, also those that make no device unhealthy |
//! | `observation` | everything that can begin or end a fault |
//! | `probe` | one look at a GPU: the faults it shows, and those it disproves |
//! | `recovery_action` | recovery actions of the driver: grade, resolution, texts |

mod fault;
mod faults;
mod last_xids;
mod observation;
mod probe;
mod recovery_action;

pub use fault::{Fault, FaultTransition};
pub use faults::DeviceFaults;
pub use last_xids::LastXids;
pub use observation::{HealthObservation, RunId};
pub use probe::{GpuProbe, MigProbe, ProbeResult};
pub use recovery_action::request as recovery_request;

#[cfg(test)]
mod tests;
