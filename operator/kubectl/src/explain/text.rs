//! An explanation as tables for people.

use crate::{
    cluster::{UnreadableObject, unreadable_lines},
    configuration::{self, short_hash},
    output::{NO_POLICY, TableCell, plain, style, table},
};
use gpunode_crds::Configuration;
use gpunode_plan::{EntryKind, EntrySource, EntryState, Explanation, ExplanationEntry, PolicyMatch};
use std::fmt::Write as _;

/// Returns a table of policies and one of what they set, then the configuration and the unreadable objects. `config` is the
/// configuration of the node.
pub fn explanation(
    explanation: &Explanation,
    config: Option<&Configuration>,
    unreadable: &[UnreadableObject],
) -> String {
    let mut text = String::new();
    if let Some(hold) = &explanation.hold {
        let paint = style::BAD;
        let _ = writeln!(text, "{paint}{}{paint:#}\n", plain(hold));
    }
    if explanation.policies.is_empty() {
        let _ = writeln!(text, "{NO_POLICY}");
    } else {
        let rows: Vec<_> = explanation.policies.iter().map(verdict).collect();
        text.push_str(&table(["POLICY", "PRIORITY", "MODE", "MATCHES", "WHY"], &rows));
    }
    if explanation.entries.is_empty() {
        let _ = writeln!(text, "\ngpunode manages nothing on node {}", plain(&explanation.node));
    } else {
        let rows: Vec<_> = explanation.entries.iter().map(entry).collect();
        let _ = write!(
            text,
            "\n{}",
            table(["WHAT", "FROM", "FIELD", "OVERRIDES", "STATE"], &rows)
        );
    }
    if let Some(config) = config {
        let heading = style::HEADING;
        let name = short_hash(&config.hash);
        let _ = writeln!(
            text,
            "\n{heading}CONFIGURATION {name}{heading:#} of policy {}",
            plain(&config.policy)
        );
        for line in configuration::describe(&config.document) {
            let _ = writeln!(text, "{}", plain(&line));
        }
    }
    text.push_str(&unreadable_lines(unreadable));
    text
}

fn verdict(policy: &PolicyMatch) -> [TableCell; 5] {
    let overridden = policy.overridden.as_ref().map(|lost| format!("overridden: {lost}"));
    let why = match (&policy.mismatch, &policy.problem) {
        (Some(mismatch), _) => match policy.leaves_after {
            Some(seconds) => format!("{mismatch}; {}", leaving_message(seconds)),
            None => mismatch.clone(),
        },
        (None, Some(problem)) => problem.clone(),
        (None, None) => {
            let governs = policy.governs.then(|| "its device plugin runs on this node".to_owned());
            governs.into_iter().chain(overridden).collect::<Vec<_>>().join("; ")
        }
    };
    let matches = match (&policy.mismatch, &policy.problem) {
        (Some(_), _) if policy.leaves_after.is_some() => TableCell::new("leaving", style::WAITING),
        (Some(_), _) => TableCell::new("no", style::PLAIN),
        (None, Some(_)) => TableCell::new("yes", style::BAD),
        (None, None) => TableCell::new("yes", style::GOOD),
    };
    [
        policy.name.as_str().into(),
        policy.priority.to_string().into(),
        format!("{:?}", policy.mode).into(),
        matches,
        why.into(),
    ]
}

/// Time left to a policy whose node selector no longer matches.
fn leaving_message(seconds: i64) -> String {
    format!("what it has here stays for {seconds} s more, in case the label comes back")
}

fn entry(entry: &ExplanationEntry) -> [TableCell; 5] {
    let (from, field) = match &entry.source {
        EntrySource::Policy {
            name,
            priority,
            field,
            also,
        } => {
            let also = if also.is_empty() {
                String::new()
            } else {
                format!(", also {}", also.join(", "))
            };
            (format!("{name} ({priority}){also}"), field.as_str())
        }
        EntrySource::Gpunode { why } => (format!("gpunode: {why}"), ""),
        EntrySource::Facts => ("GPU facts".to_owned(), ""),
        EntrySource::Nobody => ("no policy any more".to_owned(), ""),
    };
    let overrides = entry.overrides.iter().map(|it| {
        let value = if entry.kind == EntryKind::Configuration {
            short_hash(&it.value)
        } else {
            format!("\"{}\"", it.value)
        };
        format!("{value} of {} ({})", it.policy, it.priority)
    });
    let overrides: Vec<_> = overrides.collect();
    [
        what(entry).into(),
        from.into(),
        field.into(),
        overrides.join(", ").into(),
        state(entry),
    ]
}

fn what(entry: &ExplanationEntry) -> String {
    match entry.kind {
        EntryKind::Label => format!("label {}={}", entry.key, entry.value),
        EntryKind::Taint => {
            let (key, effect) = entry.key.rsplit_once(':').unwrap_or((&entry.key, ""));
            let value = if entry.value.is_empty() {
                String::new()
            } else {
                format!("={}", entry.value)
            };
            format!("taint {key}{value}:{effect}")
        }
        EntryKind::Configuration => format!("configuration {}", short_hash(&entry.value)),
    }
}

