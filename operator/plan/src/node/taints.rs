//! Taints of one node. Kubernetes keeps them as a list; foreign ones keep their place in it, byte for byte, because every
//! operation names the index of one taint that is ours.

use crate::{
    input::facts::{NodeFacts, TaintKey},
    input::policies::Policy,
    node::claim::Claims,
    node::compose::{Disagreement, Wanted, compose},
    node::conflicts::{ConflictKey, KeyConflict},
    patch_builder::PatchBuilder,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The taints that the matching policies want.
pub fn wanted_taints(matched: &[&Policy]) -> Result<BTreeMap<TaintKey, Wanted>, Disagreement> {
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

/// The taints of a node by identity.
pub fn current_taints(node: &NodeFacts) -> BTreeMap<TaintKey, String> {
    node.taints
        .iter()
        .map(|taint| (taint.id.clone(), taint.value.clone()))
        .collect()
}

/// Adds the operations for the taints.
pub fn patch_taints(patch: &mut PatchBuilder, node: &NodeFacts, claims: &Claims<TaintKey>) {
    let mut present = BTreeSet::new();
    // From the end, so that the indices before it stay true.
    for (index, taint) in node.taints.iter().enumerate().rev() {
        let index = index.to_string();
        present.insert(&taint.id);
        if claims.remove.contains(&taint.id) {
            patch.remove(&["spec", "taints", &index]);
        } else if let Some(value) = claims.set.get(&taint.id) {
            if value.is_empty() {
                // As it was before it had a value.
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

/// The conflicts about taints.
pub fn taint_conflicts<'a>(
    node: &'a NodeFacts,
    claims: &'a Claims<TaintKey>,
) -> impl Iterator<Item = KeyConflict> + 'a {
    claims
        .clashes
        .iter()
        .map(|clash| KeyConflict::of(ConflictKey::Taint(clash.key.clone()), clash, node.taint_manager.clone()))
}
