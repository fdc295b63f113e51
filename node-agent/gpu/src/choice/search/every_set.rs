//! Every set of the right size, for nodes where these are few enough.

use super::{
    partial_set::{PartialSet, Pull, add_pulls},
    problem::SearchProblem,
    ranking::Ranking,
};

/// Offers every set to `ranking`.
pub fn try_every_set(problem: &SearchProblem<'_>, ranking: &mut Ranking<'_>) {
    let mut rows = vec![vec![Pull::default(); problem.items.len()]; problem.size];
    rows.first_mut()
        .into_iter()
        .for_each(|row| row.clone_from(&problem.row));
    choose_rest(problem, ranking, 0, problem.size, problem.start, &mut rows);
}

/// Offers each set of the chosen items and `left` items from `from` on, in the order of their indices. The first of `rows`
/// has the pulls of the chosen items.
fn choose_rest(
    problem: &SearchProblem<'_>,
    ranking: &mut Ranking<'_>,
    from: usize,
    left: usize,
    set: PartialSet,
    rows: &mut [Vec<Pull>],
) {
    let Some((row, deeper)) = rows.split_first_mut() else {
        return;
    };
    let last = problem.items.len().saturating_sub(left);
    for at in from..=last {
        let Some((item, pull)) = problem.items.get(at).zip(row.get(at)) else {
            return;
        };
        let next = set.with(item, *pull);
        if let Some(below) = deeper.first_mut() {
            add_pulls(below, row, &item.pulls);
        }
        ranking.chosen.push(at);
        ranking.set_member(item.column, true);
        if left == 1 {
            ranking.offer(next);
        } else {
            choose_rest(problem, ranking, at + 1, left - 1, next, deeper);
        }
        ranking.set_member(item.column, false);
        ranking.chosen.pop();
    }
}
