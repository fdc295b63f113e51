//! The search for the best sets of GPUs: all sets where they are few enough, else those that grow well.
//!
//! | module | what it does |
//! |---|---|
//! | `criteria` | the criteria of each allocation, and the rank of a set by them |
//! | `partial_set` | a set under construction, and a GPU that can join it |
//! | `problem` | the GPUs to choose from, their scores, and the set at the start |
//! | `ranking` | the best sets so far, each with its units |
//! | `every_set` | every set of the right size |
//! | `growth` | one set per GPU that grows by the best GPU each time |

mod criteria;
mod every_set;
mod growth;
mod partial_set;
mod problem;
mod ranking;

pub use criteria::{Criterion, RankKey, criteria};
pub use ranking::FoundSet;

use super::{columns::Columns, pool::CandidatePool};
use problem::SearchProblem;
use ranking::Ranking;

/// Most sets that are compared one by one: the halves of 16 GPUs, so that each request on 16 GPUs gets the best answer.
pub const MAX_SETS: u64 = 12_870;

/// Returns the `most` best sets, the best one first; at least one.
pub fn best_sets(pool: &CandidatePool<'_>, columns: &Columns, most: usize) -> Vec<FoundSet> {
    let problem = SearchProblem::new(pool, columns);
    let mut ranking = Ranking::new(&problem, most);
    if problem.size == 0 {
        ranking.offer(problem.start);
    } else if number_of_sets(problem.items.len(), problem.size) <= MAX_SETS {
        every_set::try_every_set(&problem, &mut ranking);
    } else {
        growth::grow_sets(&problem, &mut ranking);
    }
    ranking.into_found()
}

/// Returns the number of sets of `size` out of `count`, exact up to [`MAX_SETS`].
fn number_of_sets(count: usize, size: usize) -> u64 {
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
