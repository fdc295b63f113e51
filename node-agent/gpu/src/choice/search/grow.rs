//! Sets that grow from each GPU, for nodes with too many sets to compare.

use super::{Pull, Search, State};
use std::cmp::Reverse;

impl Search<'_> {
    /// From each item a set that grows by the item with which it is best.
    pub fn grow(&mut self) {
        let mut by_units: Vec<usize> = (0..self.items.len()).collect();
        by_units.sort_by_key(|at| Reverse(self.items.get(*at).map(|item| item.units)));
        let mut seen: Vec<Vec<usize>> = Vec::new();
        for first in 0..self.items.len() {
            let (mut state, mut row) = (self.start, self.row.clone());
            self.chosen.clear();
            let mut next = Some(first).filter(|at| self.reaches(*at, state, &by_units));
            while let Some(at) = next {
                let Some((item, pull)) = self.items.get(at).zip(row.get(at)) else { break };
                state = state.with(item, *pull);
                row.iter_mut().zip(&item.pulls).for_each(|(row, pull)| *row = [row[0] + pull[0], row[1] + pull[1]]);
                self.chosen.push(at);
                next = if self.chosen.len() < self.size { self.next(state, &row, &by_units) } else { None };
            }
            self.chosen.sort_unstable();
            if self.chosen.len() == self.size && !seen.contains(&self.chosen) {
                seen.push(self.chosen.clone());
                self.with_members(&self.chosen.clone(), |search| search.offer(state));
            }
        }
    }

    /// The item with which the set is best.
    fn next(&self, state: State, row: &[Pull], by_units: &[usize]) -> Option<usize> {
        let others = (0..self.items.len()).filter(|at| !self.chosen.contains(at));
        let key = |at: usize| {
            let (item, pull) = self.items.get(at).zip(row.get(at))?;
            let state = state.with(item, *pull);
            Some(self.key(&state, state.worth))
        };
        let candidates = others.filter(|at| self.reaches(*at, state, by_units));
        candidates.max_by_key(|at| (key(*at), Reverse(*at)))
    }

    /// Whether the set can still have the units that it needs with that item next.
    fn reaches(&self, at: usize, state: State, by_units: &[usize]) -> bool {
        let units = |at: &usize| self.items.get(*at).map_or(0, |item| u64::from(item.units));
        let left = by_units.iter().filter(|other| !self.chosen.contains(other)).map(units);
        let largest: Vec<u64> = left.take(self.size - self.chosen.len()).collect();
        let least = largest.last().copied().unwrap_or_default();
        state.units + largest.iter().sum::<u64>() - least + units(&at).min(least) >= self.need
    }
}
