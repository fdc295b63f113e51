//! Objects of which only what planning reads is kept, from the moment they are read: lists bring thousands, and most of a
//! Node is images and fields of managers.

use crate::index::cache::Versioned;
use gpunode_crds::GpuNode;
use gpunode_plan::{GpuNodeFacts, NodeFacts, NodeFields};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// A kind of which the operator keeps facts.
pub trait Reducible: Resource<DynamicType = ()> {
    /// Facts of one object.
    type Facts: Versioned;

    /// Reads the facts of an object.
    fn read_facts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Facts, D::Error>;
}

impl Reducible for Node {
    type Facts = NodeFacts;

    fn read_facts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NodeFacts, D::Error> {
        NodeFields::deserialize(deserializer).map(NodeFacts::from)
    }
}

impl Reducible for GpuNode {
    type Facts = GpuNodeFacts;

    fn read_facts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GpuNodeFacts, D::Error> {
        Self::deserialize(deserializer).map(GpuNodeFacts::of)
    }
}

/// The facts of an object of kind `K`, in the place of the object.
#[derive(Clone, Debug)]
pub struct Watched<K: Reducible> {
    /// Name and version alone.
    metadata: ObjectMeta,
    facts: K::Facts,
}

impl<K: Reducible> Watched<K> {
    /// Returns the facts.
    pub fn into_facts(self) -> K::Facts {
        self.facts
    }
}

impl<'de, K: Reducible> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let facts = K::read_facts(deserializer)?;
        let metadata = ObjectMeta {
            name: Some(facts.name().to_owned()),
            resource_version: Some(facts.version().to_owned()),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, facts })
    }
}

impl<K: Reducible> Resource for Watched<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lenient::Lenient;
    use serde_json::{Value, json};

    fn read<K: Reducible>(object: &Value) -> K::Facts {
        let object: Lenient<Watched<K>> = serde_json::from_str(&object.to_string()).unwrap();
        object.read().unwrap().into_facts()
    }

    #[test]
    fn node_is_the_same_whether_it_is_read_whole_or_as_facts() {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"pool": "a"}, "annotations": {"gpunode.dev/recovered": "2026-01-01T00:00:00Z"},
                "managedFields": [{"manager": "m", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:pool": {}}}}}]},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "images": [{"names": ["i"], "sizeBytes": 1}],
                "nodeInfo": {"architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": ""},
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let whole: Node = serde_json::from_value(node.clone()).unwrap();
        let facts = read::<Node>(&node);
        assert_eq!(facts, NodeFacts::of(&whole));
        assert!(facts.ready && facts.created.is_some() && facts.boot == "b");
        assert_eq!(facts.label_managers.get("pool"), Some("m"));
    }

    #[test]
    fn times_that_nobody_reads_may_be_out_of_range() {
        let late = "9999-12-31T23:59:59Z";
        let node = json!({"metadata": {"name": "n", "managedFields": [{"manager": "m", "time": late}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": late}]}});
        assert!(read::<Node>(&node).ready);
    }

    #[test]
    fn gpu_node_with_a_malformed_status_keeps_its_spec() {
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"release": true}, "status": {"conditions": 1}});
        let facts = read::<GpuNode>(&object);
        assert!(facts.spec.release && facts.status.is_none());
        assert_eq!((facts.name(), facts.version()), ("n", "7"));
    }
}
