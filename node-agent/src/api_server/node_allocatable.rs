//! Allocatable resources of this agent's Node, by which the scheduler decides.

use gpunode_process::within;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use std::time::Duration;

const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads one Node.
#[derive(Clone)]
pub struct NodeReader {
    nodes: Api<Node>,
    node: String,
}

/// A failed read of the Node.
#[derive(Debug, thiserror::Error)]
pub enum NodeReadError {
    /// The API server answered with an error.
    #[error("read this Node: {0}")]
    Call(#[from] kube::Error),
    /// The API server does not answer.
    #[error("read this Node: no answer within {CALL_TIMEOUT:?}")]
    NoAnswer,
    /// The amount is no whole number.
    #[error("read this Node: {amount} of {resource} is not a whole number")]
    Amount {
        /// Name of the resource.
        resource: String,
        /// Amount in the Node.
        amount: String,
    },
}

impl NodeReader {
    /// Returns a reader of `node`.
    pub fn new(client: Client, node: String) -> Self {
        Self {
            nodes: Api::all(client),
            node,
        }
    }

    /// Returns how many of `resource` are allocatable; 0 if the Node does not have it.
    pub async fn allocatable(&self, resource: &str) -> Result<u64, NodeReadError> {
        let node = within(CALL_TIMEOUT, self.nodes.get(&self.node))
            .await
            .ok_or(NodeReadError::NoAnswer)??;
        let amount = node
            .status
            .and_then(|status| status.allocatable?.remove(resource))
            .map(|amount| amount.0);
        match amount {
            None => Ok(0),
            Some(amount) => whole_number(&amount).ok_or_else(|| NodeReadError::Amount {
                resource: resource.to_owned(),
                amount,
            }),
        }
    }
}

/// Parses a whole number as Kubernetes writes it: 2000 is `2k`
/// (apimachinery `pkg/api/resource`, canonical form of `DecimalSI`).
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match text.get(digits.len()..)? {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_as_kubernetes_writes_them() {
        for (text, number) in [("0", 0), ("80", 80), ("1280", 1280), ("2k", 2000), ("3M", 3_000_000)] {
            assert_eq!(whole_number(text), Some(number), "{text}");
        }
        for text in ["", "k", "1.5", "500m", "-1", "1Ki"] {
            assert_eq!(whole_number(text), None, "{text}");
        }
    }
}
