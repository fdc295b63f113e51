//! The permit of a node to change its configuration, or its MIG layout.

/// Permit of a working node to change its configuration, or its MIG layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutPermit {
    /// The node may change now.
    Granted,
    /// Other nodes come first: the node keeps its configuration and its agent.
    Withheld,
    /// The node may change and counts as settled: the plan leaves out whatever is there only until its agents follow.
    Simulated,
}
