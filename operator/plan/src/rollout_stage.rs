//! Stages of a node on its way to the configuration of the policy that governs it.
//!
//! | stage | node | uses the rollout's budget |
//! |---|---|---|
//! | `Outside` | is down, failed before, or has its first configuration: the rollout does not wait for it | no |
//! | `Held` | the same, but left as it is | no |
//! | `AwaitsAgent` | works with another configuration, and cannot get the desired one: its agent cannot read it, or mig-manager is there | no |
//! | `Pending` | works with another configuration, or with MIG instances that are free to change | once it has a permit |
//! | `Stepping` | got the desired configuration, or the approval of its MIG layout, with a permit | yes |
//! | `Stopped` | failed with it, or missed the deadline: no other node gets it | no |
//! | `Done` | has it in force; MIG instances may wait for pods | no |

/// Stage of a node on its way to the configuration of the policy that governs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutStage {
    /// The rollout does not wait for the node.
    Outside,
    /// The node is left as it is: no part of the rollout, but it runs an agent of the policy.
    Held,
    /// The node works, and gets the configuration once a newer agent runs there, or mig-manager is gone.
    AwaitsAgent,
    /// The node works with another configuration, or with another MIG layout than it may have now.
    Pending,
    /// The node worked before and is changing.
    Stepping,
    /// The node worked before and failed with this configuration, for the reason given.
    Stopped(String),
    /// The node has the configuration in force.
    Done,
}
