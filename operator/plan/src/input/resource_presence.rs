//! The state of an extended resource in a node's status.

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use std::collections::BTreeMap;

/// State of an extended resource that a node's status names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourcePresence {
    /// At least one device is allocatable.
    Allocatable,
    /// No device is allocatable; the kubelet still counts the devices it had, or one of the two keys is missing.
    Draining,
    /// Capacity and allocatable are 0: only the keys are left.
    KeysOnly,
}

impl ResourcePresence {
    /// Reads the state; `None` if the status does not name the resource.
    pub fn of(node: &Node, name: &str) -> Option<Self> {
        let status = node.status.as_ref()?;
        Self::in_lists(status.capacity.as_ref(), status.allocatable.as_ref(), name)
    }

    /// Reads the state from the two lists of the status.
    pub(crate) fn in_lists(
        capacity: Option<&BTreeMap<String, Quantity>>,
        allocatable: Option<&BTreeMap<String, Quantity>>,
        name: &str,
    ) -> Option<Self> {
        // The API server writes every zero as "0".
        let is_zero = |list: Option<&BTreeMap<String, Quantity>>| list?.get(name).map(|count| count.0 == "0");
        match (is_zero(capacity), is_zero(allocatable)) {
            (None, None) => None,
            (_, Some(false)) => Some(Self::Allocatable),
            (Some(true), Some(true)) => Some(Self::KeysOnly),
            _ => Some(Self::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    #[test]
    fn only_a_key_that_stays_0_is_left_over() {
        let (none, of) = (serde_json::json!({}), |count: &str| serde_json::json!({GPU: count}));
        for (capacity, allocatable, expected) in [
            (none.clone(), none.clone(), None),
            (of("8"), of("8"), Some(ResourcePresence::Allocatable)),
            (none.clone(), of("8"), Some(ResourcePresence::Allocatable)),
            (of("8"), of("0"), Some(ResourcePresence::Draining)),
            (of("0"), none, Some(ResourcePresence::Draining)),
            (of("0"), of("0"), Some(ResourcePresence::KeysOnly)),
        ] {
            let status = serde_json::json!({"status": {"capacity": capacity, "allocatable": allocatable}});
            assert_eq!(
                ResourcePresence::of(&serde_json::from_value(status.clone()).unwrap(), GPU),
                expected,
                "{status}"
            );
        }
    }
}
