//! Pods that must go: holders of unhealthy devices are evicted, pods that a node rejected are deleted, and pods that do not tolerate
//! a new taint are waited for. Which pods these are is decided by `gpunode-plan`. All tasks have workers of their own, so that no
//! node waits for a slow answer about a pod.
//!
//! | module | what it does |
//! |---|---|
//! | `evictor` | task: evicts holders of unhealthy devices |
//! | `refusals` | refused evictions that people were told of |
//! | `rejected_pods` | the rejected pods of the cluster |
//! | `deleter` | task: deletes rejected pods while a policy wants that |
//! | `drain_watcher` | task: tells when no pod is left that does not tolerate a new taint |
//! | `context` | inputs and helpers of these tasks |

mod context;
mod deleter;
mod drain_watcher;
mod evictor;
mod refusals;
mod rejected_pods;

pub use context::PodContext;
pub use deleter::RejectedPodDeleter;
pub use drain_watcher::DrainWatcher;
pub use evictor::PodEvictor;
pub use refusals::AnnouncedRefusals;

#[cfg(test)]
mod tests;
