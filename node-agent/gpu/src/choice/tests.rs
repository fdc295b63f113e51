//! Known boards by name, and every set of random ones against the order that `choice` documents.

mod boards;
mod many;
mod optimum;
mod reference;

use super::*;
use crate::{Gpu, GpuLink, Inventory, LinkLevel};
use gpunode_config::Allocation;

/// A node with so many GPUs: where each is, and how each pair is linked.
fn node(gpus: u32, numa: impl Fn(u32) -> Option<u32>, link: impl Fn(u32, u32) -> (LinkLevel, u32)) -> PairScores {
    let links = |index: u32| {
        let peers = (0..gpus).filter(|peer| *peer != index);
        let to = |peer| {
            let (level, nvlinks) = link(index, peer);
            let nvlinks = Some(nvlinks);
            GpuLink { peer, level, nvlinks }
        };
        peers.map(to).collect()
    };
    let gpu = |index: u32| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        numa_node: numa(index),
        links: links(index),
        ..Gpu::default()
    };
    PairScores::new(&Inventory {
        gpus: (0..gpus).map(gpu).collect(),
        ..Inventory::default()
    })
}

/// Whole GPUs: those of `free` can be picked, the container has those of `has`, others hold the rest.
struct Whole<'a> {
    scores: &'a PairScores,
    free: &'a [usize],
    has: &'a [usize],
}

impl Whole<'_> {
    fn pick(&self, allocation: Allocation, size: u32) -> Vec<usize> {
        let all = 0..self.scores.gpus();
        let device = |at: usize| CandidateDevice {
            gpu: Some(at),
            has: self.has.contains(&at).into(),
            free: self.free.contains(&at).into(),
            held: 0,
        };
        let held = |at: usize| u32::from(!self.free.contains(&at) && !self.has.contains(&at));
        let devices: Vec<_> = all.clone().map(device).collect();
        let loads: Vec<_> = all
            .map(|at| GpuLoad {
                held: held(at),
                busy: 0,
            })
            .collect();
        let pool = CandidatePool {
            scores: self.scores,
            allocation,
            shared: false,
            devices: &devices,
            loads: &loads,
        };
        choose(&pool, size).score.gpus
    }
}

/// Returns the GPUs that `Topology` picks of the free ones.
fn pick(scores: &PairScores, free: &[usize], size: u32) -> Vec<usize> {
    Whole { scores, free, has: &[] }.pick(Allocation::Topology, size)
}
