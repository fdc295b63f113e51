//! The best sets that a search has seen so far.

use super::{
    criteria::RankKey,
    partial_set::{FREE_GPU, PartialSet},
    problem::SearchProblem,
};

/// A set of GPUs with its rank.
#[derive(Clone, Debug)]
pub struct FoundSet {
    /// Units of each column.
    pub units: Vec<u32>,
    /// Places of its GPUs and of those of which the container has a share, in order.
    pub gpus: Vec<usize>,
    /// Number of their NUMA nodes.
    pub numa_nodes: usize,
    /// Number of GPUs left free.
    pub free_gpus: usize,
    /// Sum of the pair scores of these.
    pub free_pairs: u64,
    /// The rank.
    pub key: RankKey,
    /// Sum over all units of the shares that others hold of their GPU.
    pub held: u64,
    /// True if another set differs in its indices only.
    pub is_tied: bool,
}

#[derive(Debug)]
struct RankedSet {
    key: RankKey,
    items: Vec<usize>,
    set: PartialSet,
}

/// The best sets so far, and the set that the search has chosen now.
#[derive(Debug)]
pub struct Ranking<'a> {
    problem: &'a SearchProblem<'a>,
    /// Items of the set that the search looks at.
    pub chosen: Vec<usize>,
    /// Columns that units can come from.
    member: Vec<bool>,
    /// Number of sets to keep.
    most: usize,
    best: Vec<RankedSet>,
    is_tied: bool,
}

impl<'a> Ranking<'a> {
    /// Returns a ranking that keeps the `most` best sets.
    pub fn new(problem: &'a SearchProblem<'a>, most: usize) -> Self {
        let gpus = problem.columns.gpus.iter();
        Self {
            problem,
            chosen: Vec::new(),
            member: gpus.map(|gpu| gpu.given && gpu.units > 0).collect(),
            most,
            best: Vec::new(),
            is_tied: false,
        }
    }

    /// Takes the chosen items as a complete set, if it is among the best.
    #[inline]
    pub fn offer(&mut self, set: PartialSet) {
        if set.units < self.problem.need {
            return;
        }
        let full = self.best.len() >= self.most;
        // The rank that the set would have with units of the highest worth.
        let bound = self.problem.key(&set, i64::MAX);
        if full && self.best.last().is_some_and(|worst| bound < worst.key) {
            return;
        }
        let worth = if self.problem.one_each {
            set.worth
        } else {
            self.deal(|_, _| {})
        };
        let key = self.problem.key(&set, worth);
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
                    set,
                },
            );
            self.best.truncate(self.most);
        }
    }

    /// Takes the chosen items as [`Self::offer`] does, with their columns as members.
    pub fn offer_chosen(&mut self, set: PartialSet) {
        self.with_members(&self.chosen.clone(), |ranking| ranking.offer(set));
    }

    /// Returns the best sets, the best one first.
    pub fn into_found(mut self) -> Vec<FoundSet> {
        let best = std::mem::take(&mut self.best);
        best.into_iter()
            .enumerate()
            .map(|(rank, best)| self.found(&best, rank == 0))
            .collect()
    }

    /// Deals the units to the members: one from each new GPU, then as many as possible from the best. Returns their worth.
    fn deal(&self, mut give: impl FnMut(usize, u32)) -> i64 {
        let mut left = self
            .problem
            .columns
            .units
            .saturating_sub(u32::try_from(self.problem.size).unwrap_or(u32::MAX));
        let mut sum = 0;
        for (column, worth) in &self.problem.by_worth {
            let member = self.member.get(*column).copied().unwrap_or_default();
            let Some(gpu) = self.problem.columns.gpus.get(*column).filter(|_| member) else {
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

    /// Returns a ranked set with its units.
    fn found(&mut self, best: &RankedSet, is_first: bool) -> FoundSet {
        let mut units = vec![0; self.problem.columns.gpus.len()];
        let mut is_tied = is_first && self.is_tied;
        self.with_members(&best.items, |ranking| {
            ranking.deal(|column, count| units.get_mut(column).into_iter().for_each(|units| *units = count));
            is_tied |= ranking.has_tie(&units);
        });
        let gpus = self.problem.columns.gpus.iter().zip(&units);
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
            numa_nodes: best.set.nodes.count_ones() as usize,
            free_gpus: usize::try_from(best.set.left_free / FREE_GPU).unwrap_or_default(),
            free_pairs: u64::try_from(best.set.left_free % FREE_GPU).unwrap_or_default(),
            key: best.key,
            held,
            is_tied,
        }
    }

    /// Returns true if some units could come from another member of equal worth.
    fn has_tie(&self, units: &[u32]) -> bool {
        let members = self
            .problem
            .by_worth
            .iter()
            .filter(|(column, _)| self.member.get(*column).copied().unwrap_or_default());
        let given = |column: usize| units.get(column).copied().unwrap_or_default();
        let all = |column: usize| self.problem.columns.gpus.get(column).map_or(0, |gpu| gpu.units);
        let giving = members.clone().filter(|(column, _)| given(*column) > 0);
        let mut spare = members.filter(|(column, _)| given(*column) < all(*column));
        spare.any(|(other, worth)| giving.clone().any(|(column, of)| of == worth && column != other))
    }

    /// Runs `work` with these items as members.
    fn with_members(&mut self, items: &[usize], work: impl FnOnce(&mut Self)) {
        let columns: Vec<usize> = items
            .iter()
            .filter_map(|at| self.problem.items.get(*at))
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

    /// Lets units come from a column, or no longer.
    #[inline]
    pub fn set_member(&mut self, column: usize, is: bool) {
        self.member.get_mut(column).into_iter().for_each(|member| *member = is);
    }
}
