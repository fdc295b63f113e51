//! Why a node looks as it does: each label, taint and configuration with the policy and the field that it comes from and what
//! that overrode, and each policy that does not match with its first condition that fails.

use crate::{
    fact_labels::is_fact,
    input::facts::{NodeFacts, TaintKey},
    input::matching::first_mismatch,
    input::policies::{Policy, PolicySet},
    input::selectors::is_effect,
    node::conflicts::ConflictKey,
    node::plan::NodePlan,
    node::planner::plan_node,
    node::taints::current_taints,
    outcome::PolicyOutcome,
    record::{Entries, Record},
};
use gpunode_crds::{
    GpuNode, MPS_LABEL, OWNED_ANNOTATION, POLICY_LABEL_PREFIX, PRODUCT_COUNT_PREFIX, PolicyMode, TaintEffect,
    UNHEALTHY_TAINT,
};
use jiff::Timestamp;
use json_patch::PatchOperation;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Why a node looks as it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The node.
    pub node: String,
    /// Why nothing is written to it, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<String>,
    /// Every policy, the highest priority first.
    pub policies: Vec<PolicyMatch>,
    /// Labels, then taints, then the configuration; each by key.
    pub entries: Vec<ExplanationEntry>,
}

/// Whether a policy is about the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyMatch {
    /// `metadata.name`.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// `spec.mode`.
    pub mode: PolicyMode,
    /// Whether its device plugin runs on the node.
    pub governs: bool,
    /// The first condition that fails, where it does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
    /// What is in its way there, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One thing that gpunode wants or wrote on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplanationEntry {
    /// What kind of thing.
    pub kind: EntryKind,
    /// Key of the label, or key and effect of the taint; nothing for the configuration.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The value wanted, or the one written before where nobody wants it; of a configuration its hash.
    pub value: String,
    /// Where it comes from.
    pub source: EntrySource,
    /// What other policies want instead, the highest priority first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverriddenValue>,
    /// What somebody else had there, which it gets back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// What became of it.
    pub state: EntryState,
}

/// Kinds of things.
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

/// Where something comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "from")]
pub enum EntrySource {
    /// A field of a policy.
    Policy {
        /// The policy that decides.
        name: String,
        /// Its priority.
        priority: i32,
        /// The field, such as `spec.labels[accelerator]`.
        field: String,
        /// Other policies that want the same.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also: Vec<String>,
    },
    /// gpunode itself, for a reason.
    Gpunode {
        /// The reason.
        why: String,
    },
    /// What is known of the node's GPUs.
    Facts,
    /// Nobody wants it any more.
    Nobody,
}

/// What another policy wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverriddenValue {
    /// The policy.
    pub policy: String,
    /// Its priority.
    pub priority: i32,
    /// What it wants; of a configuration the hash.
    pub value: String,
}

/// What became of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum EntryState {
    /// It is there, and gpunode's.
    InPlace,
    /// It is written next.
    Pending,
    /// It is taken away next.
    Leaving,
    /// It is there with this value, written by somebody else, and stays.
    Foreign,
    /// Somebody else has the key with another value.
    Conflict {
        /// In words.
        message: String,
    },
    /// The node is left as it is.
    Held,
}

/// Explains a node. `gpu_node` is the object of the same name, where it exists.
pub fn explain(policies: &PolicySet, node: &NodeFacts, gpu_node: Option<&GpuNode>, now: Timestamp) -> Explanation {
    let plan = plan_node(policies, node, gpu_node, now);
    let record = Record::read(node.owned.as_deref()).unwrap_or_default();
    // What a node has that is left as it is comes from those who wrote it.
    let is_meant = |policy: &&Policy| match plan.hold {
        None => plan.matched.contains(&policy.name),
        Some(_) => record.policies.contains(&policy.name),
    };
    let matched: Vec<&Policy> = policies.iter().filter(is_meant).collect();
    let context = Context {
        node,
        record: &record,
        after: &record_after(&plan, &record),
        plan: &plan,
    };
    let mut entries = context.labels(&matched);
    entries.extend(context.taints(&matched));
    entries.extend(context.configuration(&matched, gpu_node));
    let verdict = |policy: &Policy| PolicyMatch {
        name: policy.name.clone(),
        priority: policy.priority,
        mode: policy.mode,
        governs: plan.governing.as_ref() == Some(&policy.name),
        mismatch: first_mismatch(policy, node, &record, gpu_node),
        problem: plan.outcomes.get(&policy.name).and_then(problem),
    };
    Explanation {
        node: node.name.clone(),
        hold: plan.hold.as_ref().map(ToString::to_string),
        policies: policies.iter().map(verdict).collect(),
        entries,
    }
}

