//! What the planner knows of a node: the few fields of a `Node` that matter, small enough to keep for every node.

use crate::{node::stale_resources::ResourcePresence, packed_map::PackedMap, record::Record};
use gpunode_crds::{OPERATOR_FIELD_MANAGER, OWNED_ANNOTATION, RECOVERED_ANNOTATION, is_kubernetes_key};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint as NodeTaint};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most extended resources that are kept of one node. A `GpuNode` has at most 64, and few plugins share a node.
const MAX_OFFERED: usize = 256;

/// Identity of a taint: Kubernetes allows one of each key and effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaintKey {
    /// Key, such as `dedicated`.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A taint as it stands on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key and effect.
    pub id: TaintKey,
    /// Value; empty for a taint without one, which is the same to Kubernetes.
    pub value: String,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion` that everything else here was read at.
    pub resource_version: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Every label.
    pub labels: PackedMap,
    /// Every taint, in the order of the node.
    pub taints: Vec<Taint>,
    /// Whether the node has any annotation: a JSON patch cannot add to a map that is not there.
    pub annotated: bool,
    /// The annotation `gpunode.dev/owned`.
    pub owned: Option<String>,
    /// The annotation `gpunode.dev/recovered`.
    pub recovered: Option<String>,
    /// Whether the condition `Ready` is True.
    pub ready: bool,
    /// Since when it is, by the clock of the node.
    pub ready_since: Option<Timestamp>,
    /// The machine's boot, by `status.nodeInfo.bootID`; empty where the kubelet has not told.
    pub boot: String,
    /// The extended resources of which the scheduler may give out at least one there, and how many, by the kubelet's
    /// `status.allocatable`.
    pub offered: BTreeMap<String, u64>,
    /// What the status says of the resources in the record of what gpunode served there.
    pub served: BTreeMap<String, ResourcePresence>,
    /// Who last wrote each label that a policy could want, by field manager.
    pub label_managers: PackedMap,
    /// Who last wrote the taints, which Kubernetes tracks only as a whole; nobody where that was the operator.
    pub taint_manager: Option<String>,
}

impl NodeFacts {
    /// The facts of a node.
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
                .map(Taint::of)
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
            offered: offered(node),
            ..Self::default()
        };
        facts.served = served(node, facts.owned.as_deref());
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

    /// Whether two readings of a node differ in nothing but the moment they were taken, as heartbeats make them.
    pub fn same_but_version(&self, other: &Self) -> bool {
        // Named one by one, so that a field that is added is not forgotten here; the shortest first.
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
            offered,
            served,
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
            && (taints, owned, offered, served) == (&other.taints, &other.owned, &other.offered, &other.served)
            && (boot, recovered, labels) == (&other.boot, &other.recovered, &other.labels)
            && (label_managers, taint_manager) == (&other.label_managers, &other.taint_manager)
    }
}

impl Taint {
    fn of(taint: &NodeTaint) -> Self {
        Self {
            id: TaintKey {
                key: taint.key.clone(),
                effect: taint.effect.clone(),
            },
            value: taint.value.clone().unwrap_or_default(),
        }
    }
}

/// The condition `Ready`, where it is True.
fn ready(node: &Node) -> Option<&NodeCondition> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn served(node: &Node, record: Option<&str>) -> BTreeMap<String, ResourcePresence> {
    let Record { resources, .. } = Record::read(record).unwrap_or_default();
    let seen = resources
        .into_keys()
        .filter_map(|name| ResourcePresence::of(node, &name).map(|seen| (name, seen)));
    seen.take(MAX_OFFERED).collect()
}

fn boot(node: &Node) -> String {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map(|info| info.boot_id.clone()).unwrap_or_default()
}

/// Names as Kubernetes tells extended resources from its own.
fn offered(node: &Node) -> BTreeMap<String, u64> {
    let allocatable = node
        .status
        .iter()
        .flat_map(|status| status.allocatable.iter().flatten());
    let extended = allocatable.filter(|(name, _)| name.contains('/') && !name.contains("kubernetes.io/"));
    // The API server writes every zero so.
    let some = extended
        .filter(|(_, count)| count.0 != "0")
        .map(|(name, count)| (name.clone(), number(&count.0)));
    some.take(MAX_OFFERED).collect()
}

/// A whole number as the API server writes it, with a suffix for zeros in threes. What cannot be read counts as enough.
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
            NodeFacts::of(&node).offered,
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
        assert!(one.same_but_version(&NodeFacts {
            resource_version: "2".into(),
            ..one.clone()
        }));
        assert!(!one.same_but_version(&NodeFacts {
            ready: true,
            ..one.clone()
        }));
        let offered = BTreeMap::from([("nvidia.com/gpu".to_owned(), 8)]);
        assert!(!one.same_but_version(&NodeFacts { offered, ..one.clone() }));
    }
}
