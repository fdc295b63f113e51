//! Extended resources that gpunode served on a node, until their keys leave the node's status.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Use of a resource that gpunode ever served on a node; moments are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResourceUse {
    /// Somebody wants it; written as `null`.
    InUse,
    /// Nobody has wanted it since this moment.
    UnusedSince(i64),
    /// Moments at which gpunode removed its key from the node's status, the latest last.
    RemovalTried(Vec<i64>),
}

/// Resources by name.
pub type ResourceUses = BTreeMap<String, ResourceUse>;
