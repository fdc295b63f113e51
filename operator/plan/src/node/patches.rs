//! The patches of one node: labels, taints and record move together.

use crate::{
    input::facts::{NodeFacts, Taint, TaintKey},
    node::claim::Claims,
    node::labels::patch_labels,
    node::stale_resources::{ResourceUses, StaleResources, status_patch},
    node::taints::{current_taints, patch_taints},
    packed_map::PackedMap,
    patch_builder::PatchBuilder,
    record::Record,
};
use gpunode_crds::OWNED_ANNOTATION;
use jiff::Timestamp;

/// The node once its labels, taints and record are written. The order of taints means nothing to the planner, so it is not kept here.
pub fn facts_after(
    node: &NodeFacts,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    record: Option<String>,
) -> NodeFacts {
    let taints_after = taints.applied_to(&current_taints(node)).into_iter();
    NodeFacts {
        labels: PackedMap::from(&labels.applied_to(&node.labels.to_map())),
        taints: taints_after.map(|(id, value)| Taint { id, value }).collect(),
        owned: record,
        ..node.clone()
    }
}

/// The record once its labels and taints are written.
pub fn record_after(
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    started: Option<&String>,
    resources: ResourceUses,
) -> Option<String> {
    let policies = labels.owners.union(&taints.owners).cloned().collect();
    let (labels, taints) = (labels.entries.clone(), taints.entries.clone());
    Record {
        labels,
        taints,
        policies,
        resources,
        started: started.cloned(),
    }
    .write()
}

/// The patch of its status.
pub fn status_patch_of(
    retirement: &StaleResources,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    started: Option<&String>,
    node: &NodeFacts,
    now: Timestamp,
) -> Option<json_patch::Patch> {
    let record = record_after(labels, taints, started, retirement.record_after(now));
    status_patch(node, &retirement.remove, record.as_deref())
}

/// The patch of everything but its status.
pub fn node_patch(
    node: &NodeFacts,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    record: Option<&str>,
) -> Option<json_patch::Patch> {
    let mut patch = PatchBuilder::guarded_by(&node.resource_version);
    patch_labels(&mut patch, node, labels);
    patch_taints(&mut patch, node, taints);
    match record {
        _ if record == node.owned.as_deref() => {}
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
