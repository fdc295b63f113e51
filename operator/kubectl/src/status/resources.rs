//! The resources of a node: what its agent advertises, and what the Node has. Pure.

use gpunode_crds::{GpuNode, ResourceStatus};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use serde::Serialize;

/// One resource of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSummary {
    pub name: String,
    /// Devices that the agent advertises to the kubelet.
    pub capacity: i32,
    /// Healthy ones of them, by the agent's last status.
    pub healthy: i32,
    /// Count that pods can have: the Node's `status.allocatable`, correct even without an agent.
    pub allocatable: i64,
    /// Shares that containers hold; unknown where the agent lists only some holders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<i64>,
    /// Free shares reported as unhealthy so that no request is scheduled that fits on no single device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<i32>,
    /// True where the kubelet has accepted the resource, by the agent's last status.
    pub registered: bool,
}

impl ResourceSummary {
    /// Returns every resource that a node's agent names.
    pub fn all(gpu_node: &GpuNode, node: Option<&Node>) -> Vec<Self> {
        let Some(status) = &gpu_node.status else {
            return Vec::new();
        };
        let held = |name: &str| {
            let holders = status.holders.iter().filter(|holder| holder.resource == name);
            (!status.holders_truncated).then(|| holders.map(|holder| i64::from(holder.count)).sum())
        };
        status
            .resources
            .iter()
            .map(|resource| Self::of(resource, node, held(&resource.name)))
            .collect()
    }

    fn of(resource: &ResourceStatus, node: Option<&Node>, held: Option<i64>) -> Self {
        let allocatable = node.and_then(|node| node.status.as_ref()?.allocatable.as_ref()?.get(&resource.name));
        Self {
            name: resource.name.clone(),
            capacity: resource.capacity,
            healthy: resource.allocatable,
            allocatable: allocatable.and_then(count).unwrap_or_default(),
            held,
            withheld: resource.withheld,
            registered: resource.registered,
        }
    }

    /// Describes a difference between agent and Node `name`, with the next step.
    pub fn difference(&self, name: &str) -> Option<String> {
        (self.allocatable != i64::from(self.healthy)).then(|| {
            format!(
                "{}: the agent advertises {}, the Node has {} allocatable; check the agent with `kubectl -n gpunode-system get \
                 pods -o wide --field-selector spec.nodeName={name}`",
                self.name, self.healthy, self.allocatable
            )
        })
    }
}

/// Parses an amount of an extended resource, a whole number. Kubernetes writes 8000 as `8k` (`apimachinery/pkg/api/resource`,
/// DecimalSI).
fn count(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.as_str();
    let (digits, suffix) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let times = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        let read = |text: &str| count(&Quantity(text.to_owned()));
        assert_eq!(
            ["0", "8", "8k", "1M"].map(read),
            [Some(0), Some(8), Some(8000), Some(1_000_000)]
        );
        assert_eq!(["", "-1", "1.5", "8Gi", "99999999999999999999"].map(read), [None; 5]);
    }
}
