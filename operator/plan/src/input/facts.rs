//! The few fields of a `Node` that matter to the planner, small enough to keep for every node.

use crate::{
    input::{
        gpu_node_facts::GpuNodeFacts,
        node_fields::{FieldManagerEntry, ManagedFields, NodeConditionFields, NodeFields, NodeStatusFields},
        resource_presence::ResourcePresence,
    },
    interned::{InternPool, Interned, interned_text},
    packed_map::PackedMap,
    record::node_record::NodeRecord,
    taint::Taint,
};
use gpunode_crds::{OPERATOR_FIELD_MANAGER, OWNED_ANNOTATION, RECOVERED_ANNOTATION, is_kubernetes_key};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash},
    sync::{Arc, Mutex},
};

/// Maximum number of extended resources kept per node. A `GpuNode` has at most 64, and few plugins share a node.
const MAX_RESOURCES: usize = 256;

/// Facts about one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion` of all the fields here.
    pub resource_version: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// All labels.
    pub labels: PackedMap,
    /// All taints, in the order of the node.
    pub taints: Vec<Taint>,
    /// True if the node has any annotation: a JSON patch cannot add to a missing map.
    pub annotated: bool,
    /// The annotation `gpunode.dev/owned`, shared by the nodes on which gpunode wrote the same.
    pub owned: Option<Arc<str>>,
    /// The annotation `gpunode.dev/recovered`.
    pub recovered: Option<String>,
    /// True if the condition `Ready` is True.
    pub ready: bool,
    /// Moment it became Ready, by the node's clock.
    pub ready_since: Option<Timestamp>,
    /// Boot of the machine, from `status.nodeInfo.bootID`; empty until the kubelet reports it.
    pub boot: String,
    /// Extended resources with at least one allocatable device, and their number, from `status.allocatable`.
    pub allocatable: Arc<BTreeMap<String, u64>>,
    /// State in the node's status of each resource in gpunode's record.
    pub recorded_resources: Arc<BTreeMap<String, ResourcePresence>>,
    /// Field manager that last wrote each label, for labels that a policy could want.
    pub label_managers: PackedMap,
    /// Field manager that last wrote the taints, which Kubernetes tracks only as a whole; none if it was the operator.
    pub taint_manager: Option<String>,
}

impl NodeFacts {
    /// Reads the facts of a node.
    pub fn of(node: &Node) -> Self {
        Self::from(NodeFields::from(node))
    }

    fn read_manager<'a>(
        &mut self,
        manager: &'a str,
        fields: &'a ManagedFields,
        of_labels: &mut BTreeMap<&'a str, &'a str>,
    ) {
        for key in fields.labels() {
            if self.labels.contains_key(key) && !is_kubernetes_key(key) {
                of_labels.insert(key, manager);
            }
        }
        if fields.has_taints() {
            self.taint_manager = Some(manager.to_owned());
        }
    }

    /// Returns the policies that have something on the node, by its record.
    pub fn recorded_policies(&self) -> BTreeSet<String> {
        NodeRecord::read(self.owned.as_deref()).unwrap_or_default().policies
    }

    /// Returns true unless a `GpuNode` with these owners belongs to another node of the same name. One without an owner belongs
    /// to the node.
    pub fn owns(&self, owners: &[OwnerReference]) -> bool {
        let mut uids = owners
            .iter()
            .filter(|owner| owner.kind == "Node")
            .map(|owner| &owner.uid)
            .peekable();
        uids.peek().is_none() || uids.any(|uid| *uid == self.uid)
    }

    /// Returns true if a `GpuNode` belongs to an earlier node of the same name. One that is younger than this node belongs to a
    /// later node, which the watch of Nodes has yet to deliver.
    pub(crate) fn outdates(&self, gpu_node: &GpuNodeFacts) -> bool {
        let is_younger = gpu_node
            .created
            .zip(self.created)
            .is_some_and(|(gpu_node, node)| gpu_node > node);
        !self.owns(&gpu_node.owners) && !is_younger
    }

    /// Returns true if two readings of a node differ only in their version, as after a heartbeat.
    pub fn is_same_but_version(&self, other: &Self) -> bool {
        // Names each field, so that nobody forgets a new one here; cheap comparisons come first.
        let Self {
            name,
            uid,
            resource_version: _,
            created,
            labels,
            taints,
            annotated,
            owned,
            recovered,
            ready,
            ready_since,
            boot,
            allocatable,
            recorded_resources,
            label_managers,
            taint_manager,
        } = self;
        (ready, ready_since, annotated, created, name, uid)
            == (
                &other.ready,
                &other.ready_since,
                &other.annotated,
                &other.created,
                &other.name,
                &other.uid,
            )
            && (taints, owned, allocatable, recorded_resources)
                == (
                    &other.taints,
                    &other.owned,
                    &other.allocatable,
                    &other.recorded_resources,
                )
            && (boot, recovered, labels) == (&other.boot, &other.recovered, &other.labels)
            && (label_managers, taint_manager) == (&other.label_managers, &other.taint_manager)
    }
}

