//! Conditions about keys that somebody else owns, and about facts that do not fit into labels.

use crate::{
    fact_labels::unfit_message,
    input::facts::NodeFacts,
    node::{
        claim::KeyClaims,
        compose::{DesiredValue, Disagreement},
        conflicts::{ConflictKey, KeyConflict},
    },
};
use gpunode_crds::{ConditionType, Reason, UntimedCondition};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the condition about keys that policies want and somebody else owns, or about which policies disagree.
pub fn conflict_condition(conflicts: &[KeyConflict], disagreements: &[Disagreement]) -> Option<UntimedCondition> {
    let messages = conflicts
        .iter()
        .map(|conflict| format!("{conflict} (wanted by {})", conflict.policies.join(" and ")));
    let messages: Vec<String> = disagreements.iter().map(ToString::to_string).chain(messages).collect();
    (!messages.is_empty()).then(|| UntimedCondition {
        of: ConditionType::Conflict,
        holds: true,
        reason: if disagreements.is_empty() {
            Reason::KeyOwnedByAnother
        } else {
            Reason::EqualPriority
        },
        message: messages.join("; "),
    })
}

/// Returns the condition about GPU fact labels that somebody else owns, and about facts that do not fit into labels. `desired`
/// holds what policies and facts want; a label that no policy wants is a fact label.
pub fn fact_labels_condition(
    node: &NodeFacts,
    desired: &BTreeMap<String, DesiredValue>,
    claims: &KeyClaims<String>,
    unfit: &[String],
) -> Option<UntimedCondition> {
    let condition = |reason, message| UntimedCondition {
        of: ConditionType::FactLabels,
        holds: false,
        reason,
        message,
    };
    let unfit = (!unfit.is_empty()).then(|| unfit_message(unfit));
    let foreign: Vec<&String> = desired
        .iter()
        .filter(|(key, value)| value.policies.is_empty() && !claims.entries.owned.contains_key(*key))
        .map(|(key, _)| key)
        .collect();
    if foreign.is_empty() {
        return unfit.map(|message| condition(Reason::InvalidFact, message));
    }
    let managers: BTreeSet<&str> = foreign.iter().filter_map(|key| node.label_managers.get(key)).collect();
    // Lists the labels whose value differs, without the word "label" before each.
    let others: Vec<String> = claims
        .clashes
        .iter()
        .filter(|clash| clash.desired.policies.is_empty())
        .map(|clash| {
            let conflict = KeyConflict::new(ConflictKey::Label(clash.key.clone()), clash, None).to_string();
            conflict.strip_prefix("label ").map(str::to_owned).unwrap_or(conflict)
        })
        .collect();
    let owned = fact_labels_message(&managers, foreign.len(), &others);
    let messages: Vec<String> = [owned].into_iter().chain(unfit).collect();
    Some(condition(Reason::OwnedByAnother, messages.join("; ")))
}

fn fact_labels_message(managers: &BTreeSet<&str>, count: usize, others: &[String]) -> String {
    let owner = if managers.is_empty() {
        "another owner".to_owned()
    } else {
        managers.iter().copied().collect::<Vec<_>>().join(" and ")
    };
    let others = if others.is_empty() {
        "with the same values".to_owned()
    } else {
        others.join("; ")
    };
    format!("{owner} keeps {count} of the GPU fact labels, as GPU feature discovery does: {others}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_owner_and_each_other_value() {
        assert_eq!(
            fact_labels_message(
                &BTreeSet::from(["nfd-master"]),
                2,
                &["nvidia.com/gpu.count is \"7\", not \"8\"".to_owned()]
            ),
            "nfd-master keeps 2 of the GPU fact labels, as GPU feature discovery does: nvidia.com/gpu.count is \"7\", not \"8\""
        );
        assert_eq!(
            fact_labels_message(&BTreeSet::new(), 1, &[]),
            "another owner keeps 1 of the GPU fact labels, as GPU feature discovery does: with the same values"
        );
    }
}
