//! Decides whether an agent that has handed over takes the node back: its policy governs the node again, and an agent of another
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
    /// Returns true if the condition holds now.
    pub fn is_met(&self) -> bool {
        may_take_back(&self.policy, &self.gpu_node.borrow())
    }

    /// Waits until the condition holds.
    pub async fn wait_until_met(&self) {
        let mut gpu_node = self.gpu_node.clone();
        if gpu_node
            .wait_for(|gpu_node| may_take_back(&self.policy, gpu_node))
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }
}

fn may_take_back(policy: &str, gpu_node: &GpuNodeState) -> bool {
    let GpuNodeState::Present(object) = gpu_node else {
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

    fn gpu_node(spec: &Value, status: &Value) -> GpuNodeState {
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
            "spec": spec, "status": status});
        GpuNodeState::Present(std::sync::Arc::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn an_agent_takes_the_node_back_where_its_policy_governs_and_another_serves() {
        let config = |policy: &str| json!({"config": {"policy": policy, "hash": "1", "document": "", "version": 1}});
        let agent = |policy: &str| json!({"agent": {"policy": policy}});
        assert!(may_take_back("a", &gpu_node(&config("a"), &agent("b"))));
        assert!(
            !may_take_back("a", &gpu_node(&config("b"), &agent("b"))),
            "another governs"
        );
        assert!(
            !may_take_back("a", &gpu_node(&config("a"), &agent("a"))),
            "a newer agent of its own policy serves"
        );
        assert!(
            !may_take_back("a", &gpu_node(&config("a"), &json!({}))),
            "nobody says who serves"
        );
        assert!(!may_take_back("", &gpu_node(&json!({}), &agent("b"))));
        assert!(!may_take_back("a", &GpuNodeState::Unknown) && !may_take_back("a", &GpuNodeState::Absent));
    }
}
