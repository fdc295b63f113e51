//! Leader election: one replica writes at a time.
//!
//! | module | what it does |
//! |---|---|
//! | `elector` | takes and renews the Lease |
//! | `guarded_client` | lets a write go only while this process leads |

mod elector;
mod guarded_client;

#[cfg(test)]
pub use elector::LEASE_DURATION;
pub use elector::{Candidate, Claim};
pub use guarded_client::{NotLeader, guarded_client};
