//! Figures of `docs/benchmarks.md` on the choice of GPUs; `make bench` prints them.

use super::*;
use crate::{GpuLink, LinkLevel};

/// Number of times that each request is made. The median counts, because the machine does other work too.
const ROUNDS: usize = 25;

/// 16 GPUs: where each is, how each pair is linked, and the MIG devices of each.
fn of_16(link: impl Fn(u32, u32) -> (LinkLevel, u32), mig: u32) -> Inventory {
    let link = &link;
    let links = |index: u32| {
        let to = move |peer| {
            let (level, nvlinks) = link(index.min(peer), index.max(peer));
            let nvlinks = Some(nvlinks);
            GpuLink { peer, level, nvlinks }
        };
        (0..16).filter(|peer| *peer != index).map(to).collect()
    };
    let part = |gpu: u32, index: u32| MigInstance {
        index,
        facts: MigDevice {
            uuid: format!("MIG-{gpu:08x}-d3f1-4a8e-9f9e-{index:012x}"),
            ..MigDevice::default()
        },
        ..MigInstance::default()
    };
    let gpu = |index: u32| Gpu {
        index,
        uuid: format!("GPU-{index:08x}-1c2d-4b5e-8a7f-5e0c3a9b1d77"),
        compute_capability: Some((8, 0)),
        numa_node: Some(index / 8),
        mig_mode: (mig > 0).then_some(MigMode::Enabled),
        mig_devices: (0..mig).map(|number| part(index, number)).collect(),
        links: links(index),
        ..Gpu::default()
    };
    Inventory {
        gpus: (0..16).map(gpu).collect(),
        ..Inventory::default()
    }
}

/// Of each request the median of the rounds, the longest last.
fn times(inventory: &Inventory, config: &str) -> Vec<(Duration, usize, &'static str)> {
    let mut all = Vec::new();
    for allocation in ["Topology", "Packed", "Spread"] {
        let config = config.replace("ALLOCATION", allocation);
        let test = AllocatorTest::of(desired_devices(inventory, &load(&config).unwrap()).unwrap(), &[]);
        let available: Vec<String> = test.healthy().into_iter().map(|(_, id)| id).collect();
        let sizes = if available.len() > 16 {
            vec![1, 3, 8, 24, 53, 56, 59, 100]
        } else {
            (1..=16).collect()
        };
        for size in sizes {
            let mut rounds: Vec<Duration> = Vec::new();
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let chosen = test
                    .allocator
                    .preferred("nvidia.com/gpu", &available, &[], size, &BTreeMap::new());
                rounds.push(start.elapsed());
                assert_eq!(chosen.ids.len(), size);
            }
            rounds.sort();
            all.push((rounds[ROUNDS / 2], size, allocation));
        }
    }
    all.sort();
    all
}

fn report(key: &str, (time, size, allocation): (Duration, usize, &str)) {
    println!("{key}: {time:?} ({size}, {allocation})");
    println!("figure: {key} | {:.3} | ms", time.as_secs_f64() * 1000.0);
}

#[test]
#[ignore = "a measurement"]
fn measure_the_choice_of_16_gpus() {
    let node = |one, other| {
        if one / 8 == other / 8 {
            LinkLevel::Node
        } else {
            LinkLevel::Sys
        }
    };
    let switched = of_16(|one, other| (node(one, other), 12), 0);
    let slots = of_16(|one, other| (node(one, other), 0), 0);
    let mixed = of_16(|one, other| (node(one, other), (one * 7 + other * 13) % 19), 0);
    let divided = of_16(|one, other| (node(one, other), 12), 7);
    let whole = "resources: [{name: nvidia.com/gpu, allocation: ALLOCATION}]";
    let shared =
        "resources: [{name: nvidia.com/gpu, allocation: ALLOCATION, sharing: {strategy: TimeSlicing, replicas: 64}}]";
    let mig = "mig: {strategy: Single}\nresources: [{name: nvidia.com/gpu, allocation: ALLOCATION}]";
    let whole_times: Vec<_> = [&switched, &slots, &mixed]
        .into_iter()
        .flat_map(|of| times(of, whole))
        .collect();
    let of_three = whole_times
        .iter()
        .filter(|(_, size, allocation)| *size == 3 && *allocation == "Topology");
    report("best-3-of-16", *of_three.max().unwrap());
    report("slowest-of-16", *whole_times.iter().max().unwrap());
    report("slowest-of-replicas", *times(&switched, shared).last().unwrap());
    report("slowest-of-mig", *times(&divided, mig).last().unwrap());
}
