//! The search problem: the GPUs to choose from, their scores, and the set at the start.

use super::{
    criteria::{RankKey, rank_key},
    partial_set::{FREE_GPU, PartialSet, Pull, SearchItem},
};
use crate::choice::{
    columns::Columns,
    pool::{CandidatePool, GpuLoad},
};
use gpunode_config::Allocation;

/// Bits of a unit's worth for utilisation, below the shares held: 64 GPUs x 8192 shares x 100 percent.
const BUSY_BITS: u32 = 26;

/// The GPUs to choose from, and the set at the start.
#[derive(Debug)]
pub struct SearchProblem<'a> {
    allocation: Allocation,
    /// All GPUs of the pool.
    pub columns: &'a Columns,
    /// GPUs that can join the set.
    pub items: Vec<SearchItem>,
    /// The set at the start: the GPUs of which the container has a share.
    pub start: PartialSet,
    /// Pulls of the set at the start on each item.
    pub row: Vec<Pull>,
    /// Number of items in a complete set.
    pub size: usize,
    /// Units that the items of a complete set give together at least.
    pub need: u64,
    /// True if each item gives one unit and no other GPU gives any.
    pub one_each: bool,
    /// Columns with the worth of one unit, the best first.
    pub by_worth: Vec<(usize, i64)>,
}

impl<'a> SearchProblem<'a> {
    /// Returns the problem of choosing `columns.units` units.
    pub fn new(pool: &CandidatePool<'_>, columns: &'a Columns) -> Self {
        let gpus = &columns.gpus;
        let pair = |one: usize, other: usize| {
            let place = |at: usize| gpus.get(at).and_then(|gpu| gpu.place);
            place(one)
                .zip(place(other))
                .map_or(0, |(one, other)| pool.scores.pair(one, other))
        };
        let free = |at: usize| {
            gpus.get(at)
                .is_some_and(|gpu| !gpu.given && gpu.units > 0 && gpu.load.held == 0 && gpu.place.is_some())
        };
        // A container with a replica leaves the rest of the GPU to others.
        let counts_free = match pool.allocation {
            Allocation::Topology => !pool.shared,
            Allocation::Packed => true,
            Allocation::Spread => false,
        };
        let free: Vec<usize> = (0..gpus.len()).filter(|at| counts_free && free(*at)).collect();
        let spread = pool.allocation == Allocation::Spread;
        let in_use = |at: usize| spread && gpus.get(at).is_some_and(|gpu| gpu.load.held > 0);
        // Under Spread, the set contains the GPUs in use from the start.
        let near = |one: usize, other: usize| {
            if in_use(one) || in_use(other) {
                0
            } else {
                pair(one, other)
            }
        };
        let new: Vec<usize> = (0..gpus.len())
            .filter(|at| gpus.get(*at).is_some_and(|gpu| !gpu.given && gpu.units > 0))
            .collect();
        let numa_nodes = NumaNodes::new(pool, columns);
        let item = |at: usize| {
            let is_free = free.contains(&at);
            let gpu = gpus.get(at);
            SearchItem {
                column: at,
                units: gpu.map_or(0, |gpu| gpu.units),
                worth: gpu.map_or(0, |gpu| worth(pool.allocation, gpu.load)),
                node: numa_nodes.bit(at),
                free: is_free,
                freedom: FREE_GPU + free.iter().map(|other| i64::from(pair(at, *other))).sum::<i64>(),
                pulls: new
                    .iter()
                    .map(|to| [near(at, *to), if is_free { pair(at, *to) } else { 0 }])
                    .collect(),
            }
        };
        let items: Vec<SearchItem> = new.iter().map(|at| item(*at)).collect();
        let given: Vec<usize> = (0..gpus.len())
            .filter(|at| gpus.get(*at).is_some_and(|gpu| gpu.given))
            .collect();
        let others: Vec<usize> = pool
            .loads
            .iter()
            .enumerate()
            .filter(|(_, load)| spread && load.held > 0)
            .map(|(at, _)| at)
            .collect();
        let to_others = |at: usize| {
            let place = gpus.get(at).and_then(|gpu| gpu.place).filter(|_| !in_use(at));
            let given = given.iter().filter(|of| !in_use(**of)).map(|of| near(*of, at));
            let others = others.iter().filter_map(|of| Some(pool.scores.pair(*of, place?)));
            given.chain(others).sum::<u32>()
        };
        let given_units: u64 = given
            .iter()
            .filter_map(|at| gpus.get(*at))
            .map(|gpu| u64::from(gpu.units))
            .sum();
        let need = u64::from(columns.units).saturating_sub(given_units);
        let free_places: Vec<usize> = free.iter().filter_map(|at| gpus.get(*at)?.place).collect();
        let mut by_worth: Vec<(usize, i64)> = gpus
            .iter()
            .map(|gpu| worth(pool.allocation, gpu.load))
            .enumerate()
            .collect();
        by_worth.sort_by_key(|(at, worth)| (-worth, *at));
        Self {
            allocation: pool.allocation,
            columns,
            size: fewest(&items, need),
            need,
            one_each: given_units == 0 && items.iter().all(|item| item.units == 1),
            row: new.iter().map(|at| [to_others(*at), 0]).collect(),
            start: PartialSet {
                nodes: given
                    .iter()
                    .map(|at| numa_nodes.bit(*at))
                    .fold(0, |nodes, node| nodes | node),
                left_free: free.iter().map(|_| FREE_GPU).sum::<i64>()
                    + i64::try_from(pool.scores.sum(&free_places)).unwrap_or_default(),
                ..PartialSet::default()
            },
            items,
            by_worth,
        }
    }

    /// Returns the rank of a set whose units are worth `worth`.
    #[inline]
    pub fn key(&self, set: &PartialSet, worth: i64) -> RankKey {
        rank_key(self.allocation, set, worth)
    }
}

/// NUMA nodes as bits, in the order of the GPUs. From the 64th on they count as one.
struct NumaNodes {
    of_columns: Vec<u32>,
}

impl NumaNodes {
    fn new(pool: &CandidatePool<'_>, columns: &Columns) -> Self {
        let mut seen = Vec::new();
        let mut of_columns = Vec::new();
        for gpu in &columns.gpus {
            let node = gpu.place.and_then(|place| pool.scores.numa_node(place));
            let bit = seen.iter().position(|known| *known == node).unwrap_or_else(|| {
                seen.push(node);
                seen.len() - 1
            });
            of_columns.push(u32::try_from(bit).unwrap_or(u32::MAX).min(u64::BITS - 1));
        }
        Self { of_columns }
    }

    fn bit(&self, column: usize) -> u64 {
        self.of_columns.get(column).map_or(0, |bit| 1 << bit)
    }
}

/// Returns the worth of a unit of a GPU: it falls with the load; under `Packed` it grows with the shares that others hold.
fn worth(allocation: Allocation, load: GpuLoad) -> i64 {
    let held = i64::from(load.held) << BUSY_BITS;
    let busy = i64::from(load.busy);
    if allocation == Allocation::Packed {
        held - busy
    } else {
        -held - busy
    }
}

/// Returns the smallest number of items that have `need` units together.
fn fewest(items: &[SearchItem], need: u64) -> usize {
    let mut units: Vec<u32> = items.iter().map(|item| item.units).collect();
    units.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0;
    units
        .into_iter()
        .take_while(|units| {
            let short = sum < need;
            sum += u64::from(*units);
            short
        })
        .count()
}
