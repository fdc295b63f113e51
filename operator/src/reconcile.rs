//! The reconciler: the one task that changes the index and computes writes.
//!
//! | module | what it does |
//! |---|---|
//! | `reconciler` | task: applies messages, sees to their consequences, computes writes while this process leads |
//! | `shared_index` | the index, which one task changes and others read |
//! | `summary_publisher` | publishes the index in numbers, which probes, metrics and the election read |
//! | `status_pace` | limits how often the status of a policy is written |

mod reconciler;
mod shared_index;
mod status_pace;
mod summary_publisher;

pub use reconciler::{Reconciler, ReconcilerOutputs};
pub use shared_index::{IndexOwner, IndexReader};
