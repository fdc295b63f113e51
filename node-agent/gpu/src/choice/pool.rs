//! Devices to choose from: their free shares, and the load of their GPUs.

use super::pair_scores::PairScores;
use gpunode_config::Allocation;

/// Devices to choose from.
#[derive(Clone, Copy, Debug)]
pub struct CandidatePool<'a> {
    /// Links between the GPUs of the node.
    pub scores: &'a PairScores,
    /// Order of the sets.
    pub allocation: Allocation,
    /// True if several containers can hold shares of one device.
    pub shared: bool,
    /// The devices in the order of their indices.
    pub devices: &'a [CandidateDevice],
    /// Load of each GPU by other containers, by its place in the scores.
    pub loads: &'a [GpuLoad],
}

/// A device with shares to pick, or with shares that the container has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CandidateDevice {
    /// Place of its GPU in the scores; none if the driver does not list the GPU, which then has no links.
    pub gpu: Option<usize>,
    /// Number of its shares that the container has.
    pub has: u32,
    /// Number of shares to pick from.
    pub free: u32,
    /// Number of shares that others hold.
    pub held: u32,
}

/// Load of a GPU by other containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuLoad {
    /// Number of shares of it and of its MIG devices that others hold.
    pub held: u32,
    /// Its utilisation in percent.
    pub busy: u32,
}
