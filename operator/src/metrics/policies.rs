//! Policies, their nodes and their conditions, as the leader knows them.

use gpunode_crds::ConditionType;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

/// Policies with metrics of their own; the numbers of further ones are in their status.
pub const MAX_POLICIES: usize = 100;

/// Metrics of policies.
#[derive(Debug)]
pub struct PolicyMetrics {
    unreadable: Gauge,
    outdated_discovery: Gauge,
    removal_nodes: Gauge,
    nodes: Family<PolicyStateLabels, Gauge>,
    conditions: Family<PolicyConditionLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyStateLabels {
    policy: String,
    /// `matched`, `ready`, `updating`, `failed` or `conflicted`.
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyConditionLabels {
    policy: String,
    /// `Ready`, `Reconciling`, `Stalled`, `Conflict` or `Degraded`.
    r#type: &'static str,
}

impl PolicyMetrics {
    /// Metrics at zero.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            unreadable: Gauge::default(),
            outdated_discovery: Gauge::default(),
            removal_nodes: Gauge::default(),
            nodes: Family::default(),
            conditions: Family::default(),
        };
        registry.register(
            "unreadable_policies",
            "Policies that this version cannot read",
            metrics.unreadable.clone(),
        );
        registry.register(
            "discovery_outdated_nodes",
            "Nodes whose discovery pod is of an earlier version; on the leader. Above 0 for long: nodes that are down, or an image that does not start",
            metrics.outdated_discovery.clone(),
        );
        registry.register(
            "removal_waiting_nodes",
            "Nodes that still have what a deleted policy wrote, counted once for each policy; on the leader",
            metrics.removal_nodes.clone(),
        );
        registry.register(
            "policy_nodes",
            "Nodes of a policy; on the leader, for the first 100 policies by falling priority and then by name",
            metrics.nodes.clone(),
        );
        registry.register(
            "policy_condition",
            "1 if a condition of a policy is True, else 0; on the leader, for the same policies as policy_nodes",
            metrics.conditions.clone(),
        );
        metrics
    }

    /// Sets `unreadable_policies`.
    pub fn set_unreadable(&self, number: usize) {
        self.unreadable.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Sets the number of nodes whose discovery pod is of an earlier version.
    pub fn set_outdated_discovery(&self, nodes: i32) {
        self.outdated_discovery.set(nodes.into());
    }

    /// Sets the number of nodes that still have what a deleted policy wrote.
    pub fn set_removal_nodes(&self, number: usize) {
        self.removal_nodes.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Sets the numbers of nodes: policy, state, number. Drops the series of other policies.
    pub fn set_nodes(&self, numbers: impl IntoIterator<Item = (String, &'static str, i32)>) {
        self.nodes.clear();
        for (policy, state, number) in numbers {
            self.nodes
                .get_or_create(&PolicyStateLabels { policy, state })
                .set(number.into());
        }
    }

    /// Sets the conditions: policy, type, whether it is True. Drops the series of other policies.
    pub fn set_conditions(&self, conditions: impl IntoIterator<Item = (String, ConditionType, bool)>) {
        self.conditions.clear();
        for (policy, type_, holds) in conditions {
            let labels = PolicyConditionLabels {
                policy,
                r#type: type_.as_str(),
            };
            self.conditions.get_or_create(&labels).set(holds.into());
        }
    }
}