fn state(entry: &ExplanationEntry) -> TableCell {
    match (&entry.state, &entry.before) {
        (EntryState::InPlace, Some(before)) => {
            TableCell::new(format!("in place, taken over from \"{before}\""), style::GOOD)
        }
        (EntryState::InPlace, _) => TableCell::new("in place", style::GOOD),
        (EntryState::Pending, _) => TableCell::new("to be written", style::WAITING),
        (EntryState::Leaving, _) => TableCell::new("to be removed", style::WAITING),
        (EntryState::Foreign, _) => TableCell::new("already set by another writer", style::PLAIN),
        (EntryState::Conflict { message }, _) => TableCell::new(message.as_str(), style::BAD),
        (EntryState::Held, _) => TableCell::new("node left unchanged", style::BAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNodePolicy;
    use gpunode_plan::{NodeContext, NodeFacts, PolicySet, explain};
    use jiff::Timestamp;
    use serde_json::json;

    fn policy(name: &str, spec: &serde_json::Value) -> GpuNodePolicy {
        let object = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
        });
        serde_json::from_value(object).expect("a policy")
    }

    fn shown(policies: &[GpuNodePolicy]) -> String {
        let record = r#"{"version":1,"labels":{"tier":"reserved","old":"1"}}"#;
        let node = json!({
            "metadata": {
                "name": "n1", "uid": "u", "resourceVersion": "1", "annotations": {"gpunode.dev/owned": record},
                "labels": {"pool": "a", "accelerator": "theirs", "tier": "reserved", "old": "1", "same": "s\u{1b}[2J"},
            },
            "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]},
        });
        let facts = NodeFacts::of(&serde_json::from_value(node).expect("a node"));
        let explained = explain(
            &PolicySet::new(policies),
            NodeContext::new(&facts, None, Timestamp::UNIX_EPOCH),
        );
        let config = Configuration {
            policy: "v100".to_owned(),
            version: 1,
            hash: "0123456789abcdef".to_owned(),
            document: "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]".to_owned(),
        };
        anstream::adapter::strip_str(&explanation(&explained, Some(&config), &[])).to_string()
    }

    #[test]
    fn a_node_is_explained_in_tables() {
        let policies = [
            policy(
                "all",
                &json!({"nodeSelector": {}, "labels": {"tier": "standard"}, "taints": [{"key": "dedicated", "effect": "NoSchedule"}]}),
            ),
            policy(
                "t4",
                &json!({"priority": 10, "nodeSelector": {"matchLabels": {"pool": "b"}}}),
            ),
            policy(
                "v100",
                &json!({"priority": 100, "nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"tier": "reserved", "accelerator": "v100"},
                "devicePlugin": {}}),
            ),
        ];
        insta::assert_snapshot!(shown(&policies), @r#"
        POLICY   PRIORITY   MODE      MATCHES   WHY
        v100     100        Enforce   yes       KeyOwnedByAnother: label accelerator is "theirs", not "v100"
        t4       10         Enforce   no        spec.nodeSelector.matchLabels[pool]: wants "b", node has "a"
        all      0          Enforce   yes       overridden: label tier by policy v100 (priority 100)

        WHAT                                 FROM                                          FIELD                               OVERRIDES               STATE
        label accelerator=v100               v100 (100)                                    spec.labels[accelerator]            -                       label accelerator is "theirs", not "v100"
        label gpunode.dev/governed=true      gpunode: it places the agent of policy v100   -                                   -                       to be written
        label gpunode.dev/policy.v100=true   gpunode: it places the agent of policy v100   -                                   -                       to be written
        label old=1                          no policy any more                            -                                   -                       to be removed
        label tier=reserved                  v100 (100)                                    spec.labels[tier]                   "standard" of all (0)   in place
        taint dedicated:NoSchedule           all (0)                                       spec.taints[dedicated:NoSchedule]   -                       already set by another writer
        configuration ca3d163bab05           v100 (100)                                    spec.devicePlugin                   -                       to be written

        CONFIGURATION 0123456789ab of policy v100
        nvidia.com/gpu: 4 replicas per GPU (TimeSlicing)
        "#);
    }

    #[test]
    fn a_cluster_without_policies_is_explained_too() {
        insta::assert_snapshot!(shown(&[]), @r"
        no GpuNodePolicy exists yet; write one and preview it with `kubectl gpunode plan -f FILE`

        WHAT                  FROM                 FIELD   OVERRIDES   STATE
        label old=1           no policy any more   -       -           to be removed
        label tier=reserved   no policy any more   -       -           to be removed

        CONFIGURATION 0123456789ab of policy v100
        nvidia.com/gpu: 4 replicas per GPU (TimeSlicing)
        ");
    }
}
