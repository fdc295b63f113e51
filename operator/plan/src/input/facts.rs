//! The few fields of a `Node` that matter to the planner, small enough to keep for every node.

use crate::{
    input::resource_presence::ResourcePresence, packed_map::PackedMap, record::node_record::NodeRecord, taint::Taint,
};
use gpunode_crds::{GpuNode, OPERATOR_FIELD_MANAGER, OWNED_ANNOTATION, RECOVERED_ANNOTATION, is_kubernetes_key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

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
    /// The annotation `gpunode.dev/owned`.
    pub owned: Option<String>,
    /// The annotation `gpunode.dev/recovered`.
    pub recovered: Option<String>,
    /// True if the condition `Ready` is True.
    pub ready: bool,
    /// Moment it became Ready, by the node's clock.
    pub ready_since: Option<Timestamp>,
    /// Boot of the machine, from `status.nodeInfo.bootID`; empty until the kubelet reports it.
    pub boot: String,
    /// Extended resources with at least one allocatable device, and their number, from `status.allocatable`.
    pub allocatable: BTreeMap<String, u64>,
    /// State in the node's status of each resource in gpunode's record.
    pub recorded_resources: BTreeMap<String, ResourcePresence>,
    /// Field manager that last wrote each label, for labels that a policy could want.
    pub label_managers: PackedMap,
    /// Field manager that last wrote the taints, which Kubernetes tracks only as a whole; none if it was the operator.
    pub taint_manager: Option<String>,
}

impl NodeFacts {
    /// Reads the facts of a node.
    pub fn of(node: &Node) -> Self {
        let meta = &node.metadata;
        let annotations = meta.annotations.as_ref();
        let ready = ready(node);
        let mut facts = Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            labels: meta.labels.as_ref().map(PackedMap::from).unwrap_or_default(),
            taints: node
                .spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten())
                .map(Taint::from)
                .collect(),
            annotated: annotations.is_some_and(|annotations| !annotations.is_empty()),
            owned: annotations
                .and_then(|annotations| annotations.get(OWNED_ANNOTATION))
                .cloned(),
            recovered: annotations
                .and_then(|annotations| annotations.get(RECOVERED_ANNOTATION))
                .cloned(),
            ready: ready.is_some(),
            ready_since: ready
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            boot: boot(node),
            allocatable: allocatable(node),
            ..Self::default()
        };
        facts.recorded_resources = recorded_resources(node, facts.owned.as_deref());
        // Collects the last manager of each label, and of the taints.
        let mut label_managers = BTreeMap::new();
        for entry in meta.managed_fields.iter().flatten() {
            let (Some(manager), Some(fields)) = (&entry.manager, &entry.fields_v1) else {
                continue;
            };
            // Writing one taint makes the operator the manager of all of them; nobody conflicts with gpunode itself.
            if manager != OPERATOR_FIELD_MANAGER {
                facts.read_manager(manager, &fields.0, &mut label_managers);
            }
        }
        facts.label_managers = PackedMap::from(&label_managers);
        facts
    }

    fn read_manager<'a>(&mut self, manager: &'a str, fields: &'a Value, of_labels: &mut BTreeMap<&'a str, &'a str>) {
        let labels = fields.pointer("/f:metadata/f:labels").and_then(Value::as_object);
        for key in labels
            .into_iter()
            .flatten()
            .filter_map(|(field, _)| field.strip_prefix("f:"))
        {
            if self.labels.contains_key(key) && !is_kubernetes_key(key) {
                of_labels.insert(key, manager);
            }
        }
        if fields.pointer("/f:spec/f:taints").is_some() {
            self.taint_manager = Some(manager.to_owned());
        }
    }

    /// Returns the policies that have something on the node, by its record.
    pub fn recorded_policies(&self) -> BTreeSet<String> {
        NodeRecord::read(self.owned.as_deref()).unwrap_or_default().policies
    }

    /// Returns true unless a `GpuNode` belongs to another node of the same name. One without an owner belongs to the node.
    pub fn owns(&self, gpu_node: &GpuNode) -> bool {
        let owners = gpu_node.metadata.owner_references.iter().flatten();
        let mut uids = owners
            .filter(|owner| owner.kind == "Node")
            .map(|owner| &owner.uid)
            .peekable();
        uids.peek().is_none() || uids.any(|uid| *uid == self.uid)
    }

    /// Returns true if a `GpuNode` belongs to an earlier node of the same name. One that is younger than this node belongs to a
    /// later node, which the watch of Nodes has yet to deliver.
    pub(crate) fn outdates(&self, gpu_node: &GpuNode) -> bool {
        let created = gpu_node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_younger = created
            .zip(self.created)
            .is_some_and(|(gpu_node, node)| gpu_node > node);
        !self.owns(gpu_node) && !is_younger
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

/// Returns the condition `Ready`, where it is True.
fn ready(node: &Node) -> Option<&NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn recorded_resources(node: &Node, record: Option<&str>) -> BTreeMap<String, ResourcePresence> {
    let NodeRecord { resources, .. } = NodeRecord::read(record).unwrap_or_default();
    let present = resources
        .into_keys()
        .filter_map(|name| ResourcePresence::of(node, &name).map(|presence| (name, presence)));
    present.take(MAX_RESOURCES).collect()
}

fn boot(node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

/// Returns extended resources by Kubernetes' own rule: a domain other than `kubernetes.io`.
fn allocatable(node: &Node) -> BTreeMap<String, u64> {
    let allocatable = node
        .status
        .iter()
        .flat_map(|status| status.allocatable.iter().flatten());
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
    fn only_extended_resources_that_can_be_given_out_are_kept_and_counted() {
        let node: Node = serde_json::from_value(json!({"status": {"allocatable": {
            "cpu": "8", "hugepages-2Mi": "0", "x.kubernetes.io/y": "1", "nvidia.com/gpu": "1k", "nvidia.com/gone": "0",
            "example.k8s.io/gpu": "12", "a.b/odd": "1Ki",
        }}}))
        .unwrap();
        assert_eq!(
            NodeFacts::of(&node).allocatable,
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
        let allocatable = BTreeMap::from([("nvidia.com/gpu".to_owned(), 8)]);
        assert!(!one.is_same_but_version(&NodeFacts {
            allocatable,
            ..one.clone()
        }));
    }
}
