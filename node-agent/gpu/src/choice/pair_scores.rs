//! A number for the links between two GPUs.

use crate::{GpuLink, Inventory, LinkLevel};
use std::collections::BTreeMap;

/// Score of one NVLink (NVIDIA's go-gpuallocator).
const NVLINK: u32 = 100;

/// Most NVLinks that count: a GPU has 18.
const MAX_NVLINKS: u32 = 18;

/// Scores of all pairs of GPUs of a node, and the NUMA nodes of the GPUs. Computed once per inventory.
///
/// The scores are those of NVIDIA's go-gpuallocator: 10 (SYS) to 60 (the same board) by the PCIe level, and 100 for each
/// NVLink. Two GPUs on NVSwitches count as linked by as many as both have to the switches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairScores {
    gpus: Vec<ScoredGpu>,
    places: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ScoredGpu {
    numa_node: Option<u32>,
    /// Score with each GPU of the node; 0 with itself.
    scores: Vec<u32>,
}

impl PairScores {
    /// Computes the scores of a node's GPUs; places follow the order of the inventory. An unreadable link scores 0; a link
    /// whose ends differ scores the lower of both.
    pub fn new(inventory: &Inventory) -> Self {
        let gpus = &inventory.gpus;
        let by_index: BTreeMap<u32, usize> = gpus.iter().enumerate().map(|(place, gpu)| (gpu.index, place)).collect();
        let ways = |(from, gpu): (usize, &crate::Gpu)| {
            let mut ways = vec![0; gpus.len()];
            let others = gpu
                .links
                .iter()
                .filter_map(|link| Some((*by_index.get(&link.peer)?, score(link))));
            for (to, score) in others.filter(|(to, _)| *to != from) {
                ways.get_mut(to).into_iter().for_each(|way| *way = score);
            }
            ways
        };
        let ways: Vec<Vec<u32>> = gpus.iter().enumerate().map(ways).collect();
        let back = |from: usize, to: usize| {
            ways.get(to)
                .and_then(|ways| ways.get(from))
                .copied()
                .unwrap_or_default()
        };
        let gpu = |((from, gpu), ways): ((usize, &crate::Gpu), &Vec<u32>)| ScoredGpu {
            numa_node: gpu.numa_node,
            scores: ways
                .iter()
                .enumerate()
                .map(|(to, way)| (*way).min(back(from, to)))
                .collect(),
        };
        let places = gpus
            .iter()
            .enumerate()
            .map(|(place, gpu)| (gpu.uuid.clone(), place))
            .collect();
        Self {
            gpus: gpus.iter().enumerate().zip(&ways).map(gpu).collect(),
            places,
        }
    }

    /// Returns the place of a GPU.
    pub fn place(&self, uuid: &str) -> Option<usize> {
        self.places.get(uuid).copied()
    }

    /// Returns the number of GPUs.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Returns the score of the pair at two places; 0 for a place without GPU.
    pub fn pair(&self, one: usize, other: usize) -> u32 {
        self.gpus
            .get(one)
            .and_then(|gpu| gpu.scores.get(other))
            .copied()
            .unwrap_or_default()
    }

    /// Returns the sum over all pairs of GPUs at these places.
    pub fn sum(&self, places: &[usize]) -> u64 {
        let others = |at: usize| places.get(at + 1..).unwrap_or_default();
        let pairs = places
            .iter()
            .enumerate()
            .flat_map(|(at, one)| others(at).iter().map(|other| (*one, *other)));
        pairs.map(|(one, other)| u64::from(self.pair(one, other))).sum()
    }

    /// Returns the NUMA node of the GPU at a place, if known.
    pub fn numa_node(&self, place: usize) -> Option<u32> {
        self.gpus.get(place).and_then(|gpu| gpu.numa_node)
    }
}

fn score(link: &GpuLink) -> u32 {
    let pcie = match link.level {
        LinkLevel::Internal => 60,
        LinkLevel::Pix => 50,
        LinkLevel::Pxb => 40,
        LinkLevel::Phb => 30,
        LinkLevel::Node => 20,
        LinkLevel::Sys => 10,
        LinkLevel::Unknown => 0,
    };
    pcie + NVLINK * link.nvlinks.unwrap_or_default().min(MAX_NVLINKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(links: [Vec<GpuLink>; 2]) -> Inventory {
        let gpu = |(index, links)| crate::Gpu {
            index,
            uuid: format!("GPU-{index}"),
            links,
            ..crate::Gpu::default()
        };
        Inventory {
            gpus: (0..).zip(links).map(gpu).collect(),
            ..Inventory::default()
        }
    }

    fn link(peer: u32, level: LinkLevel, nvlinks: u32) -> Vec<GpuLink> {
        vec![GpuLink {
            peer,
            level,
            nvlinks: Some(nvlinks),
        }]
    }

    #[test]
    fn pcie_and_nvlink_both_count() {
        for (level, nvlinks, expected) in [
            (LinkLevel::Sys, 0, 10),
            (LinkLevel::Node, 0, 20),
            (LinkLevel::Phb, 0, 30),
            (LinkLevel::Pxb, 0, 40),
            (LinkLevel::Pix, 2, 250),
            (LinkLevel::Internal, 0, 60),
            (LinkLevel::Node, 18, 1820),
            (LinkLevel::Node, 36, 1820),
            (LinkLevel::Unknown, 1, 100),
        ] {
            let scores = PairScores::new(&inventory([link(1, level, nvlinks), link(0, level, nvlinks)]));
            assert_eq!(
                (scores.pair(0, 1), scores.pair(1, 0), scores.sum(&[0, 1])),
                (expected, expected, expected.into())
            );
        }
    }

    #[test]
    fn a_link_that_could_not_be_read_lowers_a_score_and_is_no_error() {
        let whole = link(0, LinkLevel::Node, 4);
        for broken in [link(1, LinkLevel::Unknown, 4), link(1, LinkLevel::Node, 3), Vec::new()] {
            let scores = PairScores::new(&inventory([broken, whole.clone()]));
            assert!(scores.pair(0, 1) < 420 && scores.pair(0, 1) == scores.pair(1, 0));
        }
        assert_eq!(PairScores::default().pair(3, 4), 0);
    }
}
