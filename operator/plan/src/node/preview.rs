//! The changes that a policy in mode Preview would make on one node: the difference between the node without and with it.

use crate::{
    gpu_node::configuration::desired_configuration,
    input::{facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::Policy},
    mig_layouts::preview::layout_previews,
    node::{hold::NodeHold, plan::NodePlan},
    outcome::PolicyOutcome,
    taint::Taint,
};
use gpunode_crds::{NodePreview, PreviewTaint, Reason, TaintEffect};

/// Maximum length of an entry of `conflicts` in the schema.
const MAX_CONFLICT_CHARS: usize = 512;

/// Returns the outcome, and a preview where anything would change or conflict. `before` is the node once everything else is
/// carried out, `with` the plan with the policy, `after` the node then, and `gpu_node` its GPUs.
pub fn preview_of(
    policy: &Policy,
    before: &NodeFacts,
    with: &NodePlan,
    after: &NodeFacts,
    gpu_node: Option<&GpuNodeFacts>,
) -> (PolicyOutcome, Option<NodePreview>) {
    let mut preview = NodePreview {
        node: before.name.clone(),
        ..NodePreview::default()
    };
    if let Some(hold) = &with.hold {
        if let NodeHold::Paused(_) = hold {
            preview.conflicts.push(bounded(hold));
        }
        let outcome = with.outcomes.get(&policy.name).cloned().unwrap_or(PolicyOutcome::Ready);
        return (outcome, (!preview.conflicts.is_empty()).then_some(preview));
    }
    // Compares labels and taints of both nodes.
    let new_labels = after
        .labels
        .iter()
        .filter(|(key, value)| before.labels.get(key) != Some(*value));
    preview.set_labels = new_labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let old_labels = before.labels.iter().filter(|(key, _)| !after.labels.contains_key(key));
    preview.remove_labels = old_labels.map(|(key, _)| key.to_owned()).collect();
    preview.set_taints = after
        .taints
        .iter()
        .filter(|it| !before.taints.contains(it))
        .filter_map(preview_taint)
        .collect();
    let kept = |taint: &Taint| after.taints.iter().any(|other| other.id == taint.id);
    preview.remove_taints = before
        .taints
        .iter()
        .filter(|it| !kept(it))
        .filter_map(preview_taint)
        .collect();
    if with.governing.as_deref() == Some(&policy.name) {
        preview.config_hash = desired_configuration(policy).map(|configuration| configuration.hash);
        let groups = policy
            .device_plugin
            .as_ref()
            .map_or(&[][..], |plugin| &plugin.mig_layout);
        preview.layouts = layout_previews(gpu_node.map_or(&[], GpuNodeFacts::gpus), groups);
    }
    let conflicts = with
        .conflicts
        .iter()
        .filter(|conflict| conflict.policies.contains(&policy.name));
    preview.conflicts = conflicts.map(bounded).collect();
    let disagreements = with.disagreements_of(&policy.name);
    preview.conflicts.extend(disagreements.iter().map(bounded));
    let outcome = if let Some(refusal) = &policy.refusal {
        PolicyOutcome::failed(Reason::InvalidSpec, refusal)
    } else if !disagreements.is_empty() {
        PolicyOutcome::conflicted(Reason::EqualPriority, preview.conflicts.join("; "))
    } else if !preview.conflicts.is_empty() {
        PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, preview.conflicts.join("; "))
    } else if preview
        == (NodePreview {
            node: before.name.clone(),
            ..NodePreview::default()
        })
    {
        return (PolicyOutcome::Ready, None);
    } else {
        PolicyOutcome::Updating
    };
    (outcome, Some(preview))
}

fn bounded(conflict: &impl ToString) -> String {
    conflict.to_string().chars().take(MAX_CONFLICT_CHARS).collect()
}

fn preview_taint(taint: &Taint) -> Option<PreviewTaint> {
    let effects = [
        TaintEffect::NoSchedule,
        TaintEffect::PreferNoSchedule,
        TaintEffect::NoExecute,
    ];
    Some(PreviewTaint {
        key: taint.id.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: effects.into_iter().find(|effect| effect.as_str() == taint.id.effect)?,
    })
}
