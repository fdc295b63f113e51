//! State of the caches, as far as the election depends on it.

/// State of this process's caches: who cannot see the cluster must not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// A first list is missing, or a kind cannot be listed or watched for a minute.
    Cold,
    /// The caches follow the cluster.
    Warm {
        /// True if nothing of gpunode exists: no node has a record, and there is no `GpuNode`.
        is_first_install: bool,
    },
}

/// Returns the state at this moment.
pub type CacheView = Box<dyn Fn() -> CacheState + Send + Sync>;
