//! Writes that take something away from somebody who is not gpunode. The operator says of each how often it happened, and why.

/// Cause of a write that takes something away from somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InterventionCause {
    /// A policy with `onConflict: TakeOver` replaced somebody else's value.
    TakenOver,
    /// Somebody changed or removed a key that gpunode owns, which is back.
    Restored,
    /// A taint with the effect `NoExecute` evicts pods from a node.
    EvictingTaint,
    /// A pod was evicted from a broken device.
    BrokenDevice,
    /// A pod was evicted for a change of the node's GPUs.
    GpuChange,
    /// A pod that its node had rejected was deleted.
    RejectedPod,
}

/// One thing that a write took away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    /// Policy that wants it; none for what gpunode writes by itself: GPU labels, and values that it gives back.
    pub policy: Option<String>,
    /// Reason for the write.
    pub cause: InterventionCause,
    /// Thing that was taken, such as `label accelerator` or `pod team/train-0`.
    pub subject: String,
}
