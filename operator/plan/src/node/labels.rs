//! Labels of one node.

use crate::{
    input::{facts::NodeFacts, policies::Policy},
    node::{
        claim::KeyClaims,
        compose::{ComposedKeys, DesiredValue, compose},
        conflicts::{ConflictKey, KeyConflict},
    },
    patch_builder::PatchBuilder,
};
use gpunode_crds::{GOVERNED_LABEL, MPS_LABEL, policy_label};
use serde_json::{Map, Value};

/// Value of gpunode's own labels.
const TRUE: &str = "true";

/// Returns the labels that the matching policies want, and those that place the governing policy's agent and the MPS daemons.
/// The agents of `others` stay beside it: the one that serves until it has handed over, and the one whose turn is to come.
pub fn desired_labels(
    matched: &[&Policy],
    governing: Option<&Policy>,
    others: [Option<&Policy>; 2],
    needs_mps: bool,
) -> ComposedKeys<String> {
    let mut composed = compose(
        matched,
        |policy| policy.labels.iter().map(|(key, value)| (key.clone(), value.as_str())),
        |key| format!("label {key}"),
    );
    let desired = &mut composed.desired;
    if let Some(policy) = governing {
        let placed = [policy]
            .into_iter()
            .chain(others.into_iter().flatten())
            .map(|policy| policy_label(&policy.name));
        for key in placed.chain([GOVERNED_LABEL.to_owned()]) {
            desired.insert(key, DesiredValue::by_gpunode(TRUE, Some(policy)));
        }
    }
    if needs_mps {
        desired.insert(MPS_LABEL.to_owned(), DesiredValue::by_gpunode(TRUE, governing));
    }
    composed
}

/// Adds the operations for the labels to a patch.
pub fn patch_labels(patch: &mut PatchBuilder, node: &NodeFacts, claims: &KeyClaims<String>) {
    if node.labels.is_empty() && !claims.set.is_empty() {
        patch.add(&["metadata", "labels"], Value::Object(Map::new()));
    }
    for key in &claims.remove {
        patch.remove(&["metadata", "labels", key]);
    }
    for (key, value) in &claims.set {
        patch.add(&["metadata", "labels", key], value.as_str());
    }
}

/// Returns the conflicts about labels.
pub fn label_conflicts<'a>(
    node: &'a NodeFacts,
    claims: &'a KeyClaims<String>,
) -> impl Iterator<Item = KeyConflict> + 'a {
    claims.clashes.iter().map(|clash| {
        let manager = node.label_managers.get(&clash.key).map(str::to_owned);
        KeyConflict::new(ConflictKey::Label(clash.key.clone()), clash, manager)
    })
}
