//! The best choices of shares for a container.

use super::{
    columns::Columns,
    pool::CandidatePool,
    search::{Criterion, FoundSet, RankKey, best_sets, criteria},
};
use gpunode_config::Allocation;

/// A set of shares to pick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuChoice {
    /// Number of shares of each candidate.
    pub shares: Vec<u32>,
    /// True if another set differs in its indices only, so that utilisation may decide.
    pub is_tied: bool,
    /// Its measures.
    pub score: ChoiceScore,
    key: RankKey,
}

/// The measures by which sets compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChoiceScore {
    /// Places of the GPUs of the set, and of those of which the container has a share.
    pub gpus: Vec<usize>,
    /// Sum of their pair scores.
    pub pairs: u64,
    /// Number of their NUMA nodes; GPUs without a known NUMA node count as one.
    pub numa_nodes: usize,
    /// Number of GPUs left free; 0 under orders that do not compare it.
    pub free_gpus: usize,
    /// Sum of the pair scores of these.
    pub free_pairs: u64,
    /// Sum over all shares of the shares that others hold of their GPU.
    pub held: u64,
}

/// Returns the best set of `size` shares, or of all shares where there are fewer.
pub fn choose(pool: &CandidatePool<'_>, size: u32) -> GpuChoice {
    best_choices(pool, size, 1).into_iter().next().unwrap_or_default()
}

/// Returns the `most` best sets of `size` shares, the best one first; sets of the same GPUs count as one.
pub fn best_choices(pool: &CandidatePool<'_>, size: u32, most: usize) -> Vec<GpuChoice> {
    let columns = Columns::new(pool, size);
    let found = best_sets(pool, &columns, most.max(1));
    let choice = |set: FoundSet| {
        let score = ChoiceScore {
            pairs: pool.scores.sum(&set.gpus),
            numa_nodes: set.numa_nodes,
            free_gpus: set.free_gpus,
            free_pairs: set.free_pairs,
            held: set.held,
            gpus: set.gpus,
        };
        GpuChoice {
            shares: columns.shares(pool, &set.units),
            is_tied: set.is_tied,
            key: set.key,
            score,
        }
    };
    found.into_iter().map(choice).collect()
}

impl GpuChoice {
    /// Returns the criterion by which this set beats another one of the same order, or none if only indices differ.
    pub fn better_by(&self, allocation: Allocation, other: &Self) -> Option<Criterion> {
        let mut criteria = criteria(allocation).into_iter().zip(self.key).zip(other.key);
        criteria
            .find(|((_, one), other)| one != other)
            .map(|((criterion, _), _)| criterion)
    }
}
