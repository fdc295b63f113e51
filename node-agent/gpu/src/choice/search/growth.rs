//! Sets that grow from each GPU, for nodes with too many sets to compare.

use super::{
    partial_set::{PartialSet, Pull},
    problem::SearchProblem,
    ranking::Ranking,
};
use std::{cmp::Reverse, collections::BTreeSet};

/// Offers one set per item to `ranking`: it grows by the item with which it ranks highest.
pub fn grow_sets(problem: &SearchProblem<'_>, ranking: &mut Ranking<'_>) {
    let mut by_units: Vec<usize> = (0..problem.items.len()).collect();
    by_units.sort_by_key(|at| Reverse(problem.items.get(*at).map(|item| item.units)));
    let mut seen = BTreeSet::new();
    for first in 0..problem.items.len() {
        let (mut set, mut row) = (problem.start, problem.row.clone());
        let mut others: Vec<usize> = by_units.clone();
        let mut next = reachable(problem, &others, problem.size, set).find(|at| *at == first);
        ranking.chosen.clear();
        while let Some(at) = next {
            let Some((item, pull)) = problem.items.get(at).zip(row.get(at)) else {
                break;
            };
            set = set.with(item, *pull);
            row.iter_mut()
                .zip(&item.pulls)
                .for_each(|(row, pull)| *row = [row[0] + pull[0], row[1] + pull[1]]);
            others.retain(|other| *other != at);
            ranking.chosen.push(at);
            next = best_next(problem, ranking.chosen.len(), &others, set, &row);
        }
        ranking.chosen.sort_unstable();
        if ranking.chosen.len() == problem.size && seen.insert(ranking.chosen.clone()) {
            ranking.offer_chosen(set);
        }
    }
}

/// Returns the item of `others` with which a set of `chosen` items ranks highest, or none if the set is complete.
fn best_next(
    problem: &SearchProblem<'_>,
    chosen: usize,
    others: &[usize],
    set: PartialSet,
    row: &[Pull],
) -> Option<usize> {
    let key = |at: usize| {
        let (item, pull) = problem.items.get(at).zip(row.get(at))?;
        let set = set.with(item, *pull);
        Some(problem.key(&set, set.worth))
    };
    let left = problem.size.saturating_sub(chosen);
    reachable(problem, others, left, set).max_by_key(|at| (key(*at), Reverse(*at)))
}

/// Returns those of `others`, sorted by units, with which `left` items can still give the needed units.
fn reachable<'a>(
    problem: &'a SearchProblem<'_>,
    others: &'a [usize],
    left: usize,
    set: PartialSet,
) -> impl Iterator<Item = usize> + 'a {
    let units = |at: usize| problem.items.get(at).map_or(0, |item| u64::from(item.units));
    let largest = others.get(..left).unwrap_or(others);
    let least = largest.last().map_or(0, |at| units(*at));
    let most = set.units + largest.iter().map(|at| units(*at)).sum::<u64>();
    others
        .iter()
        .copied()
        .filter(move |at| left > 0 && most - least + units(*at).min(least) >= problem.need)
}
