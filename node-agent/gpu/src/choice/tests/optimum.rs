//! No set is better than the one that is chosen.

use super::*;
use proptest::prelude::*;

/// A random node: mostly few kinds of links, so that many sets are equal.
fn any_node(gpus: u32) -> impl Strategy<Value = PairScores> {
    let level = prop::sample::select(vec![
        LinkLevel::Pix,
        LinkLevel::Pxb,
        LinkLevel::Phb,
        LinkLevel::Node,
        LinkLevel::Sys,
        LinkLevel::Sys,
        LinkLevel::Unknown,
    ]);
    let link = (level, prop::sample::select(vec![0, 0, 0, 1, 2, 4, 12, 18]));
    let links = proptest::collection::vec(link, (gpus * gpus) as usize);
    let numa = proptest::collection::vec(prop::option::weighted(0.9, 0..3_u32), gpus as usize);
    // Whether both ends say the same.
    (links, numa, prop::bool::weighted(0.8)).prop_map(move |(links, numa, symmetric)| {
        let link = |one: u32, other: u32| {
            let (one, other) = if symmetric {
                (one.min(other), one.max(other))
            } else {
                (one, other)
            };
            links[(one * gpus + other) as usize]
        };
        node(gpus, |gpu| numa[gpu as usize], link)
    })
}

fn any_allocation() -> impl Strategy<Value = Allocation> {
    prop::sample::select(vec![Allocation::Topology, Allocation::Packed, Allocation::Spread])
}

fn check(pool: &CandidatePool<'_>, size: u32) -> Result<(), TestCaseError> {
    let free = pool.devices.iter().map(|device| device.free).sum::<u32>();
    let choice = choose(pool, size);
    prop_assert_eq!(choice.shares.iter().sum::<u32>(), size.min(free));
    for (device, shares) in pool.devices.iter().zip(&choice.shares) {
        prop_assert!(*shares <= device.free);
    }
    let judged = reference::judge(pool, &choice.shares);
    prop_assert_eq!(&judged, &reference::best(pool, size.min(free)), "{:?}", choice);
    prop_assert_eq!(&judged.1.0, &choice.score.gpus);
    let best = best_choices(pool, size, 4);
    prop_assert_eq!(&best[0].shares, &choice.shares);
    let keys: Vec<_> = best
        .iter()
        .map(|choice| reference::judge(pool, &choice.shares).0)
        .collect();
    prop_assert!(keys.is_sorted_by(|one, other| one >= other), "{:?}", keys);
    Ok(())
}

prop_compose! {
    /// Whole GPUs that are free, held by others, or the container's own.
    fn any_whole()(gpus in 1..=16_u32)(
        scores in any_node(gpus),
        states in proptest::collection::vec(prop::sample::select(vec![0, 0, 0, 0, 0, 1, 2]), gpus as usize),
        size in 1..=gpus,
        allocation in any_allocation(),
    ) -> (PairScores, Vec<CandidateDevice>, Vec<GpuLoad>, u32, Allocation) {
        let device = |(at, state): (usize, &u8)| CandidateDevice {
            gpu: Some(at),
            has: (*state == 1).into(),
            free: (*state == 0).into(),
            held: (*state == 2).into(),
        };
        let devices: Vec<_> = states.iter().enumerate().map(device).collect();
        let loads = devices.iter().map(|device| GpuLoad { held: device.held, busy: 0 }).collect();
        (scores, devices, loads, size, allocation)
    }
}

prop_compose! {
    /// GPUs with up to `parts` devices each, of which up to `shares` shares are free.
    fn any_parts(parts: usize, shares: u32)(gpus in 1..=4_u32)(
        scores in any_node(gpus),
        of in proptest::collection::vec(proptest::collection::vec((0..=shares, 0..3_u32, 0..8_u32), 1..=parts), gpus as usize),
        others in proptest::collection::vec((prop::sample::select(vec![0, 0, 1]), prop::sample::select(vec![0, 0, 50])), gpus as usize),
        size in 1..=8_u32,
        allocation in any_allocation(),
    ) -> (PairScores, Vec<CandidateDevice>, Vec<GpuLoad>, u32, Allocation) {
        let mut devices = Vec::new();
        let mut loads = Vec::new();
        for (at, (parts, (others, busy))) in of.iter().zip(&others).enumerate() {
            let held: u32 = parts.iter().map(|(_, held, _)| held).sum();
            loads.push(GpuLoad { held: held + others, busy: *busy });
            let device = |(free, held, has): &(u32, u32, u32)| CandidateDevice {
                gpu: Some(at),
                has: u32::from(*has == 7),
                free: *free,
                held: *held,
            };
            devices.extend(parts.iter().map(device));
        }
        (scores, devices, loads, size, allocation)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn of_up_to_16_whole_gpus_no_set_is_better((scores, devices, loads, size, allocation) in any_whole()) {
        check(&CandidatePool { scores: &scores, allocation, shared: false, devices: &devices, loads: &loads }, size)?;
    }
}

proptest! {
    #[test]
    fn of_mig_devices_no_set_is_better((scores, devices, loads, size, allocation) in any_parts(3, 1)) {
        check(&CandidatePool { scores: &scores, allocation, shared: false, devices: &devices, loads: &loads }, size)?;
    }

    #[test]
    fn of_replicas_no_set_is_better((scores, devices, loads, size, allocation) in any_parts(1, 4)) {
        check(&CandidatePool { scores: &scores, allocation, shared: true, devices: &devices, loads: &loads }, size)?;
    }

    #[test]
    fn of_replicas_of_mig_devices_no_set_is_better((scores, devices, loads, size, allocation) in any_parts(2, 2)) {
        check(&CandidatePool { scores: &scores, allocation, shared: true, devices: &devices, loads: &loads }, size)?;
    }
}
