//! Explains a node: each label, taint and configuration with the policy and the field it comes from and the values it overrides,
//! and each policy that does not match with the first condition that the node does not meet.

use crate::{
    fact_labels::is_fact_label,
    input::{
        context::NodeContext,
        facts::NodeFacts,
        gpu_node_facts::GpuNodeFacts,
        policies::{Policy, PolicySet},
        visible_labels::is_own_label,
    },
    node::{conflicts::ConflictKey, plan::NodePlan, planner::plan_node, taints::current_taints},
    outcome::PolicyOutcome,
    output::mismatch::first_mismatch,
    record::{entries::RecordEntries, node_record::NodeRecord},
    taint::TaintKey,
};
use gpunode_crds::{MPS_LABEL, OWNED_ANNOTATION, POLICY_LABEL_PREFIX, PolicyMode, TaintEffect, UNHEALTHY_TAINT};
use jiff::Timestamp;
use json_patch::PatchOperation;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Explanation of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Name of the node.
    pub node: String,
    /// Reason why gpunode leaves the node as it is, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// All policies, by falling priority.
    pub policies: Vec<PolicyMatch>,
    /// Labels, then taints, then the configuration; each by key.
    pub entries: Vec<ExplanationEntry>,
}

/// Match of one policy with the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyMatch {
    /// `metadata.name`.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.mode`.
    pub mode: PolicyMode,
    /// True if its device plugin runs on the node.
    pub governs: bool,
    /// First condition that the node does not meet, where the policy does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// Reason why the policy is not in force there, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Seconds for which the policy keeps what it has on the node although the node's labels no longer match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves_after: Option<i64>,
    /// Loss to policies of higher priority: the first key with its winner, and the number of further keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overridden: Option<String>,
}

/// Label, taint or configuration that gpunode wants or wrote on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationEntry {
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Key of the label, or key and effect of the taint; empty for the configuration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Desired value, or the recorded one where nobody wants it; for the configuration its hash.
    pub value: String,
    /// Origin of the value.
    pub source: EntrySource,
    /// Values that other policies want instead, by falling priority.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverriddenValue>,
    /// Value of somebody else from before, which the key gets back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// State of the value on the node.
    pub state: EntryState,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A label.
    Label,
    /// A taint.
    Taint,
    /// The configuration of the agent.
    Configuration,
}

/// Origin of an entry's value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "from")]
pub enum EntrySource {
    /// A field of a policy.
    Policy {
        /// Policy that decides.
        name: String,
        /// Priority of the policy.
        priority: i32,
        /// Field, such as `spec.labels[accelerator]`.
        field: String,
        /// Other policies that want the same value.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
    },
    /// gpunode itself, for a reason.
    Gpunode {
        /// Reason in words.
        why: String,
    },
    /// Facts about the node's GPUs.
    Facts,
    /// Nobody wants it any more.
    Nobody,
}

/// Value that another policy wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverriddenValue {
    /// Name of the policy.
    pub policy: String,
    /// Priority of the policy.
    pub priority: i32,
    /// Value it wants; for the configuration the hash.
    pub value: String,
}

/// State of an entry's value on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum EntryState {
    /// gpunode owns it, and it is there.
    InPlace,
    /// gpunode writes it next.
    Pending,
    /// gpunode removes it next.
    Leaving,
    /// Somebody else wrote it with the same value, so it stays.
    Foreign,
    /// Somebody else has the key with another value.
    Conflict {
        /// Conflict in words.
        message: String,
    },
    /// The node is left as it is.
    Held,
}

