//! Prometheus metrics. Label values are variants of enums, and a bounded number of policy names.
//!
//! | module | what it does |
//! |---|---|
//! | `election` | leadership and the age of the Lease |

mod election;

pub use election::ElectionMetrics;

use gpunode_crds::ConditionType;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

/// Kinds of work, the values of the label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WorkKind {
    /// Labels, taints and record of a Node.
    Node,
    /// Configuration and conditions of a `GpuNode`.
    GpuNode,
    DaemonSet,
    /// Status of a policy.
    Status,
    Event,
    /// Eviction or deletion of a pod.
    Pod,
}

/// The operator's metrics.
#[derive(Debug)]
pub struct OperatorMetrics {
    registry: Registry,
    reconciles: Family<KindLabel, Counter>,
    writes: Family<KindLabel, Counter>,
    errors: Family<KindLabel, Counter>,
    pub election: ElectionMetrics,
    unreadable_policies: Gauge,
    outdated_discovery: Gauge,
    removal_nodes: Gauge,
    nodes: Family<PolicyStateLabels, Gauge>,
    conditions: Family<PolicyConditionLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: WorkKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyStateLabels {
    policy: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyConditionLabels {
    policy: String,
    r#type: &'static str,
}

/// Policies with metrics of their own; the numbers of further ones are in their status.
pub const MAX_POLICIES: usize = 100;

impl OperatorMetrics {
    /// Metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("gpunode_operator");
        let metrics = Self {
            reconciles: Family::default(),
            writes: Family::default(),
            errors: Family::default(),
            election: ElectionMetrics::new(&mut registry),
            unreadable_policies: Gauge::default(),
            outdated_discovery: Gauge::default(),
            removal_nodes: Gauge::default(),
            nodes: Family::default(),
            conditions: Family::default(),
            registry: Registry::default(),
        };
        registry.register(
            "build",
            "Version of the operator",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register(
            "reconciles",
            "Reconciles of objects, including those that needed no write",
            metrics.reconciles.clone(),
        );
        registry.register("writes", "Writes that the API server accepted", metrics.writes.clone());
        registry.register("errors", "Reconciles that failed", metrics.errors.clone());
        registry.register(
            "unreadable_policies",
            "Policies that this version cannot read",
            metrics.unreadable_policies.clone(),
        );
        registry.register(
            "discovery_outdated_nodes",
            "Nodes whose discovery pod is of an earlier version, only on the leader",
            metrics.outdated_discovery.clone(),
        );
        registry.register(
            "removal_waiting_nodes",
            "Nodes that still have what a deleted policy wrote, once for each policy, only on the leader",
            metrics.removal_nodes.clone(),
        );
        registry.register(
            "policy_nodes",
            "Nodes of a policy by state, only on the leader",
            metrics.nodes.clone(),
        );
        let conditions = metrics.conditions.clone();
        registry.register(
            "policy_condition",
            "1 if a condition of a policy is True, otherwise 0, only on the leader",
            conditions,
        );
        Self { registry, ..metrics }
    }

    /// Counts a reconcile.
    pub fn reconciled(&self, kind: WorkKind) {
        self.reconciles.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts a write that the API server accepted.
    pub fn wrote(&self, kind: WorkKind) {
        self.writes.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts a failed reconcile.
    pub fn failed(&self, kind: WorkKind) {
        self.errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// Sets `unreadable_policies`.
    pub fn set_unreadable_policies(&self, number: usize) {
        self.unreadable_policies.set(i64::try_from(number).unwrap_or(i64::MAX));
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

    /// Returns the metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_cluster_are_metrics_without_labels() {
        let metrics = OperatorMetrics::new();
        metrics.set_unreadable_policies(1);
        metrics.set_outdated_discovery(2);
        metrics.set_removal_nodes(3);
        let text = metrics.render();
        for line in [
            "gpunode_operator_unreadable_policies 1",
            "gpunode_operator_discovery_outdated_nodes 2",
            "gpunode_operator_removal_waiting_nodes 3",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn series_of_deleted_policies_are_dropped() {
        let metrics = OperatorMetrics::new();
        metrics.set_conditions(["gone", "p"].map(|policy| (policy.to_owned(), ConditionType::Stalled, true)));
        metrics.set_conditions([("p".to_owned(), ConditionType::Stalled, true)]);
        let text = metrics.render();
        let series: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("gpunode_operator_policy_c"))
            .collect();
        assert_eq!(
            series,
            [r#"gpunode_operator_policy_condition{policy="p",type="Stalled"} 1"#]
        );
    }
}
