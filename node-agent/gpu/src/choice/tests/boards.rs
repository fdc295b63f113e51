//! Boards that exist, and what NVIDIA's go-gpuallocator gets wrong on some.

use super::*;
use LinkLevel::{Node, Phb, Pix, Pxb, Sys};
use gpunode_scenario::DGX1_VOLTA_LINKS;

/// The hybrid cube mesh of eight V100.
fn dgx1() -> PairScores {
    let level = |one: u32, other: u32| match (one / 4 == other / 4, one / 2 == other / 2) {
        (false, _) => Sys,
        (true, false) => Phb,
        (true, true) => Pix,
    };
    node(
        8,
        |gpu| Some(gpu / 4),
        |one, other| (level(one, other), DGX1_VOLTA_LINKS[one as usize][other as usize]),
    )
}

/// Eight A100 on NVSwitches.
fn hgx_a100() -> PairScores {
    let level = |one: u32, other: u32| match (one / 4 == other / 4, one / 2 == other / 2) {
        (false, _) => Sys,
        (true, false) => Node,
        (true, true) => Pxb,
    };
    node(8, |gpu| Some(gpu / 4), |one, other| (level(one, other), 12))
}

/// Eight cards on two sockets.
fn two_sockets() -> PairScores {
    node(
        8,
        |gpu| Some(gpu / 4),
        |one, other| (if one / 4 == other / 4 { Phb } else { Sys }, 0),
    )
}

/// Cards on one socket, bridged two by two as told.
fn bridged(gpus: u32, bridges: &[(u32, u32)]) -> PairScores {
    let is_bridge = |one, other| bridges.contains(&(one, other)) || bridges.contains(&(other, one));
    node(
        gpus,
        |_| Some(0),
        |one, other| (Phb, if is_bridge(one, other) { 4 } else { 0 }),
    )
}

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn a_dgx_1_gives_the_sets_that_its_cube_mesh_was_made_for() {
    let scores = dgx1();
    assert_eq!(pick(&scores, &ALL, 2), [2, 3], "two NVLinks and one PCIe switch");
    assert_eq!(pick(&scores, &[0, 1, 4, 5, 6, 7], 2), [6, 7]);
    assert_eq!(
        pick(&scores, &[0, 1, 4, 5], 2),
        [0, 4],
        "two NVLinks between sockets, not one beside a switch"
    );
    assert_eq!(pick(&scores, &[0, 1, 3, 7], 2), [0, 3]);
    assert_eq!(pick(&scores, &[5, 6], 2), [5, 6]);
    assert_eq!(pick(&scores, &ALL, 4), [0, 1, 2, 3]);
    assert_eq!(pick(&scores, &[0, 1, 4, 5, 6, 7], 4), [4, 5, 6, 7]);
    assert_eq!(pick(&scores, &ALL, 8), ALL);
    assert_eq!(
        pick(&scores, &[0, 3, 4, 7], 1),
        [3],
        "which leaves the ones with most NVLinks"
    );
}

#[test]
fn gpus_on_nvswitches_count_as_linked() {
    let scores = hgx_a100();
    assert_eq!(
        (scores.pair(0, 1), scores.pair(0, 2), scores.pair(0, 7)),
        (1240, 1220, 1210)
    );
    assert_eq!(pick(&scores, &ALL, 2), [0, 1]);
    assert_eq!(pick(&scores, &ALL, 4), [0, 1, 2, 3]);
    assert_eq!(
        pick(&scores, &[1, 3, 4, 5, 6, 7], 2),
        [4, 5],
        "1 and 3 have no switch in common"
    );
    assert_eq!(
        pick(&scores, &[1, 4, 5, 6, 7], 1),
        [1],
        "which leaves the other socket whole"
    );
    assert_eq!(pick(&scores, &[1, 2, 3, 5, 6, 7], 5), [1, 2, 3, 6, 7]);
}

#[test]
fn of_two_sockets_one_gives_all_and_the_fuller_one_first() {
    let scores = two_sockets();
    assert_eq!(pick(&scores, &[0, 1, 4, 5, 6, 7], 3), [4, 5, 6]);
    assert_eq!(
        pick(&scores, &[0, 1, 4, 5, 6, 7], 2),
        [0, 1],
        "which leaves four together"
    );
    assert_eq!(pick(&scores, &[0, 1, 2, 3, 5, 6, 7], 1), [5]);
    assert_eq!(
        Whole {
            scores: &scores,
            free: &[0, 1, 2, 6, 7],
            has: &[5]
        }
        .pick(Allocation::Topology, 2),
        [5, 6, 7]
    );
}

