//! Leader election by a `coordination.k8s.io` Lease: one replica writes at a time.
//!
//! A leadership ends by this machine's monotonic clock, counted from before the request that renewed the Lease was sent. Every
//! other replica counts the same time from when it observed the renewal, which is later. So a leadership has always ended
//! before another replica can take the Lease, whatever the wall clocks say and however long this process was stopped.
//!
//! | module | what it does |
//! |---|---|
//! | `leadership` | the right to write, which ends unless it is renewed |
//! | `cache_state` | state of the caches, without which a process must not lead |
//! | `lease_record` | a Lease that another process holds |
//! | `installations` | other installations of gpunode in the cluster |
//! | `elector` | takes, renews and releases the Lease |
//! | `guarded_client` | client that sends a write only while this process leads |

mod cache_state;
mod elector;
mod guarded_client;
mod installations;
mod leadership;
mod lease_record;

pub use cache_state::{CacheState, CacheView};
pub use elector::LeaderElector;
pub use guarded_client::{NotLeader, guarded_client};
pub use installations::OtherLeader;
#[cfg(test)]
pub use leadership::LEASE_DURATION;
pub use leadership::Leadership;
