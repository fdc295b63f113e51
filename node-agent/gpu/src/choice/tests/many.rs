//! More GPUs than can be compared set by set, and devices that are no GPU as a whole.

use super::*;

/// GPUs in groups of `group` around a switch.
fn groups(gpus: u32, group: u32) -> PairScores {
    let link = move |one, other| {
        (
            if one / group == other / group {
                LinkLevel::Pix
            } else {
                LinkLevel::Sys
            },
            0,
        )
    };
    node(gpus, move |gpu| Some(gpu / group), link)
}

#[test]
fn of_64_gpus_those_of_one_switch_are_found() {
    let scores = groups(64, 8);
    let free: Vec<usize> = (3..64).filter(|gpu| gpu % 8 != 5 || *gpu > 40).collect();
    assert_eq!(
        pick(&scores, &free, 8),
        (40..48).collect::<Vec<_>>(),
        "the first switch with eight free"
    );
    assert_eq!(
        pick(&scores, &free, 3),
        [3, 4, 6],
        "three of those at the fullest switch"
    );
    for allocation in [Allocation::Topology, Allocation::Packed, Allocation::Spread] {
        let whole = Whole {
            scores: &scores,
            free: &free,
            has: &[0],
        };
        for size in [0, 1, 2, 5, 20, 54, 55, 56, 57, 70] {
            assert_eq!(
                whole.pick(allocation, size).len(),
                (size as usize).min(free.len()) + 1,
                "{size}"
            );
        }
    }
}

/// MIG devices of GPUs with so many of each free and held.
fn mig(of: &[(u32, u32)]) -> (Vec<CandidateDevice>, Vec<GpuLoad>) {
    let devices = of.iter().enumerate().flat_map(|(gpu, (free, held))| {
        let device = move |free, held| CandidateDevice {
            gpu: Some(gpu),
            has: 0,
            free,
            held,
        };
        (0..*free)
            .map(move |_| device(1, 0))
            .chain((0..*held).map(move |_| device(0, 1)))
    });
    (
        devices.collect(),
        of.iter().map(|(_, held)| GpuLoad { held: *held, busy: 0 }).collect(),
    )
}

#[test]
fn mig_devices_count_as_their_gpu() {
    let scores = groups(4, 2);
    let gpus = |of: &[(u32, u32)], allocation, size| {
        let (devices, loads) = mig(of);
        let pool = CandidatePool {
            scores: &scores,
            allocation,
            shared: false,
            devices: &devices,
            loads: &loads,
        };
        let choice = choose(&pool, size);
        let mut counts = vec![0; 4];
        devices
            .iter()
            .zip(&choice.shares)
            .for_each(|(device, shares)| counts[device.gpu.unwrap()] += shares);
        counts
    };
    let (topology, packed, spread) = (Allocation::Topology, Allocation::Packed, Allocation::Spread);
    let nearly_full = [(7, 0), (3, 4), (1, 6), (7, 0)];
    assert_eq!(
        gpus(&nearly_full, topology, 1),
        [0, 1, 0, 0],
        "of the GPUs in use the least loaded"
    );
    assert_eq!(gpus(&nearly_full, packed, 1), [0, 0, 1, 0], "the most loaded");
    assert_eq!(gpus(&nearly_full, spread, 1), [1, 0, 0, 0]);
    assert_eq!(gpus(&nearly_full, topology, 3), [0, 3, 0, 0], "all of one GPU");
    assert_eq!(gpus(&nearly_full, packed, 3), [0, 3, 0, 0]);
    assert_eq!(gpus(&nearly_full, spread, 2), [1, 0, 0, 1]);
    assert_eq!(
        gpus(&nearly_full, spread, 3),
        [1, 1, 0, 1],
        "three GPUs, of which least is held"
    );
    assert_eq!(
        gpus(&nearly_full, topology, 9),
        [7, 2, 0, 0],
        "two GPUs at one switch, first the one that nobody uses"
    );
}

#[test]
fn of_112_mig_devices_any_number_can_be_had() {
    let scores = groups(16, 4);
    let (devices, loads) = mig(&[(7, 0); 16]);
    for allocation in [Allocation::Topology, Allocation::Packed, Allocation::Spread] {
        let pool = CandidatePool {
            scores: &scores,
            allocation,
            shared: false,
            devices: &devices,
            loads: &loads,
        };
        for size in [1, 6, 7, 8, 28, 29, 53, 56, 111, 112, 200] {
            let choice = choose(&pool, size);
            assert_eq!(choice.shares.iter().sum::<u32>(), size.min(112));
            let gpus = if allocation == Allocation::Spread {
                size.min(16)
            } else {
                size.min(112).div_ceil(7)
            };
            assert_eq!(choice.score.gpus.len(), gpus as usize, "{allocation:?} {size}");
        }
    }
}

#[test]
fn utilisation_is_asked_for_only_where_it_decides() {
    let scores = groups(4, 4);
    let tied = |held: [u32; 4], free: [u32; 4], shared, size| {
        let device = |(gpu, (held, free)): (usize, (&u32, &u32))| CandidateDevice {
            gpu: Some(gpu),
            has: 0,
            free: *free,
            held: *held,
        };
        let devices: Vec<_> = held.iter().zip(&free).enumerate().map(device).collect();
        let loads = held.map(|held| GpuLoad { held, busy: 0 });
        choose(
            &CandidatePool {
                scores: &scores,
                allocation: Allocation::Topology,
                shared,
                devices: &devices,
                loads: &loads,
            },
            size,
        )
        .is_tied
    };
    assert!(tied([0; 4], [4; 4], true, 1));
    assert!(!tied([1, 0, 1, 1], [4; 4], true, 1), "one is less loaded");
    assert!(!tied([0; 4], [4; 4], true, 4), "all of them are picked");
    assert!(tied([0; 4], [4; 4], true, 5), "one of them twice");
    assert!(!tied([0; 4], [0, 1, 0, 0], true, 1));
    assert!(tied([2, 2, 0, 0], [4; 4], true, 3), "one of the first two");
    assert!(!tied([2, 1, 0, 0], [4; 4], true, 3));
}

#[test]
fn gpus_that_the_driver_does_not_list_can_be_had_and_come_last() {
    let scores = groups(2, 2);
    let device = |gpu| CandidateDevice {
        gpu,
        has: 0,
        free: 1,
        held: 0,
    };
    let devices = [device(None), device(Some(0)), device(Some(1)), device(None)];
    let pool = CandidatePool {
        scores: &scores,
        allocation: Allocation::Topology,
        shared: false,
        devices: &devices,
        loads: &[],
    };
    assert_eq!(choose(&pool, 2).shares, [0, 1, 1, 0]);
    assert_eq!(choose(&pool, 4).shares, [1; 4]);
    assert_eq!(best_choices(&pool, 2, 3).len(), 3);
    assert_eq!(choose(&CandidatePool { devices: &[], ..pool }, 3), GpuChoice::default());
}
