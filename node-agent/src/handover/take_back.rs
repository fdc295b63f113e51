//! Decides if an agent that has handed over takes the node back: its policy governs the node again, and an agent of another
//! policy still serves it.

use crate::api_server::gpu_node::GpuNodeState;
use tokio::sync::watch;

/// Condition under which an agent takes the node back.
#[derive(Clone, Debug)]
pub struct TakeBack {
    /// Policy of this agent; empty without a policy.
    pub policy: String,
    /// The watched GpuNode; stays unknown without an API server.
    pub gpu_node: watch::Receiver<GpuNodeState>,
}

impl TakeBack {
    /// Returns whether the condition holds now.
    pub fn is_back(&self) -> bool {
        is_wanted_back(&self.policy, &self.gpu_node.borrow())
    }

    /// Waits until the condition holds.
    pub async fn back(&self) {
        let mut gpu_node = self.gpu_node.clone();
        if gpu_node
            .wait_for(|seen| is_wanted_back(&self.policy, seen))
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }
}

fn is_wanted_back(policy: &str, seen: &GpuNodeState) -> bool {
    let GpuNodeState::Present(object) = seen else {
        return false;
    };
    let governs = object
        .spec
        .config
        .as_ref()
        .is_some_and(|config| config.policy == policy);
    let serving = object
        .status
        .as_ref()
        .and_then(|status| status["agent"]["policy"].as_str());
    governs && serving.is_some_and(|serving| serving != policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn seen(spec: &Value, status: &Value) -> GpuNodeState {
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
            "spec": spec, "status": status});
        GpuNodeState::Present(std::sync::Arc::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn an_agent_is_wanted_back_where_its_policy_governs_and_another_serves() {
        let config = |policy: &str| json!({"config": {"policy": policy, "hash": "1", "document": "", "version": 1}});
        let agent = |policy: &str| json!({"agent": {"policy": policy}});
        assert!(is_wanted_back("a", &seen(&config("a"), &agent("b"))));
        assert!(
            !is_wanted_back("a", &seen(&config("b"), &agent("b"))),
            "another governs"
        );
        assert!(
            !is_wanted_back("a", &seen(&config("a"), &agent("a"))),
            "a newer agent of its own policy serves"
        );
        assert!(
            !is_wanted_back("a", &seen(&config("a"), &json!({}))),
            "nobody says who serves"
        );
        assert!(!is_wanted_back("", &seen(&json!({}), &agent("b"))));
        assert!(!is_wanted_back("a", &GpuNodeState::Unknown) && !is_wanted_back("a", &GpuNodeState::Absent));
    }
}
