//! Leader election by a `coordination.k8s.io` Lease: one replica writes at a time.
//!
//! A leadership ends by this machine's monotonic clock, counted from before the request that renewed the Lease was
//! sent. Every other replica counts a longer time from when it observed the renewal, which is later. So a leadership
//! has always ended before another replica can take the Lease, whatever the wall clocks say and however long this
//! process was stopped.
//!
//! The holder is known by the name of its pod. A process may take a Lease of its own name at once: its container starts
//! only after the process before it has ended, and no two pods of a namespace have one name.
//!
//! | module | what it does |
//! |---|---|
//! | `leadership` | the right to write, which ends unless it is renewed |
//! | `lease_durations` | durations of the Lease, checked against each other |
//! | `cache_state` | state of the caches, without which a process must not lead |
//! | `lease_record` | a Lease that another process holds |
//! | `installations` | other installations of gpunode in the cluster |
//! | `lease_watch` | tells a standby about each change of its Lease |
//! | `elector` | takes, renews and releases the Lease |
//! | `guarded_client` | client that sends a write only while this process leads |

mod cache_state;
mod elector;
mod guarded_client;
mod installations;
mod leadership;
mod lease_durations;
mod lease_record;
mod lease_watch;

pub use cache_state::{CacheState, CacheView};
pub use elector::{ElectionSettings, LeaderElector};
pub use guarded_client::{NotLeader, guarded_client};
pub use installations::OtherLeader;
pub use leadership::{Leadership, LeadershipOwner};
#[cfg(test)]
pub use lease_durations::LEASE_DURATION;
pub use lease_durations::LeaseDurations;
