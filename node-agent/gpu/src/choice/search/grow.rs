//! Sets that grow from each GPU, for nodes with too many sets to compare.

use super::{PartialSet, Pull, Search};
use std::{cmp::Reverse, collections::BTreeSet};

impl Search<'_> {
    /// From each item a set that grows by the item with which it is best.
    pub fn grow(&mut self) {
        let mut by_units: Vec<usize> = (0..self.items.len()).collect();
        by_units.sort_by_key(|at| Reverse(self.items.get(*at).map(|item| item.units)));
        let mut seen = BTreeSet::new();
        for first in 0..self.items.len() {
            let (mut state, mut row) = (self.start, self.row.clone());
            let mut others: Vec<usize> = by_units.clone();
            let mut next = self.reachable(&others, self.size, state).find(|at| *at == first);
            self.chosen.clear();
            while let Some(at) = next {
                let Some((item, pull)) = self.items.get(at).zip(row.get(at)) else {
                    break;
                };
                state = state.with(item, *pull);
                row.iter_mut()
                    .zip(&item.pulls)
                    .for_each(|(row, pull)| *row = [row[0] + pull[0], row[1] + pull[1]]);
                others.retain(|other| *other != at);
                self.chosen.push(at);
                next = self.next(&others, state, &row);
            }
            self.chosen.sort_unstable();
            if self.chosen.len() == self.size && seen.insert(self.chosen.clone()) {
                self.with_members(&self.chosen.clone(), |search| search.offer(state));
            }
        }
    }

    /// The item of `others` with which the set is best; none when it is complete.
    fn next(&self, others: &[usize], state: PartialSet, row: &[Pull]) -> Option<usize> {
        let key = |at: usize| {
            let (item, pull) = self.items.get(at).zip(row.get(at))?;
            let state = state.with(item, *pull);
            Some(self.key(&state, state.worth))
        };
        let left = self.size.saturating_sub(self.chosen.len());
        self.reachable(others, left, state)
            .max_by_key(|at| (key(*at), Reverse(*at)))
    }

    /// Those of `others`, the largest of which come first, with which `left` more can still have the units that are needed.
    fn reachable<'a>(
        &'a self,
        others: &'a [usize],
        left: usize,
        state: PartialSet,
    ) -> impl Iterator<Item = usize> + 'a {
        let units = |at: usize| self.items.get(at).map_or(0, |item| u64::from(item.units));
        let largest = others.get(..left).unwrap_or(others);
        let least = largest.last().map_or(0, |at| units(*at));
        let most = state.units + largest.iter().map(|at| units(*at)).sum::<u64>();
        others
            .iter()
            .copied()
            .filter(move |at| left > 0 && most - least + units(*at).min(least) >= self.need)
    }
}
