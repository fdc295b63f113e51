//! Pods that must go: holders of unhealthy devices are evicted, pods that a node rejected are deleted. Which pods these are is
//! decided by `gpunode-plan`. Both tasks have workers of their own, so that no node waits for a slow answer about a pod.
//!
//! | module | what it does |
//! |---|---|
//! | `evictor` | task: evicts holders of unhealthy devices |
//! | `rejected_pods` | the rejected pods of the cluster |
//! | `deleter` | task: deletes rejected pods while a policy wants that |
//! | `context` | inputs and helpers of both tasks |

mod context;
mod deleter;
mod evictor;
mod rejected_pods;

pub use context::PodContext;
pub use deleter::RejectedPodDeleter;
pub use evictor::PodEvictor;

#[cfg(test)]
mod tests;
