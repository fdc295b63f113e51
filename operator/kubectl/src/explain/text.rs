//! An explanation as tables for people.

use super::gpu_layouts::ExplainedLayout;
use crate::{
    cluster::{UnreadableObject, unreadable_lines},
    configuration::{self, short_hash},
    output::{NO_POLICY, TableCell, TableColumn, TextWidth, plain, style, table, wrapped},
};
use gpunode_crds::Configuration;
use gpunode_plan::{EntryKind, EntrySource, EntryState, Explanation, ExplanationEntry, PolicyMatch};
use std::fmt::Write as _;

/// Returns a table of policies and one of what they set, then the configuration and the unreadable objects. `config` is the
/// configuration of the node, with the MIG layouts of its GPUs. Labels with facts about GPUs are counted, or listed with `all`.
pub fn explanation(
    explanation: &Explanation,
    config: Option<(&Configuration, &[ExplainedLayout])>,
    unreadable: &[UnreadableObject],
    all: bool,
    width: TextWidth,
) -> String {
    let mut text = String::new();
    if let Some(hold) = &explanation.hold {
        let paint = style::BAD;
        let _ = writeln!(text, "{paint}{}{paint:#}\n", wrapped(&plain(hold), width, 2));
    }
    if explanation.policies.is_empty() {
        let _ = writeln!(text, "{}", wrapped(NO_POLICY, width, 2));
    } else {
        let rows: Vec<_> = explanation.policies.iter().map(verdict).collect();
        let columns = [
            TableColumn::new("POLICY"),
            TableColumn::new("PRIORITY"),
            TableColumn::new("MODE"),
            TableColumn::new("MATCHES"),
            TableColumn::below("WHY"),
        ];
        text.push_str(&table(width, columns, &rows));
    }
    if explanation.entries.is_empty() {
        let _ = writeln!(text, "\ngpunode manages nothing on node {}", plain(&explanation.node));
    } else {
        let columns = [
            TableColumn::new("WHAT"),
            TableColumn::below_after(1, "FROM"),
            TableColumn::below("FIELD"),
            TableColumn::below_after(2, "OVERRIDES"),
            TableColumn::below_after(3, "STATE"),
        ];
        let _ = write!(text, "\n{}", table(width, columns, &rows(explanation, all)));
    }
    if let Some((config, layouts)) = config {
        let heading = style::HEADING;
        let name = short_hash(&config.hash);
        let _ = writeln!(
            text,
            "\n{heading}CONFIGURATION {name}{heading:#} of policy {}",
            plain(&config.policy)
        );
        for line in configuration::describe(&config.document) {
            let _ = writeln!(text, "{}", wrapped(&plain(&line), width, 2));
        }
        text.push_str(&layout_table(layouts, width));
    }
    text.push_str(&unreadable_lines(unreadable, width));
    text
}

fn layout_table(layouts: &[ExplainedLayout], width: TextWidth) -> String {
    let row = |layout: &ExplainedLayout| -> [TableCell; 5] {
        let gpus: Vec<String> = layout.gpus.iter().map(ToString::to_string).collect();
        let field = layout.field.as_deref().unwrap_or("no group: stays as it is");
        [
            gpus.join(", ").into(),
            layout.wanted.as_deref().unwrap_or_default().into(),
            layout.observed.as_deref().unwrap_or_default().into(),
            layout.phase.unwrap_or_default().into(),
            field.into(),
        ]
    };
    let rows: Vec<_> = layouts.iter().map(row).collect();
    let columns = [
        TableColumn::new("GPUS"),
        TableColumn::new("MIG LAYOUT"),
        TableColumn::below_after(1, "HAS"),
        TableColumn::new("PHASE"),
        TableColumn::below("FIELD"),
    ];
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", table(width, columns, &rows))
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
    format!("keeps what it has here for {seconds} s more, in case the label comes back")
}

/// Returns a row for each entry. Unless `all`, labels with facts about GPUs are one row for each state.
fn rows(explanation: &Explanation, all: bool) -> Vec<[TableCell; 5]> {
    let is_counted = |entry: &ExplanationEntry| {
        !all && entry.source == EntrySource::Facts && entry.overrides.is_empty() && entry.before.is_none()
    };
    let entries = &explanation.entries;
    let mut counted: Vec<&EntryState> = Vec::new();
    let mut rows = Vec::new();
    for of in entries {
        let alike = entries
            .iter()
            .filter(|it| is_counted(it) && it.state == of.state)
            .count();
        if !is_counted(of) || alike == 1 {
            rows.push(entry(of, &explanation.policies));
        } else if !counted.contains(&&of.state) {
            counted.push(&of.state);
            let mut row = entry(of, &explanation.policies);
            row[0] = format!("{alike} labels (list them with --all)").into();
            rows.push(row);
        }
    }
    rows
}

