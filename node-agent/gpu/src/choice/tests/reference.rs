//! The best set as the order says it, found by looking at every one.

use super::*;
use std::{cmp::Reverse, collections::BTreeSet};

/// Order of distributions of shares: the scores, higher is better; then the GPUs, lowest first; then the shares per GPU.
type Judgement = (Vec<i64>, Reverse<Vec<usize>>, Vec<u32>);

/// Judges so many shares of each candidate.
pub fn judge(pool: &CandidatePool<'_>, shares: &[u32]) -> Judgement {
    let sum = |of: &dyn Fn(usize) -> i64| (0..shares.len()).map(of).sum::<i64>();
    let after = |at: usize| pool.devices[at].has + shares[at];
    let gpu = |at: usize| pool.devices[at].gpu.unwrap();
    let load = |at: usize| pool.loads[gpu(at)];
    let pairs_of = |count: i64| count * (count - 1) / 2;
    let places: Vec<usize> = (0..pool.scores.gpus()).collect();
    let on = |place: usize| (0..shares.len()).filter(move |at| gpu(*at) == place);
    let per_gpu: Vec<u32> = places.iter().map(|place| on(*place).map(after).sum()).collect();
    let picked: Vec<u32> = places
        .iter()
        .map(|place| on(*place).map(|at| shares[at]).sum())
        .collect();
    let set: Vec<usize> = places.iter().copied().filter(|place| per_gpu[*place] > 0).collect();
    let nodes = set
        .iter()
        .map(|place| pool.scores.numa_node(*place))
        .collect::<BTreeSet<_>>()
        .len();
    let is_free = |place: &usize| {
        per_gpu[*place] == 0 && pool.loads[*place].held == 0 && on(*place).any(|at| pool.devices[at].free > 0)
    };
    let rest: Vec<usize> = places.iter().copied().filter(is_free).collect();
    let in_use = |place: &usize| pool.loads[*place].held > 0 || per_gpu[*place] > 0;
    let together: Vec<usize> = places.iter().copied().filter(in_use).collect();

    let of_one_device = -sum(&|at| pairs_of(after(at).into()));
    let of_one_gpu = -per_gpu.iter().map(|count| pairs_of((*count).into())).sum::<i64>();
    let number = |count: usize| i64::try_from(count).unwrap();
    let score = |places: &[usize]| pool.scores.sum(places).cast_signed();
    let (gpus, numa, spare) = (-number(set.len()), -number(nodes), number(rest.len()));
    let (pairs, left) = (score(&set), score(&rest));
    let held = sum(&|at| i64::from(shares[at] * load(at).held));
    let busy = sum(&|at| i64::from(shares[at] * load(at).busy));
    let key = match pool.allocation {
        Allocation::Topology if pool.shared => vec![of_one_device, gpus, pairs, numa, -held, -busy],
        Allocation::Topology => vec![of_one_device, gpus, pairs, numa, spare, left, -held, -busy],
        Allocation::Packed => vec![gpus, numa, spare, left, held, -busy, pairs],
        Allocation::Spread => {
            vec![of_one_device, of_one_gpu, -held, -busy, -numa, -score(&together)]
        }
    };
    (key, Reverse(set), picked)
}

/// The best of all distributions of so many shares.
pub fn best(pool: &CandidatePool<'_>, size: u32) -> Judgement {
    let mut shares = vec![0; pool.devices.len()];
    let mut best = None;
    visit(pool, 0, size, &mut shares, &mut |shares| {
        let this = judge(pool, shares);
        if best.as_ref().is_none_or(|best| this > *best) {
            best = Some(this);
        }
    });
    best.unwrap()
}

fn visit(pool: &CandidatePool<'_>, at: usize, left: u32, shares: &mut [u32], see: &mut impl FnMut(&[u32])) {
    if at == shares.len() {
        if left == 0 {
            see(shares);
        }
        return;
    }
    let room: u32 = pool.devices[at + 1..].iter().map(|device| device.free).sum();
    for count in left.saturating_sub(room)..=left.min(pool.devices[at].free) {
        shares[at] = count;
        visit(pool, at + 1, left - count, shares, see);
    }
    shares[at] = 0;
}
