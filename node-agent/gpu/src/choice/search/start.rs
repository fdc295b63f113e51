//! What a search starts with: the scores of its GPUs, and what is known before one is chosen.

use super::{FREE_GPU, PartialSet, Search, SearchItem};
use crate::choice::{CandidatePool, GpuLoad, columns::Columns};
use gpunode_config::Allocation;

/// Bits of utilisation below what is held, in the worth of a unit: 64 GPUs x 8192 shares x 100 percent.
const BUSY_BITS: u32 = 26;

impl<'a> Search<'a> {
    /// A search for the `most` best sets.
    pub fn new(pool: &CandidatePool<'_>, columns: &'a Columns, most: usize) -> Self {
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
        // Whoever gets a replica leaves the rest of its GPU to others.
        let counts_free = match pool.allocation {
            Allocation::Topology => !pool.shared,
            Allocation::Packed => true,
            Allocation::Spread => false,
        };
        let free: Vec<usize> = (0..gpus.len()).filter(|at| counts_free && free(*at)).collect();
        let spread = pool.allocation == Allocation::Spread;
        let in_use = |at: usize| spread && gpus.get(at).is_some_and(|gpu| gpu.load.held > 0);
        // Under Spread a GPU that is in use counts as in the set from the start.
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
            member: gpus.iter().map(|gpu| gpu.given && gpu.units > 0).collect(),
            chosen: Vec::new(),
            most,
            best: Vec::new(),
            is_tied: false,
        }
    }
}

/// NUMA nodes as bits, in the order in which GPUs have them. A machine of more than 64 would count the last ones as one.
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

/// What a unit of a GPU is worth; less load is worth more, but for what others hold under `Packed`.
fn worth(allocation: Allocation, load: GpuLoad) -> i64 {
    let held = i64::from(load.held) << BUSY_BITS;
    let busy = i64::from(load.busy);
    if allocation == Allocation::Packed {
        held - busy
    } else {
        -held - busy
    }
}

/// The fewest items that have `need` units together.
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
