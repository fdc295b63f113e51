//! Steps that can happen between a kubelet and the allocator.

use super::{MEMORY, SHARED};
use proptest::prelude::*;

/// Configurations that change names, ids and sharing of the same devices.
pub const CONFIGS: [&str; 11] = [
    "",
    SHARED,
    MEMORY,
    "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]",
    "resources: [{name: a.b/mem, sharing: {strategy: Memory, unit: 512Mi, placement: Spread}}]",
    "resources: [{name: a.b/mem, sharing: {strategy: Mps, replicas: 3}}]",
    "mig: {strategy: Mixed}",
    "mig: {strategy: Mixed}\nresources: [{name: a.b/mem, devices: {kind: MigDevice}, sharing: {strategy: Memory}}]",
    "mig: {strategy: Single}\nresources: [{name: nvidia.com/gpu, devices: {indices: [2]}}, {name: a.b/mem, sharing: {strategy: Memory}}]",
    "resources: [{name: a.b/mem, devices: {indices: [1]}, sharing: {strategy: Memory}}, {name: nvidia.com/gpu}]",
    "resources: [{name: nvidia.com/gpu, devices: {indices: [0]}, sharing: {strategy: Mps, replicas: 4}}]",
];

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    Configure(usize),
    /// The GPUs change: one is hidden, or MIG is not seen, or indices are swapped.
    Hardware(u8),
    HoldBack(u8),
    /// The kubelet takes the next list that was sent to it.
    Deliver,
    /// A pod is admitted: the kubelet picks ids of a resource, as preferred or as its topology manager likes.
    Pick {
        resource: usize,
        size: usize,
        preferred: bool,
        from: usize,
        init: bool,
    },
    /// The oldest Allocate call arrives.
    Call,
    /// The kubelet writes an allocation down.
    WriteDown,
    Release(usize),
    /// The three parts of an observation, which take their time.
    AskAllocatable,
    AskHolders,
    Observe,
    /// All three at once.
    Look,
    Restart,
    Wait(u64),
}

pub fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..CONFIGS.len()).prop_map(Step::Configure),
        1 => (0..5_u8).prop_map(Step::Hardware),
        1 => (0..4_u8).prop_map(Step::HoldBack),
        6 => Just(Step::Deliver),
        8 => (0..4_usize, 1..5_usize, any::<bool>(), 0..16_usize, prop::bool::weighted(0.3))
            .prop_map(|(resource, size, preferred, from, init)| Step::Pick { resource, size, preferred, from, init }),
        6 => Just(Step::Call),
        3 => Just(Step::WriteDown),
        4 => (0..8_usize).prop_map(Step::Release),
        2 => Just(Step::AskAllocatable),
        2 => Just(Step::AskHolders),
        2 => Just(Step::Observe),
        6 => Just(Step::Look),
        1 => Just(Step::Restart),
        2 => (0..4_u64).prop_map(Step::Wait),
    ]
}
