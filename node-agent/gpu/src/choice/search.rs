//! The search for the best set of GPUs: all sets where they are few enough, else those that grow well.

mod grow;
mod start;

use super::columns::Columns;
use gpunode_config::Allocation;

/// Most sets that are compared one by one: the halves of 16 GPUs, so that every request on 16 GPUs has the best answer.
pub const MAX_SETS: u64 = 12_870;

/// What a GPU adds to [`PartialSet::left_free`] beside its pair scores, which are less even of 64 GPUs.
const FREE_GPU: i64 = 1 << 32;

/// A set of GPUs.
#[derive(Clone, Debug)]
pub struct FoundSet {
    /// Units of each column.
    pub units: Vec<u32>,
    /// Places of its GPUs and of those that the container has already, ordered.
    pub gpus: Vec<usize>,
    /// How many NUMA nodes these have.
    pub numa_nodes: usize,
    /// How many GPUs are left free.
    pub free_gpus: usize,
    /// Sum of their pair scores.
    pub free_pairs: u64,
    /// What it is judged by.
    pub key: RankKey,
    /// What others hold of the GPU of each unit.
    pub held: u64,
    /// Whether another set is equal to it but for indices.
    pub is_tied: bool,
}

/// What a set is judged by, in the order of its allocation; more is better.
pub type RankKey = [i64; 4];

/// What sets are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The sum of pair scores.
    Pairs,
    /// The number of NUMA nodes.
    NumaNodes,
    /// The GPUs left free, then the sum of their pair scores.
    LeftFree,
    /// What others hold of the GPUs, then their utilisation.
    Load,
    /// The sum of the pair scores of the set with the GPUs in use.
    Distance,
}

/// What the numbers of a [`RankKey`] are.
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

/// Sums of pair scores of one GPU: to those of the set, and to those of the set that were free.
type Pull = [u32; 2];

/// A GPU that the container has nothing of yet.
#[derive(Debug)]
struct SearchItem {
    column: usize,
    units: u32,
    worth: i64,
    /// Its NUMA node as a bit.
    node: u64,
    /// Whether it counts as free until it is in the set.
    free: bool,
    /// What is free with it only: [`FREE_GPU`], and the sum of its pair scores to all that are free.
    freedom: i64,
    /// What it adds to the others when it is in the set.
    pulls: Vec<Pull>,
}

/// The set so far.
#[derive(Clone, Copy, Debug, Default)]
struct PartialSet {
    pairs: i64,
    nodes: u64,
    /// The GPUs left free, as [`FREE_GPU`] each, and the sum of their pair scores.
    left_free: i64,
    /// Of one unit of each GPU.
    worth: i64,
    units: u64,
}

#[derive(Debug)]
struct RankedSet {
    key: RankKey,
    items: Vec<usize>,
    state: PartialSet,
}

/// A search under way.
#[derive(Debug)]
pub struct Search<'a> {
    allocation: Allocation,
    columns: &'a Columns,
    items: Vec<SearchItem>,
    start: PartialSet,
    row: Vec<Pull>,
    /// GPUs that a set has to have beside those that the container has already.
    size: usize,
    /// Units that these have to have together.
    need: u64,
    /// Whether each GPU of the set gives one unit and nothing else does.
    one_each: bool,
    /// Columns, with the worth of a unit, the best first.
    by_worth: Vec<(usize, i64)>,
    /// Columns that units can come from.
    member: Vec<bool>,
    chosen: Vec<usize>,
    most: usize,
    best: Vec<RankedSet>,
    is_tied: bool,
}

