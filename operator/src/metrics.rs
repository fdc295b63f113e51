//! Prometheus metrics. Label values come from enums, and from policy names up to a bound.

use gpunode_crds::ConditionType;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Kind {
    /// Labels, taints and record of a Node.
    Node,
    /// The configuration of a `GpuNode`.
    GpuNode,
    /// A DaemonSet.
    DaemonSet,
    /// The status of a policy.
    Status,
    /// An event.
    Event,
    /// A pod that is to go.
    Pod,
}

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    reconciles: Family<ByKind, Counter>,
    writes: Family<ByKind, Counter>,
    errors: Family<ByKind, Counter>,
    leader: Gauge,
    nodes: Family<ByPolicy, Gauge>,
    conditions: Family<ByCondition, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKind {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPolicy {
    policy: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCondition {
    policy: String,
    r#type: &'static str,
}

/// Policies beyond this number have no metrics of their own; their status has the numbers all the same.
pub const MAX_POLICIES: usize = 100;

impl Metrics {
    /// Everything at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("gpunode_operator");
        let metrics = Self {
            reconciles: Family::default(),
            writes: Family::default(),
            errors: Family::default(),
            leader: Gauge::default(),
            nodes: Family::default(),
            conditions: Family::default(),
            registry: Registry::default(),
        };
        registry.register(
            "build",
            "Version of the program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register("reconciles", "Objects looked at", metrics.reconciles.clone());
        registry.register("writes", "Accepted writes", metrics.writes.clone());
        registry.register("errors", "Failed reconciles", metrics.errors.clone());
        registry.register("is_leader", "Whether this process leads", metrics.leader.clone());
        registry.register(
            "policy_nodes",
            "Nodes of a policy by state, on the leader",
            metrics.nodes.clone(),
        );
        let conditions = metrics.conditions.clone();
        registry.register(
            "policy_condition",
            "Whether a condition of a policy is True, on the leader",
            conditions,
        );
        Self { registry, ..metrics }
    }

    /// An object was looked at.
    pub fn reconciled(&self, kind: Kind) {
        self.reconciles.get_or_create(&ByKind { kind }).inc();
    }

    /// The API server accepted a write.
    pub fn wrote(&self, kind: Kind) {
        self.writes.get_or_create(&ByKind { kind }).inc();
    }

    /// Something failed.
    pub fn failed(&self, kind: Kind) {
        self.errors.get_or_create(&ByKind { kind }).inc();
    }

    /// Sets whether this process leads.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(leads.into());
    }

    /// Sets the numbers of nodes: policy, state, number. Policies that are not named are forgotten.
    pub fn set_nodes(&self, numbers: impl IntoIterator<Item = (String, &'static str, i32)>) {
        self.nodes.clear();
        for (policy, state, number) in numbers {
            self.nodes.get_or_create(&ByPolicy { policy, state }).set(number.into());
        }
    }

    /// Sets the conditions: policy, type, whether it is True. Policies that are not named are forgotten.
    pub fn set_conditions(&self, conditions: impl IntoIterator<Item = (String, ConditionType, bool)>) {
        self.conditions.clear();
        for (policy, type_, holds) in conditions {
            let labels = ByCondition {
                policy,
                r#type: type_.as_str(),
            };
            self.conditions.get_or_create(&labels).set(holds.into());
        }
    }

    /// The metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing into a string has no error of its own.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_that_are_not_named_any_more_are_forgotten() {
        let metrics = Metrics::new();
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
