//! A node as the API server would store it, and short ways to write policies.

use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{GpuNodeFacts, NodeContext, NodeFacts, NodePlan, PolicySet, plan_node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

/// Node in the JSON that the API server stores.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    pub node: Value,
    pub gpu_node: Option<GpuNode>,
    pub now: Timestamp,
}

pub fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Reads a policy from its spec in YAML.
pub fn policy(name: &str, spec: &str) -> GpuNodePolicy {
    let mut policy = GpuNodePolicy::new(name, serde_yaml::from_str(spec).unwrap());
    policy.metadata.uid = Some(format!("uid-of-{name}"));
    policy.metadata.generation = Some(1);
    policy
}

impl World {
    /// Returns a healthy node with labels, taints and annotations of other people.
    pub fn new(labels: &Value, taints: &Value, annotations: &Value) -> Self {
        let mut world = Self {
            node: json!({
                "metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels, "annotations": annotations},
                "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
            gpu_node: None,
            now: now(),
        };
        world.omit_empty();
        world
    }

    /// Returns the node of most examples.
    pub fn sample() -> Self {
        Self::new(
            &json!({"pool": "a", "kubernetes.io/os": "linux"}),
            &json!([{"key": "other", "effect": "NoSchedule", "value": "x"}, {"key": "z", "effect": "NoExecute", "timeAdded": "2025-01-01T00:00:00Z"}]),
            &json!({"team": "t"}),
        )
    }

    pub fn facts(&self) -> NodeFacts {
        NodeFacts::of(&serde_json::from_value::<Node>(self.node.clone()).unwrap())
    }

    pub fn gpu_facts(&self) -> Option<GpuNodeFacts> {
        self.gpu_node.clone().map(GpuNodeFacts::of)
    }

    pub fn plan(&self, policies: &[GpuNodePolicy]) -> NodePlan {
        plan_node(
            &PolicySet::new(policies),
            NodeContext::new(&self.facts(), self.gpu_facts().as_ref(), self.now),
        )
    }

    /// Carries out the plan for the node as the API server would.
    pub fn converge(&mut self, policies: &[GpuNodePolicy]) -> NodePlan {
        self.converge_with(&PolicySet::new(policies))
    }

    /// Carries out the plan with a set of policies.
    pub fn converge_with(&mut self, set: &PolicySet) -> NodePlan {
        let facts = self.facts();
        let plan = plan_node(set, NodeContext::new(&facts, self.gpu_facts().as_ref(), self.now));
        if let Some(patch) = &plan.status_patch {
            json_patch::patch(&mut self.node, patch).expect("a patch of the planner applies");
        }
        if let Some(patch) = &plan.patch {
            json_patch::patch(&mut self.node, patch).expect("a patch of the planner applies");
            let version: u64 = self.node["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            self.node["metadata"]["resourceVersion"] = json!((version + 1).to_string());
            self.omit_empty();
        }
        plan
    }

    /// Advances the time.
    pub fn wait(&mut self, seconds: i64) {
        self.now += jiff::SignedDuration::from_secs(seconds);
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.node["metadata"]["labels"][key].as_str()
    }

    pub fn set_label(&mut self, key: &str, value: Option<&str>) {
        let labels = self.node["metadata"]
            .as_object_mut()
            .unwrap()
            .entry("labels")
            .or_insert(json!({}));
        match value {
            Some(value) => labels[key] = json!(value),
            None => drop(labels.as_object_mut().unwrap().remove(key)),
        }
    }

    pub fn set_record(&mut self, record: Option<&str>) {
        let annotations = self.node["metadata"]
            .as_object_mut()
            .unwrap()
            .entry("annotations")
            .or_insert(json!({}));
        match record {
            Some(record) => annotations["gpunode.dev/owned"] = json!(record),
            None => drop(annotations.as_object_mut().unwrap().remove("gpunode.dev/owned")),
        }
        self.omit_empty();
    }

    pub fn record(&self) -> Option<&str> {
        self.node["metadata"]["annotations"]["gpunode.dev/owned"].as_str()
    }

    /// Returns the node without its version.
    pub fn snapshot(&self) -> Value {
        let mut node = self.node.clone();
        node["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        node
    }

    fn omit_empty(&mut self) {
        for (parent, child) in [("metadata", "labels"), ("metadata", "annotations"), ("spec", "taints")] {
            let parent = self.node[parent].as_object_mut().unwrap();
            let is_empty = match parent.get(child) {
                Some(Value::Object(map)) => map.is_empty(),
                Some(Value::Array(list)) => list.is_empty(),
                _ => false,
            };
            if is_empty {
                parent.remove(child);
            }
        }
    }
}