impl Search<'_> {
    /// The best sets, the best one first; at least one.
    pub fn run(mut self) -> Vec<FoundSet> {
        if self.size == 0 {
            self.offer(self.start);
        } else if sets(self.items.len(), self.size) <= MAX_SETS {
            let mut rows = vec![vec![Pull::default(); self.items.len()]; self.size];
            rows.first_mut().into_iter().for_each(|row| row.clone_from(&self.row));
            self.enumerate(0, self.size, self.start, &mut rows);
        } else {
            self.grow();
        }
        let best = std::mem::take(&mut self.best);
        best.into_iter()
            .enumerate()
            .map(|(rank, best)| self.found(&best, rank == 0))
            .collect()
    }

    /// Every set with the chosen items and `left` of those from `from` on, in the order of their indices. The first of
    /// `rows` has the pulls of the chosen.
    fn enumerate(&mut self, from: usize, left: usize, state: PartialSet, rows: &mut [Vec<Pull>]) {
        let Some((row, deeper)) = rows.split_first_mut() else {
            return;
        };
        let last = self.items.len().saturating_sub(left);
        for at in from..=last {
            let Some((item, pull)) = self.items.get(at).zip(row.get(at)) else {
                return;
            };
            let next = state.with(item, *pull);
            let column = item.column;
            if let Some(below) = deeper.first_mut() {
                add(below, row, &item.pulls);
            }
            self.chosen.push(at);
            self.set_member(column, true);
            if left == 1 {
                self.offer(next);
            } else {
                self.enumerate(at + 1, left - 1, next, deeper);
            }
            self.set_member(column, false);
            self.chosen.pop();
        }
    }

    /// Takes a complete set in, if it is among the best.
    fn offer(&mut self, state: PartialSet) {
        if state.units < self.need {
            return;
        }
        let full = self.best.len() >= self.most;
        // What it is at best, before its worth is counted.
        let bound = self.key(&state, i64::MAX);
        if full && self.best.last().is_some_and(|worst| bound < worst.key) {
            return;
        }
        let worth = if self.one_each {
            state.worth
        } else {
            self.deal(|_, _| {})
        };
        let key = self.key(&state, worth);
        let rank = self.best.iter().take_while(|better| better.key >= key).count();
        if rank == 0 {
            self.is_tied = false;
        } else if self.best.first().is_some_and(|first| first.key == key) {
            self.is_tied = true;
        }
        if rank < self.most {
            self.best.insert(
                rank,
                RankedSet {
                    key,
                    items: self.chosen.clone(),
                    state,
                },
            );
            self.best.truncate(self.most);
        }
    }

    fn key(&self, state: &PartialSet, worth: i64) -> RankKey {
        let nodes = i64::from(state.nodes.count_ones());
        match self.allocation {
            Allocation::Topology => [state.pairs, -nodes, state.left_free, worth],
            Allocation::Packed => [-nodes, state.left_free, worth, state.pairs],
            Allocation::Spread => [worth, nodes, -state.pairs, 0],
        }
    }

    /// Takes the units from the members: one of each new GPU, then as many as there are of the best. Returns what they are worth.
    fn deal(&self, mut give: impl FnMut(usize, u32)) -> i64 {
        let mut left = self
            .columns
            .units
            .saturating_sub(u32::try_from(self.size).unwrap_or(u32::MAX));
        let mut sum = 0;
        for (column, worth) in &self.by_worth {
            let member = self.member.get(*column).copied().unwrap_or_default();
            let Some(gpu) = self.columns.gpus.get(*column).filter(|_| member) else {
                continue;
            };
            let first = u32::from(!gpu.given);
            let more = gpu.units.saturating_sub(first).min(left);
            left -= more;
            give(*column, first + more);
            sum += i64::from(first + more) * worth;
        }
        sum
    }

    fn found(&mut self, best: &RankedSet, is_first: bool) -> FoundSet {
        let mut units = vec![0; self.columns.gpus.len()];
        let mut is_tied = is_first && self.is_tied;
        self.with_members(&best.items, |search| {
            search.deal(|column, count| units.get_mut(column).into_iter().for_each(|units| *units = count));
            is_tied |= search.has_tie(&units);
        });
        let gpus = self.columns.gpus.iter().zip(&units);
        let held = gpus
            .clone()
            .map(|(gpu, units)| u64::from(gpu.load.held) * u64::from(*units))
            .sum();
        let gpus = gpus
            .filter(|(gpu, units)| gpu.given || **units > 0)
            .filter_map(|(gpu, _)| gpu.place)
            .collect();
        FoundSet {
            units,
            gpus,
            numa_nodes: best.state.nodes.count_ones() as usize,
            free_gpus: usize::try_from(best.state.left_free / FREE_GPU).unwrap_or_default(),
            free_pairs: u64::try_from(best.state.left_free % FREE_GPU).unwrap_or_default(),
            key: best.key,
            held,
            is_tied,
        }
    }

    /// Whether units could as well come from another of the members.
    fn has_tie(&self, units: &[u32]) -> bool {
        let members = self
            .by_worth
            .iter()
            .filter(|(column, _)| self.member.get(*column).copied().unwrap_or_default());
        let given = |column: usize| units.get(column).copied().unwrap_or_default();
        let all = |column: usize| self.columns.gpus.get(column).map_or(0, |gpu| gpu.units);
        let giving = members.clone().filter(|(column, _)| given(*column) > 0);
        let mut spare = members.filter(|(column, _)| given(*column) < all(*column));
        spare.any(|(other, worth)| giving.clone().any(|(column, of)| of == worth && column != other))
    }

    fn with_members(&mut self, items: &[usize], work: impl FnOnce(&mut Self)) {
        let columns: Vec<usize> = items
            .iter()
            .filter_map(|at| self.items.get(*at))
            .map(|item| item.column)
            .collect();
        for column in &columns {
            self.set_member(*column, true);
        }
        work(self);
        for column in &columns {
            self.set_member(*column, false);
        }
    }

    fn set_member(&mut self, column: usize, is: bool) {
        self.member.get_mut(column).into_iter().for_each(|member| *member = is);
    }
}

impl PartialSet {
    /// The set with one more GPU, which has these pulls from the others.
    fn with(self, item: &SearchItem, [near, of_free]: Pull) -> Self {
        Self {
            pairs: self.pairs + i64::from(near),
            nodes: self.nodes | item.node,
            left_free: if item.free {
                self.left_free - item.freedom + i64::from(of_free)
            } else {
                self.left_free
            },
            worth: self.worth + item.worth,
            units: self.units + u64::from(item.units),
        }
    }
}

fn add(sum: &mut [Pull], row: &[Pull], pulls: &[Pull]) {
    for ((sum, row), pull) in sum.iter_mut().zip(row).zip(pulls) {
        *sum = [row[0] + pull[0], row[1] + pull[1]];
    }
}

/// How many sets of `size` there are of `count`.
fn sets(count: usize, size: usize) -> u64 {
    let (count, size) = (count as u64, size.min(count - size) as u64);
    let mut sets: u64 = 1;
    for step in 1..=size {
        sets = sets.saturating_mul(count - size + step) / step;
        if sets > MAX_SETS {
            break;
        }
    }
    sets
}
