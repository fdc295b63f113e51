//! The fields of a `Node` that become facts. A node is read straight into them: its images and most of its status,
//! which are the bulk of it, are never kept.

use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, Taint},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ManagedFieldsEntry, Time},
    },
};
use serde::{Deserialize, de::IgnoredAny};
use std::collections::BTreeMap;

/// Fields of a `Node` that become facts ([`NodeFacts`](crate::NodeFacts)).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeFields {
    pub(crate) metadata: NodeMetadataFields,
    pub(crate) spec: Option<NodeSpecFields>,
    pub(crate) status: Option<NodeStatusFields>,
}

/// Fields of `metadata`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeMetadataFields {
    pub(crate) name: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) creation_timestamp: Option<Time>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    pub(crate) managed_fields: Option<Vec<FieldManagerEntry>>,
}

/// Fields that one manager wrote last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FieldManagerEntry {
    pub(crate) manager: Option<String>,
    pub(crate) fields_v1: Option<ManagedFields>,
}

/// Fields that one manager wrote last, by their names in `managedFields`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ManagedFields {
    #[serde(rename = "f:metadata")]
    metadata: ManagedMetadata,
    #[serde(rename = "f:spec")]
    spec: ManagedSpec,
}

/// Fields of `metadata` that one manager wrote last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ManagedMetadata {
    #[serde(rename = "f:labels")]
    #[expect(clippy::zero_sized_map_values, reason = "serde reads no set from a map")]
    labels: BTreeMap<String, IgnoredAny>,
}

/// Fields of `spec` that one manager wrote last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ManagedSpec {
    #[serde(rename = "f:taints")]
    taints: Option<IgnoredAny>,
}

impl ManagedFields {
    /// Keys of the labels.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &str> {
        self.metadata.labels.keys().filter_map(|field| field.strip_prefix("f:"))
    }

    /// Returns true if the taints are among the fields.
    pub(crate) fn has_taints(&self) -> bool {
        self.spec.taints.is_some()
    }
}

/// Fields of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpecFields {
    pub(crate) taints: Option<Vec<Taint>>,
}

/// Fields of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatusFields {
    pub(crate) conditions: Option<Vec<NodeConditionFields>>,
    pub(crate) allocatable: Option<BTreeMap<String, Quantity>>,
    pub(crate) capacity: Option<BTreeMap<String, Quantity>>,
    pub(crate) node_info: Option<NodeInfoFields>,
}

/// Fields of a condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeConditionFields {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) status: String,
    pub(crate) last_transition_time: Option<Time>,
}

/// Fields of `status.nodeInfo`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeInfoFields {
    #[serde(rename = "bootID")]
    pub(crate) boot_id: String,
}

impl From<&Node> for NodeFields {
    fn from(node: &Node) -> Self {
        let meta = &node.metadata;
        let manager = |entry: &ManagedFieldsEntry| FieldManagerEntry {
            manager: entry.manager.clone(),
            fields_v1: entry
                .fields_v1
                .as_ref()
                .and_then(|fields| ManagedFields::deserialize(&fields.0).ok()),
        };
        let condition = |condition: &NodeCondition| NodeConditionFields {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            last_transition_time: condition.last_transition_time.clone(),
        };
        Self {
            metadata: NodeMetadataFields {
                name: meta.name.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                creation_timestamp: meta.creation_timestamp.clone(),
                labels: meta.labels.clone(),
                annotations: meta.annotations.clone(),
                managed_fields: meta
                    .managed_fields
                    .as_ref()
                    .map(|entries| entries.iter().map(manager).collect()),
            },
            spec: node.spec.as_ref().map(|spec| NodeSpecFields {
                taints: spec.taints.clone(),
            }),
            status: node.status.as_ref().map(|status| NodeStatusFields {
                conditions: status
                    .conditions
                    .as_ref()
                    .map(|conditions| conditions.iter().map(condition).collect()),
                allocatable: status.allocatable.clone(),
                capacity: status.capacity.clone(),
                node_info: status.node_info.as_ref().map(|info| NodeInfoFields {
                    boot_id: info.boot_id.clone(),
                }),
            }),
        }
    }
}
