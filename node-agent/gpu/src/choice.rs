//! The best set of GPUs for a container, by a fixed order per [`Allocation`].
//!
//! | module | what it does |
//! |---|---|
//! | `best` | the best choices of shares for a container |
//! | `pool` | devices to choose from, and the load of their GPUs |
//! | `pair_scores` | a number for the links between two GPUs |
//! | `columns` | devices by GPU, and the shares that are settled before GPUs compare |
//! | `level` | shares dealt so that no device gives more than it has to |
//! | `search` | the search for the best sets of GPUs |
//!
//! A choice consists of shares of devices, which are full GPUs or MIG devices; a MIG device counts as its GPU.
//! `docs/topology.md` explains the order of each [`Allocation`] to users. The first criterion that differs decides between
//! two sets:
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
//! Criteria 1, 2 and 5 of `Topology` do not apply to whole GPUs: a container gets the number that it requests. A GPU is
//! left free if no container holds a share of it; under `Topology`, shared devices leave no GPU free. The load of a GPU
//! is the number of shares that others hold of it, then its utilisation, for which less is better in every order.
//!
//! The answer is the best of all sets where there are at most [`search::MAX_SETS`] of them, as for every request on 16
//! GPUs; else it is the best of the sets that grow from each GPU by the GPU that suits them most.

mod best;
mod columns;
mod level;
mod pair_scores;
mod pool;
mod search;
#[cfg(test)]
mod tests;

pub use best::{ChoiceScore, GpuChoice, best_choices, choose};
pub use pair_scores::PairScores;
pub use pool::{CandidateDevice, CandidatePool, GpuLoad};
pub use search::Criterion;

#[cfg(doc)]
use gpunode_config::Allocation;