#[test]
fn packed_keeps_gpus_together_and_spread_apart() {
    let scores = two_sockets();
    let of = |free: &[usize], allocation, size| {
        Whole {
            scores: &scores,
            free,
            has: &[],
        }
        .pick(allocation, size)
    };
    assert_eq!(of(&[0, 1, 2, 4, 5, 6, 7], Allocation::Packed, 1), [0]);
    assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7], Allocation::Spread, 1), [4]);
    assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7], Allocation::Packed, 2), [1, 2]);
    assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7], Allocation::Spread, 2), [1, 4]);
    assert_eq!(of(&ALL, Allocation::Spread, 4), [0, 1, 4, 5]);
    let linked = dgx1();
    let linked = Whole {
        scores: &linked,
        free: &ALL,
        has: &[],
    };
    assert_eq!(
        linked.pick(Allocation::Packed, 2),
        [2, 3],
        "of equal ones those that are linked"
    );
    assert_eq!(linked.pick(Allocation::Spread, 2), [0, 5], "no NVLink between them");
}

/// A last set that is smaller than the others made it return less than it was asked for, and the plugin crash.
#[test]
fn a_remainder_never_makes_the_answer_smaller() {
    assert_eq!(pick(&bridged(5, &[(3, 4)]), &[0, 1, 2, 3, 4], 3), [0, 3, 4]);
    let pairs = bridged(8, &[(0, 1), (2, 3), (4, 5), (6, 7)]);
    assert_eq!(pick(&pairs, &[0, 2, 4, 5, 6], 3), [0, 4, 5]);
    for free in 1..=u8::MAX {
        let free: Vec<usize> = ALL.into_iter().filter(|gpu| free & (1 << gpu) != 0).collect();
        for size in 1..=free.len() {
            assert_eq!(
                pick(&pairs, &free, u32::try_from(size).unwrap()).len(),
                size,
                "{size} of {free:?}"
            );
        }
    }
}

/// It takes the first free one for a single GPU.
#[test]
fn one_gpu_is_taken_where_it_breaks_no_pair() {
    let pairs = bridged(8, &[(0, 1), (2, 3), (4, 5), (6, 7)]);
    assert_eq!(pick(&pairs, &[0, 1, 2, 3, 5, 6, 7], 1), [5]);
    assert_eq!(
        pick(&pairs, &[0, 1, 3, 5, 6, 7], 3),
        [0, 1, 3],
        "a pair and a single one, not two halves"
    );
}

/// From seven sets on, an earlier version overwrote the best one that it had saved.
#[test]
fn the_best_pair_of_fourteen_is_found_wherever_it_is() {
    let free: Vec<usize> = (0..14).collect();
    for one in 0..14_u32 {
        for other in one + 1..14 {
            let scores = bridged(14, &[(one, other)]);
            assert_eq!(pick(&scores, &free, 2), [one as usize, other as usize]);
        }
    }
}

/// Two ends that disagree made the plugin panic, and a query that failed rejected every pod.
#[test]
fn links_that_cannot_be_read_make_a_gpu_the_last_choice() {
    let scores = node(
        4,
        |_| None,
        |one, other| {
            if one == 1 || other == 1 {
                (LinkLevel::Unknown, 0)
            } else {
                (Node, 1)
            }
        },
    );
    assert_eq!(pick(&scores, &[0, 1, 2, 3], 3), [0, 2, 3]);
    assert_eq!(pick(&scores, &[0, 1, 2, 3], 1), [1], "which leaves the others linked");
    assert_eq!(pick(&scores, &[0, 1], 2), [0, 1]);
    let blind = node(3, |_| None, |_, _| (LinkLevel::Unknown, 0));
    assert_eq!(pick(&blind, &[2, 1, 0], 2), [0, 1]);
}

#[test]
fn what_a_container_has_draws_the_rest_to_it() {
    let scores = dgx1();
    let with = |has: &[usize], free: &[usize], size| {
        Whole {
            scores: &scores,
            free,
            has,
        }
        .pick(Allocation::Topology, size)
    };
    assert_eq!(with(&[5], &[0, 1, 2, 3, 4, 6, 7], 1), [5, 6]);
    assert_eq!(with(&[6, 7], &[0, 1, 2, 3, 4, 5], 2), [4, 5, 6, 7]);
    assert_eq!(with(&[2], &[], 0), [2]);
    assert_eq!(with(&[2], &[3], 5), [2, 3], "as many as there are");
}
