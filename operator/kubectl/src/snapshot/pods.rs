//! The pods of nodes, with what decides whether a taint evicts them.

use gpunode_crds::GpuNode;
use gpunode_plan::has_ended;
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// A pod that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningPod {
    pub namespace: String,
    pub name: String,
    pub tolerations: Vec<Toleration>,
}

/// The pods of the nodes whose pods are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownPods(BTreeMap<String, Vec<RunningPod>>);

impl KnownPods {
    /// Returns the pods of a list that names those of every GPU node; nothing is known where it has no pod at all.
    pub fn of_list<'a>(pods: impl IntoIterator<Item = &'a Pod>, gpu_nodes: &[GpuNode]) -> Self {
        let mut known = Self::default();
        for pod in pods {
            if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
                known.add(&node, [pod]);
            }
        }
        if !known.0.is_empty() {
            for gpu_node in gpu_nodes {
                known.0.entry(gpu_node.name_any()).or_default();
            }
        }
        known
    }

    /// Adds the pods of a node.
    pub fn add<'a>(&mut self, node: &str, pods: impl IntoIterator<Item = &'a Pod>) {
        let running = |pod: &Pod| RunningPod {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            tolerations: pod
                .spec
                .iter()
                .flat_map(|spec| spec.tolerations.iter().flatten())
                .cloned()
                .collect(),
        };
        let pods = pods.into_iter().filter(|pod| !has_ended(pod)).map(running);
        self.0.entry(node.to_owned()).or_default().extend(pods);
    }

    /// Returns the pods of a node, if they are known.
    pub fn of(&self, node: &str) -> Option<&[RunningPod]> {
        self.0.get(node).map(Vec::as_slice)
    }

    /// Returns the pods with the fields that a plan reads.
    pub fn trimmed(&self) -> Vec<Pod> {
        let pod = |node: &String, pod: &RunningPod| Pod {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some(node.clone()),
                tolerations: (!pod.tolerations.is_empty()).then(|| pod.tolerations.clone()),
                ..PodSpec::default()
            }),
            status: None,
        };
        let of_node =
            |(node, pods): (&String, &Vec<RunningPod>)| -> Vec<Pod> { pods.iter().map(|of| pod(node, of)).collect() };
        self.0.iter().flat_map(of_node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_that_have_ended_or_run_nowhere_are_left_out() {
        let pod = |name: &str, node: Option<&str>, phase: &str| -> Pod {
            let toleration = json!({"key": "dedicated", "operator": "Exists"});
            let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"},
                "spec": {"nodeName": node, "containers": [], "tolerations": [toleration]}, "status": {"phase": phase}});
            serde_json::from_value(object).expect("a pod")
        };
        let pods = [
            pod("a", Some("n1"), "Running"),
            pod("b", Some("n1"), "Succeeded"),
            pod("c", None, "Pending"),
        ];
        let gpu_node = |name: &str| -> GpuNode {
            let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {}});
            serde_json::from_value(object).expect("a GpuNode")
        };
        let gpu_nodes = [gpu_node("n1"), gpu_node("n2")];
        let known = KnownPods::of_list(&pods, &gpu_nodes);
        let names = |node: &str| {
            known
                .of(node)
                .map(|pods| pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(
            [names("n1"), names("n2"), names("n3")],
            [Some(vec!["a"]), Some(vec![]), None]
        );
        let trimmed = known.trimmed();
        assert_eq!(KnownPods::of_list(&trimmed, &gpu_nodes), known, "a dump says the same");
        assert_eq!(
            KnownPods::of_list(&[], &gpu_nodes),
            KnownPods::default(),
            "a list without pods says nothing"
        );
    }
}
