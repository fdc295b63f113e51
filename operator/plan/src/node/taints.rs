//! Taints of one node. Kubernetes stores them as a list. Every operation names the index of one of gpunode's own taints, so that
//! all others keep their place, byte for byte.

use crate::{
    input::{facts::NodeFacts, policies::Policy},
    node::{
        claim::KeyClaims,
        compose::{ComposedKeys, compose},
        conflicts::{ConflictKey, KeyConflict},
    },
    patch_builder::PatchBuilder,
    taint::TaintKey,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the taints that the matching policies want.
pub fn desired_taints(matched: &[&Policy]) -> ComposedKeys<TaintKey> {
    compose(
        matched,
        |policy| {
            policy
                .taints
                .iter()
                .map(|taint| (taint.id.clone(), taint.value.as_str()))
        },
        |id| format!("taint {id}"),
    )
}

/// Returns the taints of a node by identity.
pub fn current_taints(node: &NodeFacts) -> BTreeMap<TaintKey, String> {
    node.taints
        .iter()
        .map(|taint| (taint.id.clone(), taint.value.clone()))
        .collect()
}

/// Adds the operations for the taints to a patch.
pub fn patch_taints(patch: &mut PatchBuilder, node: &NodeFacts, claims: &KeyClaims<TaintKey>) {
    let mut present = BTreeSet::new();
    // Works from the end, so that removals do not shift the indices still to come.
    for (index, taint) in node.taints.iter().enumerate().rev() {
        let index = index.to_string();
        present.insert(&taint.id);
        if claims.remove.contains(&taint.id) {
            patch.remove(&["spec", "taints", &index]);
        } else if let Some(value) = claims.set.get(&taint.id) {
            if value.is_empty() {
                // The taint had no value before.
                patch.remove(&["spec", "taints", &index, "value"]);
                continue;
            }
            patch.add(&["spec", "taints", &index, "value"], value.as_str());
        }
    }
    let mut added = claims.set.iter().filter(|(id, _)| !present.contains(id)).peekable();
    if node.taints.is_empty() && added.peek().is_some() {
        patch.add(&["spec", "taints"], Value::Array(Vec::new()));
    }
    for (id, value) in added {
        patch.add(&["spec", "taints", "-"], taint_object(id, value));
    }
}

fn taint_object(id: &TaintKey, value: &str) -> Value {
    let mut taint = json!({"key": id.key, "effect": id.effect});
    if !value.is_empty()
        && let Some(taint) = taint.as_object_mut()
    {
        taint.insert("value".to_owned(), Value::from(value));
    }
    taint
}

/// Returns the conflicts about taints.
pub fn taint_conflicts<'a>(
    node: &'a NodeFacts,
    claims: &'a KeyClaims<TaintKey>,
) -> impl Iterator<Item = KeyConflict> + 'a {
    claims
        .clashes
        .iter()
        .map(|clash| KeyConflict::new(ConflictKey::Taint(clash.key.clone()), clash, node.taint_manager.clone()))
}
