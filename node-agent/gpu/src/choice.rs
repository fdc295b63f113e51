//! Which GPUs a container had best get: the best set by a fixed order, whatever asks for it.
//!
//! A choice is made of devices, whole GPUs or MIG devices, of which shares can be picked; a MIG device counts as the GPU that it
//! is a part of. `docs/topology.md` has the order of each [`Allocation`] in words for users; of two sets the one that is
//! better by the first criterion that tells them apart is chosen:
//!
//! | | `Topology` | `Packed` | `Spread` |
//! |---|---|---|---|
//! | 1 | fewest shares of one device | fewest GPUs | fewest shares of one device, then of one GPU |
//! | 2 | fewest GPUs | fewest NUMA nodes | least load |
//! | 3 | highest sum of pair scores | most GPUs left free | most NUMA nodes |
//! | 4 | fewest NUMA nodes | highest sum of pair scores of these | lowest sum of pair scores with the GPUs in use |
//! | 5 | most GPUs left free | most load | |
//! | 6 | highest sum of pair scores of these | highest sum of pair scores | |
//! | 7 | least load | | |
//! | last | lowest indices | lowest indices | lowest indices |
//!
//! Points 1, 2 and 5 of `Topology` say nothing of whole GPUs: a container gets as many of them as it asks for. A GPU is left free
//! where nobody holds anything of it; under `Topology`, devices that containers share leave no GPU free. The load of a GPU
//! is what others hold of it, then its utilisation, which is low in every order.
//!
//! The answer is the best of all sets where there are at most [`search::MAX_SETS`] of these, which holds for every request on
//! 16 GPUs; else it is the best of the sets that grow from each GPU by what suits them most.

mod columns;
mod level;
mod scores;
mod search;
#[cfg(test)]
mod tests;

pub use scores::PairScores;
pub use search::Criterion;

use columns::Columns;
use gpunode_config::Allocation;
use search::Search;

/// What there is to choose from.
#[derive(Clone, Copy, Debug)]
pub struct CandidatePool<'a> {
    /// How the GPUs of the node are linked.
    pub scores: &'a PairScores,
    /// By which order.
    pub allocation: Allocation,
    /// Whether several containers can hold shares of one device.
    pub shared: bool,
    /// The devices in the order of their indices.
    pub devices: &'a [CandidateDevice],
    /// What others do with each GPU, by its place in the scores.
    pub loads: &'a [GpuLoad],
}

/// A device of which shares can be picked, or were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CandidateDevice {
    /// Place of its GPU in the scores; none for one that the driver does not list, which has links to nobody.
    pub gpu: Option<usize>,
    /// Shares of it that the container has already.
    pub has: u32,
    /// Shares that can be picked.
    pub free: u32,
    /// Shares that others hold.
    pub held: u32,
}

/// What others do with a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuLoad {
    /// Shares of it and of its MIG devices that others hold.
    pub held: u32,
    /// Its utilisation in percent.
    pub busy: u32,
}

/// A set that can be picked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuChoice {
    /// How many shares of each candidate.
    pub shares: Vec<u32>,
    /// Whether another set is equal in everything but indices, so that utilisation may decide.
    pub is_tied: bool,
    /// How good it is.
    pub score: ChoiceScore,
    key: search::RankKey,
}

/// What tells sets apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChoiceScore {
    /// The GPUs of the set, and those that the container has already, by place.
    pub gpus: Vec<usize>,
    /// The sum of their pair scores.
    pub pairs: u64,
    /// Their NUMA nodes; GPUs of which the machine does not say it count as one.
    pub numa_nodes: usize,
    /// How many GPUs are left free; none under orders that do not ask for it.
    pub free_gpus: usize,
    /// The sum of the pair scores of these.
    pub free_pairs: u64,
    /// The sum of what others hold of each share's GPU.
    pub held: u64,
}

/// The best set of `size` shares, of fewer where there are not so many.
pub fn choose(pool: &CandidatePool<'_>, size: u32) -> GpuChoice {
    best_choices(pool, size, 1).into_iter().next().unwrap_or_default()
}

/// The `most` best sets of `size` shares, the best one first; sets of the same GPUs count as one.
pub fn best_choices(pool: &CandidatePool<'_>, size: u32, most: usize) -> Vec<GpuChoice> {
    let columns = Columns::new(pool, size);
    let found = Search::new(pool, &columns, most.max(1)).run();
    let choice = |set: search::FoundSet| {
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
    /// By what this set is better than another one of the same order; nothing where only indices tell them apart.
    pub fn better_by(&self, allocation: Allocation, other: &Self) -> Option<Criterion> {
        let mut criteria = search::criteria(allocation).into_iter().zip(self.key).zip(other.key);
        criteria
            .find(|((_, one), other)| one != other)
            .map(|((criterion, _), _)| criterion)
    }
}
