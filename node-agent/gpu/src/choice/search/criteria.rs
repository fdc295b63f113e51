//! The criteria of each allocation, and the rank of a set by them.

use super::partial_set::PartialSet;
use gpunode_config::Allocation;

/// Rank of a set: one number per criterion of its allocation, in order; more is better.
pub type RankKey = [i64; 4];

/// A criterion that tells two sets apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Sum of pair scores.
    Pairs,
    /// Number of NUMA nodes.
    NumaNodes,
    /// GPUs left free, then the sum of their pair scores.
    LeftFree,
    /// Shares that others hold of the GPUs, then their utilisation.
    Load,
    /// Sum of the pair scores between the set and the GPUs in use.
    Distance,
}

/// Returns the criterion of each number of a [`RankKey`].
pub fn criteria(allocation: Allocation) -> [Criterion; 4] {
    match allocation {
        Allocation::Topology => [
            Criterion::Pairs,
            Criterion::NumaNodes,
            Criterion::LeftFree,
            Criterion::Load,
        ],
        Allocation::Packed => [
            Criterion::NumaNodes,
            Criterion::LeftFree,
            Criterion::Load,
            Criterion::Pairs,
        ],
        // The last number is always 0.
        Allocation::Spread => [
            Criterion::Load,
            Criterion::NumaNodes,
            Criterion::Distance,
            Criterion::Distance,
        ],
    }
}

/// Returns the rank of a set whose units are worth `worth`.
#[inline]
pub fn rank_key(allocation: Allocation, set: &PartialSet, worth: i64) -> RankKey {
    let nodes = i64::from(set.nodes.count_ones());
    match allocation {
        Allocation::Topology => [set.pairs, -nodes, set.left_free, worth],
        Allocation::Packed => [-nodes, set.left_free, worth, set.pairs],
        Allocation::Spread => [worth, nodes, -set.pairs, 0],
    }
}