fn problem(outcome: &PolicyOutcome) -> Option<String> {
    match outcome {
        PolicyOutcome::Ready | PolicyOutcome::Updating => None,
        PolicyOutcome::Failed { reason, message } | PolicyOutcome::Conflicted { reason, message } => {
            Some(format!("{}: {message}", reason.as_str()))
        }
    }
}

/// The record once the plan is carried out.
fn record_after(plan: &NodePlan, record: &Record) -> Record {
    let path = ["metadata", "annotations", OWNED_ANNOTATION];
    for operation in plan.patch.iter().flat_map(|patch| &patch.0) {
        let is_record = operation
            .path()
            .tokens()
            .map(|token| token.decoded().into_owned())
            .eq(path);
        match operation {
            PatchOperation::Add(add) if is_record => return Record::read(add.value.as_str()).unwrap_or_default(),
            PatchOperation::Remove(_) if is_record => return Record::default(),
            _ => {}
        }
    }
    record.clone()
}

struct Context<'a> {
    node: &'a NodeFacts,
    record: &'a Record,
    after: &'a Record,
    plan: &'a NodePlan,
}

impl Context<'_> {
    fn labels(&self, matched: &[&Policy]) -> Vec<ExplanationEntry> {
        let mut wanted = wishes(matched, |policy| {
            policy.labels.iter().map(|(key, value)| (key.clone(), value.clone()))
        });
        self.keep_written(&mut wanted, &self.record.labels);
        let recorded = self.record.labels.owned.keys().chain(self.after.labels.owned.keys());
        let keys: BTreeSet<&String> = wanted.keys().chain(recorded).collect();
        let entry = |key: &String| {
            let owned = self.after.labels.owned.get(key);
            let recorded = owned.or_else(|| self.record.labels.owned.get(key));
            let wishes = wanted.get(key).map(Vec::as_slice).unwrap_or_default();
            let conflict = ConflictKey::Label(key.clone());
            let mut entry = self.entry(
                EntryKind::Label,
                key,
                wishes,
                self.node.labels.get(key),
                owned,
                recorded,
                &conflict,
            );
            entry.before = self.after.labels.before.get(key).cloned();
            if is_effect(key) && !key.starts_with(PRODUCT_COUNT_PREFIX) {
                entry.source = EntrySource::Gpunode { why: self.effect(key) };
            }
            entry
        };
        keys.into_iter().map(entry).collect()
    }

    fn taints(&self, matched: &[&Policy]) -> Vec<ExplanationEntry> {
        let mut wanted = wishes(matched, |policy| {
            policy
                .taints
                .iter()
                .map(|taint| (taint.id.clone(), taint.value.clone()))
        });
        self.keep_written(&mut wanted, &self.record.taints);
        // Those that come and go are wanted where they are in the record.
        for (id, value) in &self.after.taints.owned {
            let wishes = matched.iter().filter(|policy| transient_field(policy, id).is_some());
            let wishes: Vec<_> = wishes.map(|policy| (*policy, value.clone())).collect();
            if !wishes.is_empty() {
                wanted.entry(id.clone()).or_insert(wishes);
            }
        }
        let recorded = self.record.taints.owned.keys().chain(self.after.taints.owned.keys());
        let keys: BTreeSet<&TaintKey> = wanted.keys().chain(recorded).collect();
        let current = current_taints(self.node);
        let entry = |id: &TaintKey| {
            let owned = self.after.taints.owned.get(id);
            let recorded = owned.or_else(|| self.record.taints.owned.get(id));
            let wishes = wanted.get(id).map(Vec::as_slice).unwrap_or_default();
            let conflict = ConflictKey::Taint(id.clone());
            let mut entry = self.entry(
                EntryKind::Taint,
                &id.to_string(),
                wishes,
                current.get(id).map(String::as_str),
                owned,
                recorded,
                &conflict,
            );
            entry.before = self.after.taints.before.get(id).cloned();
            if let (EntrySource::Policy { field, .. }, Some((winner, _))) = (&mut entry.source, wishes.first())
                && !winner.taints.iter().any(|taint| taint.id == *id)
                && let Some(other) = transient_field(winner, id)
            {
                other.clone_into(field);
            }
            entry
        };
        keys.into_iter().map(entry).collect()
    }

    /// Of a node that is left as it is, nothing but what was written there counts.
    fn keep_written<K: Ord>(&self, wanted: &mut BTreeMap<K, Vec<(&Policy, String)>>, written: &Entries<K>) {
        if self.plan.hold.is_some() {
            for (key, wishes) in wanted.iter_mut() {
                wishes.retain(|(_, value)| written.owned.get(key) == Some(value));
            }
            wanted.retain(|_, wishes| !wishes.is_empty());
        }
    }

    #[allow(clippy::too_many_arguments, reason = "what is known of one key")]
    fn entry(
        &self,
        kind: EntryKind,
        key: &str,
        wishes: &[(&Policy, String)],
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
        let (source, overrides) = origin(wishes, &field);
        let value = wishes.first().map(|(_, value)| value).or(recorded);
        let conflict = self.plan.conflicts.iter().find(|it| it.key == *conflict);
        let state = match (conflict, owned) {
            _ if self.plan.hold.is_some() => EntryState::Held,
            (Some(conflict), _) => EntryState::Conflict {
                message: conflict.to_string(),
            },
            (None, Some(owned)) if actual == Some(owned.as_str()) => EntryState::InPlace,
            (None, Some(_)) => EntryState::Pending,
            (None, None) if wishes.is_empty() => EntryState::Leaving,
            (None, None) => EntryState::Foreign,
        };
        let source = match source {
            EntrySource::Nobody if owned.is_none() => EntrySource::Nobody,
            EntrySource::Nobody if self.plan.hold.is_none() || is_fact(key) => EntrySource::Facts,
            EntrySource::Nobody => EntrySource::Gpunode {
                why: "it was written before, and stays".to_owned(),
            },
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

    /// Why gpunode has a label of its own.
    fn effect(&self, key: &str) -> String {
        match &self.plan.governing {
            _ if key == MPS_LABEL => "MPS daemons run there, or have to".to_owned(),
            Some(policy)
                if key
                    .strip_prefix(POLICY_LABEL_PREFIX)
                    .is_some_and(|placed| placed != policy) =>
            {
                format!("its agent serves until that of policy {policy} has taken over")
            }
            Some(policy) => format!("it places the agent of policy {policy}"),
            None => "it placed an agent".to_owned(),
        }
    }

    fn configuration(&self, matched: &[&Policy], gpu_node: Option<&GpuNode>) -> Option<ExplanationEntry> {
        let document = |policy: &Policy| {
            policy
                .device_plugin
                .as_ref()?
                .document
                .as_ref()
                .map(|it| it.hash.clone())
        };
        let actual = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
        // The first of those with a device plugin governs.
        let plugins = matched.iter().filter(|policy| policy.device_plugin.is_some());
        let wishes: Vec<_> = plugins
            .map(|policy| (*policy, document(policy).unwrap_or_default()))
            .collect();
        let (source, overrides) = origin(&wishes, "spec.devicePlugin");
        let wanted = wishes.first().map(|(_, hash)| hash.clone());
        let state = match (&wanted, actual) {
            _ if self.plan.hold.is_some() => EntryState::Held,
            (Some(wanted), Some(actual)) if *wanted == actual.hash => EntryState::InPlace,
            (Some(_), _) => EntryState::Pending,
            (None, _) => EntryState::Leaving,
        };
        let value = wanted.or_else(|| actual.map(|config| config.hash.clone()))?;
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

/// What each matching policy wants of each key, by falling priority.
fn wishes<'a, K: Ord, I: Iterator<Item = (K, String)>>(
    matched: &[&'a Policy],
    entries: impl Fn(&'a Policy) -> I,
) -> BTreeMap<K, Vec<(&'a Policy, String)>> {
    let mut wishes: BTreeMap<K, Vec<(&Policy, String)>> = BTreeMap::new();
    for policy in matched {
        for (key, value) in entries(policy) {
            wishes.entry(key).or_default().push((policy, value));
        }
    }
    wishes
}

/// The first of the wishes wins; the others want the same, or are overridden.
fn origin(wishes: &[(&Policy, String)], field: &str) -> (EntrySource, Vec<OverriddenValue>) {
    let Some((winner, value)) = wishes.first() else {
        return (EntrySource::Nobody, Vec::new());
    };
    let (same, others): (Vec<_>, Vec<_>) = wishes.iter().skip(1).partition(|(_, other)| other == value);
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

/// The field by which a policy wants a taint that comes and goes, if it does.
fn transient_field(policy: &Policy, id: &TaintKey) -> Option<&'static str> {
    let is_startup = id.effect == TaintEffect::NoSchedule.as_str() && policy.startup_taint.as_ref() == Some(&id.key);
    let watches = policy.unhealthy_taint.as_ref();
    let is_unhealthy = id.key == UNHEALTHY_TAINT && watches.is_some_and(|taint| taint.effect().as_str() == id.effect);
    is_startup
        .then_some("spec.startupTaint")
        .or(is_unhealthy.then_some("spec.unhealthyTaint"))
}