impl From<NodeFields> for NodeFacts {
    fn from(fields: NodeFields) -> Self {
        let meta = fields.metadata;
        let status = fields.status.unwrap_or_default();
        let labels = meta.labels.unwrap_or_default();
        let annotations = meta.annotations.unwrap_or_default();
        let ready = ready(&status);
        let owned = annotations.get(OWNED_ANNOTATION).map(|text| interned_text(text));
        let taints = fields.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let mut facts = Self {
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version.unwrap_or_default(),
            created: meta.creation_timestamp.map(|time| time.0),
            labels: PackedMap::from(&labels),
            taints: taints.iter().map(Taint::from).collect(),
            annotated: !annotations.is_empty(),
            recovered: annotations.get(RECOVERED_ANNOTATION).cloned(),
            ready: ready.is_some(),
            ready_since: ready
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            allocatable: allocatable(&status).interned(),
            recorded_resources: recorded_resources(&status, owned.as_deref()).interned(),
            boot: status.node_info.map(|info| info.boot_id).unwrap_or_default(),
            owned,
            ..Self::default()
        };
        // Collects the last manager of each label, and of the taints.
        let mut label_managers = BTreeMap::new();
        let entries = meta.managed_fields.unwrap_or_default();
        for entry in &entries {
            let FieldManagerEntry {
                manager: Some(manager),
                fields_v1: Some(fields),
            } = entry
            else {
                continue;
            };
            // Writing one taint makes the operator the manager of all of them; nobody conflicts with gpunode itself.
            if manager != OPERATOR_FIELD_MANAGER {
                facts.read_manager(manager, fields, &mut label_managers);
            }
        }
        facts.label_managers = PackedMap::shared(&label_managers);
        facts
    }
}

impl Interned for BTreeMap<String, u64> {
    fn pool() -> &'static Mutex<InternPool<Self>> {
        static POOL: Mutex<InternPool<BTreeMap<String, u64>>> = Mutex::new(InternPool::new());
        &POOL
    }

    fn feed(&self, hasher: &mut DefaultHasher) {
        self.hash(hasher);
    }
}

impl Interned for BTreeMap<String, ResourcePresence> {
    fn pool() -> &'static Mutex<InternPool<Self>> {
        static POOL: Mutex<InternPool<BTreeMap<String, ResourcePresence>>> = Mutex::new(InternPool::new());
        &POOL
    }

    fn feed(&self, hasher: &mut DefaultHasher) {
        self.hash(hasher);
    }
}

/// Returns the condition `Ready`, where it is True.
fn ready(status: &NodeStatusFields) -> Option<&NodeConditionFields> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn recorded_resources(status: &NodeStatusFields, record: Option<&str>) -> BTreeMap<String, ResourcePresence> {
    let NodeRecord { resources, .. } = NodeRecord::read(record).unwrap_or_default();
    let (capacity, allocatable) = (status.capacity.as_ref(), status.allocatable.as_ref());
    let present = resources.into_keys().filter_map(|name| {
        let presence = ResourcePresence::in_lists(capacity, allocatable, &name)?;
        Some((name, presence))
    });
    present.take(MAX_RESOURCES).collect()
}

/// Returns extended resources by Kubernetes' own rule: a domain other than `kubernetes.io`.
fn allocatable(status: &NodeStatusFields) -> BTreeMap<String, u64> {
    let allocatable = status.allocatable.iter().flatten();
    let extended = allocatable.filter(|(name, _)| name.contains('/') && !name.contains("kubernetes.io/"));
    // The API server writes every zero as "0".
    let some = extended
        .filter(|(_, count)| count.0 != "0")
        .map(|(name, count)| (name.clone(), number(&count.0)));
    some.take(MAX_RESOURCES).collect()
}