fn entry(entry: &ExplanationEntry, policies: &[PolicyMatch]) -> [TableCell; 5] {
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
        state(entry, policies),
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

fn state(entry: &ExplanationEntry, policies: &[PolicyMatch]) -> TableCell {
    let is_told = |message: &str| {
        let mut problems = policies.iter().filter_map(|policy| policy.problem.as_ref());
        problems.any(|problem| problem.contains(message))
    };
    match (&entry.state, &entry.before) {
        (EntryState::InPlace, Some(before)) => {
            TableCell::new(format!("in place, taken over from \"{before}\""), style::GOOD)
        }
        (EntryState::InPlace, _) => TableCell::new("in place", style::GOOD),
        (EntryState::Pending, _) => TableCell::new("to be written", style::WAITING),
        (EntryState::Leaving, _) => TableCell::new("to be removed", style::WAITING),
        (EntryState::Foreign, _) => TableCell::new("already set by another writer", style::PLAIN),
        (EntryState::Conflict { message }, _) if is_told(message) => TableCell::new("conflict: see WHY", style::BAD),
        (EntryState::Conflict { message }, _) => TableCell::new(message.as_str(), style::BAD),
        (EntryState::Held, _) => TableCell::new("node left unchanged", style::BAD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNodePolicy;
    use gpunode_plan::{GpuNodeFacts, NodeContext, NodeFacts, PolicySet, explain};
    use jiff::Timestamp;
    use serde_json::json;

    fn policy(name: &str, spec: &serde_json::Value) -> GpuNodePolicy {
        let object = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
        });
        serde_json::from_value(object).expect("a policy")
    }

    fn shown(policies: &[GpuNodePolicy], width: TextWidth) -> String {
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
        anstream::adapter::strip_str(&explanation(&explained, Some((&config, &[])), &[], false, width)).to_string()
    }

    fn policies() -> [GpuNodePolicy; 3] {
        [
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
        ]
    }

    #[test]
    fn a_node_is_explained_in_tables() {
        insta::assert_snapshot!(shown(&policies(), TextWidth::UNLIMITED), @r#"
        POLICY   PRIORITY   MODE      MATCHES   WHY
        v100     100        Enforce   yes       KeyOwnedByAnother: label accelerator is "theirs", not "v100"
        t4       10         Enforce   no        spec.nodeSelector.matchLabels[pool]: wants "b", node has "a"
        all      0          Enforce   yes       overridden: label tier by policy v100 (priority 100)

        WHAT                                 FROM                                          FIELD                               OVERRIDES               STATE
        label accelerator=v100               v100 (100)                                    spec.labels[accelerator]            -                       conflict: see WHY
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
    fn a_policy_that_leaves_says_how_long_it_stays() {
        let node = json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1", "labels": {"pool": "a"}}});
        let facts = NodeFacts::of(&serde_json::from_value(node).expect("a node"));
        let [_, t4, _] = policies();
        let context = NodeContext::new(&facts, None, Timestamp::UNIX_EPOCH);
        let mut explained = explain(&PolicySet::new(&[t4]), context);
        explained.policies[0].leaves_after = Some(20);
        let text = explanation(&explained, None, &[], false, TextWidth::UNLIMITED);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string(), @r#"
        POLICY   PRIORITY   MODE      MATCHES   WHY
        t4       10         Enforce   leaving   spec.nodeSelector.matchLabels[pool]: wants "b", node has "a"; keeps what it has here for 20 s more, in case the label comes back

        gpunode manages nothing on node n1
        "#);
    }

    #[test]
    fn an_explanation_fits_a_terminal_of_80_columns() {
        insta::assert_snapshot!(shown(&policies(), TextWidth::of(80)), @r#"
        POLICY   PRIORITY   MODE      MATCHES
        v100     100        Enforce   yes
          WHY KeyOwnedByAnother: label accelerator is "theirs", not "v100"
        t4       10         Enforce   no
          WHY spec.nodeSelector.matchLabels[pool]: wants "b", node has "a"
        all      0          Enforce   yes
          WHY overridden: label tier by policy v100 (priority 100)

        WHAT                                 STATE
        label accelerator=v100               conflict: see WHY
          FROM v100 (100); FIELD spec.labels[accelerator]
        label gpunode.dev/governed=true      to be written
          FROM gpunode: it places the agent of policy v100
        label gpunode.dev/policy.v100=true   to be written
          FROM gpunode: it places the agent of policy v100
        label old=1                          to be removed
          FROM no policy any more
        label tier=reserved                  in place
          FROM v100 (100); FIELD spec.labels[tier]; OVERRIDES "standard" of all (0)
        taint dedicated:NoSchedule           already set by another writer
          FROM all (0); FIELD spec.taints[dedicated:NoSchedule]
        configuration ca3d163bab05           to be written
          FROM v100 (100); FIELD spec.devicePlugin

        CONFIGURATION 0123456789ab of policy v100
        nvidia.com/gpu: 4 replicas per GPU (TimeSlicing)
        "#);
        for columns in [80, 120] {
            let text = shown(&policies(), TextWidth::of(columns));
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}: {text}");
        }
    }

    #[test]
    fn labels_with_facts_are_counted_or_listed() {
        let gpu =
            json!({"index": 0, "uuid": "GPU-0", "product": "Tesla-T4", "memoryMiB": 15360, "computeCapability": "7.5"});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": {},
            "status": {"gpus": [gpu]}});
        let gpu_node = GpuNodeFacts::of(serde_json::from_value(gpu_node).expect("a GpuNode"));
        let node = json!({"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"}, "spec": {}});
        let facts = NodeFacts::of(&serde_json::from_value(node).expect("a node"));
        let explained = explain(
            &PolicySet::default().with_gpu_labels(true),
            NodeContext::new(&facts, Some(&gpu_node), Timestamp::UNIX_EPOCH),
        );
        let text = |all| explanation(&explained, None, &[], all, TextWidth::UNLIMITED);
        let counted = anstream::adapter::strip_str(&text(false)).to_string();
        assert_eq!(counted.matches("nvidia.com/").count(), 0, "{counted}");
        assert_eq!(counted.matches("labels (list them with --all)").count(), 1, "{counted}");
        assert!(text(true).contains("label nvidia.com/gpu.count=1"), "{}", text(true));
        assert!(!text(true).contains("--all"), "{}", text(true));
    }

    #[test]
    fn the_source_of_each_layout_is_named() {
        let gpu = |index: u32, product: &str, mode: Option<&str>, phase: Option<&str>| {
            let mig = phase.map(|phase| json!({"wanted": "3g.40gb:2", "observed": "off", "phase": phase}));
            json!({"index": index, "uuid": format!("GPU-{index}"), "product": product, "memoryMiB": 1, "migMode": mode, "mig": mig})
        };
        let a100 = "NVIDIA-A100-SXM4-80GB";
        let gpus = [
            gpu(0, a100, Some("Disabled"), Some("Waiting")),
            gpu(1, a100, Some("Disabled"), Some("Waiting")),
            gpu(2, a100, Some("Disabled"), None),
            gpu(3, a100, Some("Enabled"), None),
        ];
        let document = "mig: {strategy: Mixed, layout: [{devices: {indices: [0, 1]}, instances: {3g.40gb: 2}}, {devices: {indices: [2]}, preset: all-balanced}]}";
        let config = json!({"policy": "p", "version": 1, "hash": "0123456789abcdef", "document": document});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"},
            "spec": {"config": config}, "status": {"gpus": gpus}});
        let gpu_node = serde_json::from_value(gpu_node).expect("a GpuNode");
        let layouts = super::super::gpu_layouts::explained_layouts(&gpu_node);
        let shown = |width| anstream::adapter::strip_str(&layout_table(&layouts, width)).to_string();
        insta::assert_snapshot!(shown(TextWidth::UNLIMITED), @r"
        GPUS   MIG LAYOUT                      HAS   PHASE     FIELD
        0, 1   3g.40gb:2                       off   Waiting   spec.devicePlugin.mig.layout[0]
        2      1g.10gb:2,2g.20gb:1,3g.40gb:1   off   -         spec.devicePlugin.mig.layout[1]
        3      -                               {}    -         no group: stays as it is
        ");
        insta::assert_snapshot!(shown(TextWidth::of(80)), @r"
        GPUS   MIG LAYOUT                      HAS   PHASE
        0, 1   3g.40gb:2                       off   Waiting
          FIELD spec.devicePlugin.mig.layout[0]
        2      1g.10gb:2,2g.20gb:1,3g.40gb:1   off   -
          FIELD spec.devicePlugin.mig.layout[1]
        3      -                               {}    -
          FIELD no group: stays as it is
        ");
    }

    #[test]
    fn a_cluster_without_policies_is_explained_too() {
        insta::assert_snapshot!(shown(&[], TextWidth::UNLIMITED), @r"
        no GpuNodePolicy exists yet; write one and preview it with `kubectl gpunode plan -f FILE`

        WHAT                  FROM                 FIELD   OVERRIDES   STATE
        label old=1           no policy any more   -       -           to be removed
        label tier=reserved   no policy any more   -       -           to be removed

        CONFIGURATION 0123456789ab of policy v100
        nvidia.com/gpu: 4 replicas per GPU (TimeSlicing)
        ");
    }
}
