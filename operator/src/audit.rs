//! Audit of writes that take something away from somebody: one log line and one event for each policy and cause, with counts.
//!
//! | module | what it does |
//! |---|---|
//! | `trail` | takes interventions from all tasks |
//! | `summary` | sums up the interventions of one policy and cause |
//! | `reporter` | task: logs each summary and sends its event |

mod reporter;
mod summary;
mod trail;

pub use reporter::AuditReporter;
pub use trail::AuditTrail;