/// Parses a whole number as the API server writes it, with a suffix for three zeros or six. Anything else counts as enough.
fn number(quantity: &str) -> u64 {
    let (digits, thousands) = match quantity.char_indices().next_back() {
        Some((at, 'k')) => (quantity.get(..at), 1_000),
        Some((at, 'M')) => (quantity.get(..at), 1_000_000),
        _ => (Some(quantity), 1),
    };
    let number = digits.and_then(|digits| digits.parse::<u64>().ok());
    number
        .and_then(|number| number.checked_mul(thousands))
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn managers_of_labels_and_taints_are_read() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": "n", "labels": {"pool": "a", "kubernetes.io/os": "linux"}, "annotations": {"x": "y"},
                "managedFields": [
                    {"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {"f:kubernetes.io/os": {}}}}},
                    {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:pool": {}, "f:gone": {}}}}},
                    {"manager": "kubectl-taint", "fieldsV1": {"f:spec": {"f:taints": {}}}},
                    {"manager": "gpunode-operator", "fieldsV1": {"f:spec": {"f:taints": {}}}},
                ],
            },
            "spec": {"taints": [{"key": "b", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute", "value": "v"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        let facts = NodeFacts::of(&node);
        assert_eq!(
            facts.label_managers,
            PackedMap::from(&BTreeMap::from([("pool", "kubectl-label")]))
        );
        assert_eq!(facts.taint_manager.as_deref(), Some("kubectl-taint"));
        assert_eq!(
            facts
                .taints
                .iter()
                .map(|taint| taint.id.key.as_str())
                .collect::<Vec<_>>(),
            ["b", "a"]
        );
        assert!(facts.ready && facts.annotated && facts.owned.is_none());
    }

    #[test]
    fn nodes_of_one_kind_share_what_is_alike() {
        let facts = |name: &str| {
            let node = json!({
                "metadata": {
                    "name": name, "labels": {"kubernetes.io/hostname": name, "pool": "a"},
                    "annotations": {OWNED_ANNOTATION: r#"{"version":1,"labels":{"a":"alike"}}"#},
                    "managedFields": [{"manager": "cloud", "fieldsV1": {"f:metadata": {"f:labels": {"f:pool": {}}}}}],
                },
                "status": {"allocatable": {"nvidia.com/gpu": "8"}},
            });
            NodeFacts::from(serde_json::from_value::<NodeFields>(node).unwrap())
        };
        let (one, other) = (facts("one"), facts("other"));
        let shared = |facts: &NodeFacts| {
            let owned = facts.owned.clone().unwrap();
            (
                owned.as_ptr(),
                Arc::as_ptr(&facts.allocatable),
                Arc::as_ptr(&facts.recorded_resources),
            )
        };
        assert_eq!(shared(&one), shared(&other));
        assert_eq!(one.label_managers, other.label_managers);
        assert_eq!(one.labels.get("kubernetes.io/hostname"), Some("one"));
    }

    #[test]
    fn only_extended_resources_that_can_be_given_out_are_kept_and_counted() {
        let node: Node = serde_json::from_value(json!({"status": {"allocatable": {
            "cpu": "8", "hugepages-2Mi": "0", "x.kubernetes.io/y": "1", "nvidia.com/gpu": "1k", "nvidia.com/gone": "0",
            "example.k8s.io/gpu": "12", "a.b/odd": "1Ki",
        }}}))
        .unwrap();
        assert_eq!(
            *NodeFacts::of(&node).allocatable,
            BTreeMap::from([
                ("a.b/odd".to_owned(), u64::MAX),
                ("example.k8s.io/gpu".to_owned(), 12),
                ("nvidia.com/gpu".to_owned(), 1000)
            ])
        );
    }

    #[test]
    fn a_heartbeat_changes_nothing_but_the_version() {
        let one = NodeFacts {
            name: "n".into(),
            resource_version: "1".into(),
            ..NodeFacts::default()
        };
        assert!(one.is_same_but_version(&NodeFacts {
            resource_version: "2".into(),
            ..one.clone()
        }));
        assert!(!one.is_same_but_version(&NodeFacts {
            ready: true,
            ..one.clone()
        }));
        let allocatable = Arc::new(BTreeMap::from([("nvidia.com/gpu".to_owned(), 8)]));
        assert!(!one.is_same_but_version(&NodeFacts {
            allocatable,
            ..one.clone()
        }));
    }
}