/// Explains a node.
pub fn explain(policies: &PolicySet, context: NodeContext<'_>) -> Explanation {
    let NodeContext { node, gpu_node, .. } = context;
    let plan = plan_node(policies, context);
    let record = NodeRecord::read(node.owned.as_deref()).unwrap_or_default();
    // The keys of a held node come from the policies in its record.
    let is_origin = |policy: &&Policy| match plan.hold {
        None => plan.matched.contains(&policy.name),
        Some(_) => record.policies.contains(&policy.name),
    };
    let mut matched: Vec<&Policy> = policies.iter().filter(is_origin).collect();
    // Policies that leave come last, whatever their priority.
    matched.sort_by_key(|policy| plan.leaving.contains_key(&policy.name));
    let explainer = NodeExplainer {
        node,
        record: &record,
        after: &record_after(&plan, &record),
        plan: &plan,
    };
    let mut entries = explainer.labels(&matched);
    entries.extend(explainer.taints(&matched));
    entries.extend(explainer.configuration(&matched, gpu_node));
    let policy_match = |policy: &Policy| PolicyMatch {
        name: policy.name.clone(),
        priority: policy.priority,
        mode: policy.mode,
        governs: plan.governing.as_ref() == Some(&policy.name),
        mismatch: first_mismatch(policy, node, &record, gpu_node),
        problem: plan.outcomes.get(&policy.name).and_then(problem),
        leaves_after: plan
            .leaving
            .get(&policy.name)
            .map(|end| seconds_until(*end, context.now)),
        overridden: plan.overridden.get(&policy.name).map(|lost| lost.message.clone()),
    };
    Explanation {
        node: node.name.clone(),
        hold: plan.hold.as_ref().map(ToString::to_string),
        policies: policies.iter().map(policy_match).collect(),
        entries,
    }
}

/// Returns whole seconds, rounded up.
fn seconds_until(end: Timestamp, now: Timestamp) -> i64 {
    let left = end.duration_since(now);
    left.as_secs() + i64::from(left.subsec_nanos() > 0)
}

fn problem(outcome: &PolicyOutcome) -> Option<String> {
    match outcome {
        PolicyOutcome::Ready | PolicyOutcome::Updating => None,
        PolicyOutcome::Failed { reason, message } | PolicyOutcome::Conflicted { reason, message } => {
            Some(format!("{}: {message}", reason.as_str()))
        }
    }
}

/// Returns the record once the plan is carried out.
fn record_after(plan: &NodePlan, record: &NodeRecord) -> NodeRecord {
    let path = ["metadata", "annotations", OWNED_ANNOTATION];
    for operation in plan.patch.iter().flat_map(|patch| &patch.0) {
        let is_record = operation
            .path()
            .tokens()
            .map(|token| token.decoded().into_owned())
            .eq(path);
        match operation {
            PatchOperation::Add(add) if is_record => return NodeRecord::read(add.value.as_str()).unwrap_or_default(),
            PatchOperation::Remove(_) if is_record => return NodeRecord::default(),
            _ => {}
        }
    }
    record.clone()
}

/// Node with its record before and after the plan.
struct NodeExplainer<'a> {
    node: &'a NodeFacts,
    record: &'a NodeRecord,
    after: &'a NodeRecord,
    plan: &'a NodePlan,
}

