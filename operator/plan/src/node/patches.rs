//! The patches of one node: labels, taints and record move together.

use crate::{
    input::{context::NodeContext, facts::NodeFacts},
    intervention::{Intervention, InterventionCause},
    node::{
        claim::KeyClaims,
        compose::DesiredValue,
        conflicts::ConflictKey,
        labels::patch_labels,
        stale_resources::{StaleResources, stale_resources_patch},
        taints::{current_taints, patch_taints},
    },
    packed_map::PackedMap,
    patch_builder::PatchBuilder,
    record::{
        node_record::NodeRecord,
        resource_use::ResourceUses,
        unknown_fields::{UnknownFields, is_same_record},
    },
    taint::{Taint, TaintKey},
};
use gpunode_crds::{OWNED_ANNOTATION, TaintEffect};
use std::collections::BTreeMap;

/// Claims to the keys of one node, and the boot in which its GPUs became allocatable.
pub struct NodeClaims<'a> {
    /// Claims to labels.
    pub labels: KeyClaims<String>,
    /// Claims to taints.
    pub taints: KeyClaims<TaintKey>,
    /// Boot that the record names.
    pub started: Option<&'a String>,
    /// Fields of the record that a later version wrote.
    pub unknown: &'a UnknownFields,
    /// Policies that no longer select the node.
    pub deselected: BTreeMap<String, i64>,
    /// Taints that evict pods, and since when.
    pub evicting: BTreeMap<String, i64>,
}

impl NodeClaims<'_> {
    /// Returns the node once its labels, taints and record are written. Loses the order of taints, which means nothing to the
    /// planner.
    pub fn facts_after(&self, node: &NodeFacts, record: Option<String>) -> NodeFacts {
        let taints_after = self.taints.applied_to(&current_taints(node)).into_iter();
        NodeFacts {
            labels: PackedMap::from(&self.labels.applied_to(&node.labels.to_map())),
            taints: taints_after.map(|(id, value)| Taint { id, value }).collect(),
            owned: record.map(Into::into),
            ..node.clone()
        }
    }

    /// Returns the record once labels and taints are written.
    pub fn record_after(&self, resources: ResourceUses) -> Option<String> {
        NodeRecord {
            labels: self.labels.entries.clone(),
            taints: self.taints.entries.clone(),
            policies: self.labels.owners.union(&self.taints.owners).cloned().collect(),
            resources,
            started: self.started.cloned(),
            unknown: self.unknown.clone(),
            deselected: self.deselected.clone(),
            evicting: self.evicting.clone(),
        }
        .write()
    }

    /// Returns the patch of the node's status.
    pub fn status_patch(&self, stale: &StaleResources, context: NodeContext<'_>) -> Option<json_patch::Patch> {
        let record = self.record_after(stale.record_after(context.now));
        stale_resources_patch(context.node, &stale.remove, record.as_deref())
    }

    /// Returns what the patch takes away from somebody: values of others that it replaces, and pods that taints evict.
    pub fn interventions(
        &self,
        labels: &BTreeMap<String, DesiredValue>,
        taints: &BTreeMap<TaintKey, DesiredValue>,
    ) -> Vec<Intervention> {
        let intervention = |key: ConflictKey, cause, is_taken: bool, desired: Option<&DesiredValue>| Intervention {
            policy: desired.and_then(|desired| {
                if is_taken {
                    desired.taker.clone()
                } else {
                    desired.policies.first().cloned()
                }
            }),
            cause,
            subject: key.to_string(),
        };
        let is_taken = |cause: &InterventionCause| *cause == InterventionCause::TakenOver;
        let of_labels = self.labels.interventions.iter().map(|(key, cause)| {
            let label = ConflictKey::Label(key.clone());
            intervention(label, *cause, is_taken(cause), labels.get(key))
        });
        let of_taints = self.taints.interventions.iter().map(|(id, cause)| {
            let taint = ConflictKey::Taint(id.clone());
            intervention(taint, *cause, is_taken(cause), taints.get(id))
        });
        // Another value evicts the pods that tolerate only the present one.
        let evicting = self.taints.set.keys();
        let evicting = evicting.filter(|id| id.effect == TaintEffect::NoExecute.as_str());
        let evicting = evicting.map(|id| {
            let taint = ConflictKey::Taint(id.clone());
            let is_taken = self.taints.interventions.get(id).is_some_and(is_taken);
            intervention(taint, InterventionCause::EvictingTaint, is_taken, taints.get(id))
        });
        of_labels.chain(of_taints).chain(evicting).collect()
    }

    /// Returns the patch of everything but the status.
    pub fn node_patch(&self, node: &NodeFacts, record: Option<&str>) -> Option<json_patch::Patch> {
        let mut patch = PatchBuilder::guarded_by(&node.resource_version);
        patch_labels(&mut patch, node, &self.labels);
        patch_taints(&mut patch, node, &self.taints);
        match record {
            _ if is_same_record(record, node.owned.as_deref()) => {}
            None => patch.remove(&["metadata", "annotations", OWNED_ANNOTATION]),
            Some(text) => {
                if !node.annotated {
                    patch.add(&["metadata", "annotations"], serde_json::Map::new());
                }
                patch.add(&["metadata", "annotations", OWNED_ANNOTATION], text);
            }
        }
        patch.build()
    }
}
