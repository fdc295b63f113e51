//! Policies whose node selectors no longer match a node.

use jiff::Timestamp;
use std::collections::BTreeMap;

/// Moment since which a node's labels no longer match a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deselection {
    /// Generation of the policy that matched before.
    pub generation: Option<i64>,
    /// Moment at which the labels stopped to match.
    pub since: Timestamp,
}

/// Policies whose node selectors no longer match a node, by name.
pub type Deselections = BTreeMap<String, Deselection>;