impl NodeExplainer<'_> {
    fn labels(&self, matched: &[&Policy]) -> Vec<ExplanationEntry> {
        let mut desired = desired_values(matched, |policy| {
            policy.labels.iter().map(|(key, value)| (key.clone(), value.clone()))
        });
        self.keep_written(&mut desired, &self.record.labels);
        // Makes one entry for each key that is desired or recorded.
        let recorded = self.record.labels.owned.keys().chain(self.after.labels.owned.keys());
        let keys: BTreeSet<&String> = desired.keys().chain(recorded).collect();
        let entry = |key: &String| {
            let owned = self.after.labels.owned.get(key);
            let recorded = owned.or_else(|| self.record.labels.owned.get(key));
            let values = desired.get(key).map(Vec::as_slice).unwrap_or_default();
            let conflict = ConflictKey::Label(key.clone());
            let mut entry = self.entry(
                EntryKind::Label,
                key,
                values,
                self.node.labels.get(key),
                owned,
                recorded,
                &conflict,
            );
            entry.before = self.after.labels.before.get(key).cloned();
            if is_own_label(key) && !is_fact_label(key) {
                entry.source = EntrySource::Gpunode {
                    why: own_label_reason(key, self.plan.governing.as_deref()),
                };
            }
            entry
        };
        keys.into_iter().map(entry).collect()
    }

    fn taints(&self, matched: &[&Policy]) -> Vec<ExplanationEntry> {
        let mut desired = desired_values(matched, |policy| {
            policy
                .taints
                .iter()
                .map(|taint| (taint.id.clone(), taint.value.clone()))
        });
        self.keep_written(&mut desired, &self.record.taints);
        // A taint that comes and goes is desired where it is in the record.
        for (id, value) in &self.after.taints.owned {
            let values = matched.iter().filter(|policy| transient_field(policy, id).is_some());
            let values: Vec<_> = values.map(|policy| (*policy, value.clone())).collect();
            if !values.is_empty() {
                desired.entry(id.clone()).or_insert(values);
            }
        }
        // Makes one entry for each key that is desired or recorded.
        let recorded = self.record.taints.owned.keys().chain(self.after.taints.owned.keys());
        let keys: BTreeSet<&TaintKey> = desired.keys().chain(recorded).collect();
        let current = current_taints(self.node);
        let entry = |id: &TaintKey| {
            let owned = self.after.taints.owned.get(id);
            let recorded = owned.or_else(|| self.record.taints.owned.get(id));
            let values = desired.get(id).map(Vec::as_slice).unwrap_or_default();
            let conflict = ConflictKey::Taint(id.clone());
            let mut entry = self.entry(
                EntryKind::Taint,
                &id.to_string(),
                values,
                current.get(id).map(String::as_str),
                owned,
                recorded,
                &conflict,
            );
            entry.before = self.after.taints.before.get(id).cloned();
            if let (EntrySource::Policy { field, .. }, Some((winner, _))) = (&mut entry.source, values.first())
                && !winner.taints.iter().any(|taint| taint.id == *id)
                && let Some(other) = transient_field(winner, id)
            {
                other.clone_into(field);
            }
            entry
        };
        keys.into_iter().map(entry).collect()
    }

    /// Drops desired values that a held node does not have.
    fn keep_written<K: Ord>(&self, desired: &mut BTreeMap<K, Vec<(&Policy, String)>>, written: &RecordEntries<K>) {
        if self.plan.hold.is_some() {
            for (key, values) in desired.iter_mut() {
                values.retain(|(_, value)| written.owned.get(key) == Some(value));
            }
            desired.retain(|_, values| !values.is_empty());
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what is known of one key")]
    fn entry(
        &self,
        kind: EntryKind,
        key: &str,
        values: &[(&Policy, String)],
        actual: Option<&str>,
        owned: Option<&String>,
        recorded: Option<&String>,
        conflict: &ConflictKey,
    ) -> ExplanationEntry {
        let field = if kind == EntryKind::Label {
            format!("spec.labels[{key}]")
        } else {
            format!("spec.taints[{key}]")
        };
        let (source, overrides) = origin(values, &field);
        let value = values.first().map(|(_, value)| value).or(recorded);
        let about = conflict.to_string();
        let disagreement = self.plan.disagreements.iter().find(|it| it.about == about);
        let conflict = self.plan.conflicts.iter().find(|it| it.key == *conflict);
        // Derives the state from the conflict, the record after the plan and the value on the node.
        let obstacle = disagreement
            .map(ToString::to_string)
            .or_else(|| conflict.map(ToString::to_string));
        let state = match (obstacle, owned) {
            _ if self.plan.hold.is_some() => EntryState::Held,
            (Some(message), _) => EntryState::Conflict { message },
            (None, Some(owned)) if actual == Some(owned.as_str()) => EntryState::InPlace,
            (None, Some(_)) => EntryState::Pending,
            (None, None) if values.is_empty() => EntryState::Leaving,
            (None, None) => EntryState::Foreign,
        };
        let source = match source {
            EntrySource::Nobody if owned.is_none() => EntrySource::Nobody,
            EntrySource::Nobody if self.plan.hold.is_none() || is_fact_label(key) => EntrySource::Facts,
            EntrySource::Nobody => EntrySource::Gpunode { why: KEPT.to_owned() },
            source => source,
        };
        let value = value.cloned().unwrap_or_default();
        ExplanationEntry {
            kind,
            key: key.to_owned(),
            value,
            source,
            overrides,
            before: None,
            state,
        }
    }

    fn configuration(&self, matched: &[&Policy], gpu_node: Option<&GpuNodeFacts>) -> Option<ExplanationEntry> {
        let document = |policy: &Policy| {
            policy
                .device_plugin
                .as_ref()?
                .document
                .as_ref()
                .map(|it| it.hash.clone())
        };
        let actual = gpu_node.and_then(GpuNodeFacts::configuration);
        // The first policy with a device plugin governs.
        let plugins = matched.iter().filter(|policy| policy.device_plugin.is_some());
        let values: Vec<_> = plugins
            .map(|policy| (*policy, document(policy).unwrap_or_default()))
            .collect();
        let (source, overrides) = origin(&values, "spec.devicePlugin");
        let desired = values.first().map(|(_, hash)| hash.clone());
        let dispute = self.plan.disagreements.iter().find(|it| it.is_about_configuration());
        let state = match (&desired, actual) {
            _ if self.plan.hold.is_some() => EntryState::Held,
            _ if dispute.is_some() => EntryState::Conflict {
                message: dispute.map(ToString::to_string).unwrap_or_default(),
            },
            (Some(desired), Some(actual)) if *desired == actual.hash => EntryState::InPlace,
            (Some(_), _) => EntryState::Pending,
            (None, _) => EntryState::Leaving,
        };
        let value = desired.or_else(|| actual.map(|config| config.hash.clone()))?;
        Some(ExplanationEntry {
            kind: EntryKind::Configuration,
            key: String::new(),
            value,
            source,
            overrides,
            before: None,
            state,
        })
    }
}

/// Reason for a label of a held node that no policy wants.
const KEPT: &str = "gpunode wrote it earlier, and it stays";

/// Returns the reason for one of gpunode's own labels.
fn own_label_reason(key: &str, governing: Option<&str>) -> String {
    let placed = key.strip_prefix(POLICY_LABEL_PREFIX);
    match governing {
        _ if key == MPS_LABEL => "MPS daemons run there, or are needed".to_owned(),
        Some(policy) if placed.is_some_and(|placed| placed != policy) => {
            format!("its agent serves until the agent of policy {policy} takes over")
        }
        Some(policy) => format!("it places the agent of policy {policy}"),
        None => "it placed an agent".to_owned(),
    }
}

/// Collects the values that the matching policies want of each key, by falling priority.
fn desired_values<'a, K: Ord, I: Iterator<Item = (K, String)>>(
    matched: &[&'a Policy],
    entries: impl Fn(&'a Policy) -> I,
) -> BTreeMap<K, Vec<(&'a Policy, String)>> {
    let mut desired: BTreeMap<K, Vec<(&Policy, String)>> = BTreeMap::new();
    for policy in matched {
        for (key, value) in entries(policy) {
            desired.entry(key).or_default().push((policy, value));
        }
    }
    desired
}

/// Returns the origin of a value and the values it overrides: the first one wins.
fn origin(values: &[(&Policy, String)], field: &str) -> (EntrySource, Vec<OverriddenValue>) {
    let Some((winner, value)) = values.first() else {
        return (EntrySource::Nobody, Vec::new());
    };
    let (same, others): (Vec<_>, Vec<_>) = values.iter().skip(1).partition(|(_, other)| other == value);
    let overridden = |(policy, value): &(&Policy, String)| OverriddenValue {
        policy: policy.name.clone(),
        priority: policy.priority,
        value: value.clone(),
    };
    let source = EntrySource::Policy {
        name: winner.name.clone(),
        priority: winner.priority,
        field: field.to_owned(),
        also: same.iter().map(|(policy, _)| policy.name.clone()).collect(),
    };
    (source, others.into_iter().map(overridden).collect())
}

/// Returns the field by which a policy wants a taint that comes and goes.
fn transient_field(policy: &Policy, id: &TaintKey) -> Option<&'static str> {
    let is_startup = id.effect == TaintEffect::NoSchedule.as_str() && policy.startup_taint.as_ref() == Some(&id.key);
    let watches = policy.unhealthy_taint.as_ref();
    let is_unhealthy = id.key == UNHEALTHY_TAINT && watches.is_some_and(|taint| taint.effect().as_str() == id.effect);
    is_startup
        .then_some("spec.startupTaint")
        .or(is_unhealthy.then_some("spec.unhealthyTaint"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_gpunodes_own_labels_names_the_policy() {
        let reason = |key: &str, governing| own_label_reason(key, governing);
        assert_eq!(reason(MPS_LABEL, Some("p")), "MPS daemons run there, or are needed");
        assert_eq!(
            reason("gpunode.dev/policy.p", Some("p")),
            "it places the agent of policy p"
        );
        assert_eq!(
            reason("gpunode.dev/policy.old", Some("p")),
            "its agent serves until the agent of policy p takes over"
        );
        assert_eq!(reason("gpunode.dev/governed", None), "it placed an agent");
    }
}
