//! Explanations of a node.

use crate::world::{World, now, policy};
use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{Explanation, NodeContext, PolicySet, explain};
use serde_json::json;

fn explained(world: &World, policies: &[GpuNodePolicy]) -> Explanation {
    explain(
        &PolicySet::new(policies),
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), now()),
    )
}

/// Returns a line per entry: key, origin, overridden values, state.
fn lines(explanation: &Explanation) -> Vec<String> {
    let line = |entry: &gpunode_plan::ExplanationEntry| {
        let text = |value: serde_json::Result<serde_json::Value>| value.expect("JSON").to_string();
        let (source, state) = (
            text(serde_json::to_value(&entry.source)),
            text(serde_json::to_value(&entry.state)),
        );
        let over = text(serde_json::to_value(&entry.overrides));
        let value = if entry.key.is_empty() { "HASH" } else { &entry.value };
        format!(
            "{:?} {}={value}\n  {source}\n  over {over}\n  {state}",
            entry.kind, entry.key
        )
    };
    let over_hash = |line: String| line.split("\"value\":").take(8).collect::<Vec<_>>().join("\"value\":");
    explanation.entries.iter().map(line).map(over_hash).collect()
}

#[test]
fn each_line_names_the_policy_the_field_and_what_it_overrides() {
    let policies = [
        policy(
            "all",
            "{nodeSelector: {}, labels: {tier: standard, team: x}, taints: [{key: t, effect: NoSchedule}]}",
        ),
        policy(
            "high",
            "{priority: 9, nodeSelector: {matchLabels: {pool: a}}, labels: {tier: reserved, theirs: b, same: s}, taints: [{key: t, value: v, effect: NoSchedule}], devicePlugin: {}}",
        ),
        policy("also", "{priority: 5, nodeSelector: {}, labels: {tier: reserved}}"),
    ];
    let mut world = World::sample();
    world.set_label("theirs", Some("a"));
    world.set_label("same", Some("s"));
    insta::assert_snapshot!(lines(&explained(&world, &policies)).join("\n"), @r#"
    Label gpunode.dev/governed=true
      {"from":"gpunode","why":"it places the agent of policy high"}
      over []
      {"is":"pending"}
    Label gpunode.dev/policy.high=true
      {"from":"gpunode","why":"it places the agent of policy high"}
      over []
      {"is":"pending"}
    Label same=s
      {"field":"spec.labels[same]","from":"policy","name":"high","priority":9}
      over []
      {"is":"foreign"}
    Label team=x
      {"field":"spec.labels[team]","from":"policy","name":"all","priority":0}
      over []
      {"is":"pending"}
    Label theirs=b
      {"field":"spec.labels[theirs]","from":"policy","name":"high","priority":9}
      over []
      {"is":"conflict","message":"label theirs is \"a\", not \"b\""}
    Label tier=reserved
      {"also":["also"],"field":"spec.labels[tier]","from":"policy","name":"high","priority":9}
      over [{"policy":"all","priority":0,"value":"standard"}]
      {"is":"pending"}
    Taint t:NoSchedule=v
      {"field":"spec.taints[t:NoSchedule]","from":"policy","name":"high","priority":9}
      over [{"policy":"all","priority":0,"value":""}]
      {"is":"pending"}
    Configuration =HASH
      {"field":"spec.devicePlugin","from":"policy","name":"high","priority":9}
      over []
      {"is":"pending"}
    "#);
    world.converge(&policies);
    let explanation = explained(&world, &policies);
    let states: Vec<_> = explanation
        .entries
        .iter()
        .map(|it| format!("{} {:?}", it.key, it.state))
        .collect();
    insta::assert_snapshot!(states.join("\n"), @r#"
    gpunode.dev/governed InPlace
    gpunode.dev/policy.high InPlace
    same Foreign
    team InPlace
    theirs Conflict { message: "label theirs is \"a\", not \"b\"" }
    tier InPlace
    t:NoSchedule InPlace
     Pending
    "#);
    let lines: Vec<_> = explanation
        .policies
        .iter()
        .map(|it| format!("{} {} {:?}", it.name, it.governs, it.problem))
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    high true Some("KeyOwnedByAnother: label theirs is \"a\", not \"b\"")
    also false None
    all false None
    "#);
}

#[test]
fn a_policy_that_does_not_match_says_its_first_condition_that_fails() {
    for (selector, reason) in [
        ("{}", None),
        (
            "{matchLabels: {pool: b}}",
            Some("spec.nodeSelector.matchLabels[pool]: wants \"b\", node has \"a\""),
        ),
        (
            "{matchLabels: {zone: b}}",
            Some("spec.nodeSelector.matchLabels[zone]: wants \"b\", node has no such label"),
        ),
        (
            "{matchLabels: {tier: x}}",
            Some(
                "spec.nodeSelector.matchLabels[tier]: wants \"x\", selectors ignore the node's value, which gpunode wrote",
            ),
        ),
        (
            "{matchExpressions: [{key: pool, operator: Exists}, {key: pool, operator: NotIn, values: [a, c]}]}",
            Some("spec.nodeSelector.matchExpressions[1]: wants pool to be none of \"a\", \"c\", node has \"a\""),
        ),
        (
            "{matchExpressions: [{key: zone, operator: In, values: [a]}]}",
            Some("spec.nodeSelector.matchExpressions[0]: wants zone to be one of \"a\", node has no such label"),
        ),
    ] {
        let base = policy("base", "{nodeSelector: {}, labels: {tier: x}}");
        let mut world = World::sample();
        world.converge(std::slice::from_ref(&base));
        let policies = [base, policy("other", &format!("{{nodeSelector: {selector}}}"))];
        let explanation = explained(&world, &policies);
        let other = explanation.policies.iter().find(|it| it.name == "other").unwrap();
        assert_eq!(other.mismatch.as_deref(), reason, "{selector}");
        let matched = world.plan(&policies).matched.contains(&"other".to_owned());
        assert_eq!(matched, reason.is_none(), "{selector}");
    }
}

#[test]
fn what_nobody_wants_any_more_leaves() {
    let mut world = World::sample();
    world.converge(&[policy("p", "{nodeSelector: {}, labels: {a: b}, devicePlugin: {}}")]);
    insta::assert_snapshot!(lines(&explained(&world, &[])).join("\n"), @r#"
    Label a=b
      {"from":"nobody"}
      over []
      {"is":"leaving"}
    Label gpunode.dev/governed=true
      {"from":"gpunode","why":"it placed an agent"}
      over []
      {"is":"leaving"}
    Label gpunode.dev/policy.p=true
      {"from":"gpunode","why":"it placed an agent"}
      over []
      {"is":"leaving"}
    "#);
}

#[test]
fn a_disputed_key_and_a_node_that_is_held_say_why() {
    let policies = [
        policy("first", "{nodeSelector: {}, labels: {b: x}}"),
        policy("one", "{nodeSelector: {}, labels: {a: \"1\"}}"),
        policy("two", "{nodeSelector: {}, labels: {a: \"2\"}}"),
    ];
    let mut world = World::sample();
    world.converge(&policies[..1]);
    let explanation = explained(&world, &policies);
    assert_eq!(explanation.hold, None);
    insta::assert_snapshot!(lines(&explanation).join("\n"), @r#"
    Label a=1
      {"field":"spec.labels[a]","from":"policy","name":"one","priority":0}
      over [{"policy":"two","priority":0,"value":"2"}]
      {"is":"conflict","message":"policies one, two have equal priority and disagree about label a: one wants \"1\", two wants \"2\"; it stays as it is until their priorities differ"}
    Label b=x
      {"field":"spec.labels[b]","from":"policy","name":"first","priority":0}
      over []
      {"is":"inPlace"}
    "#);
    let ignored = World::new(&json!({"gpunode.dev/ignore": ""}), &json!([]), &json!({}));
    assert!(
        explained(&ignored, &policies)
            .hold
            .unwrap()
            .contains("gpunode.dev/ignore")
    );
}

#[test]
fn labels_with_facts_come_from_the_facts() {
    let mut world = World::sample();
    let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "Tesla-T4", "memoryMiB": 15360});
    let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {"gpus": [gpu]}});
    world.gpu_node = Some(serde_json::from_value(object).unwrap());
    let explanation = explained(&world, &[]);
    let keys: Vec<_> = explanation.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert!(
        keys.contains(&"nvidia.com/gpu.count") && keys.contains(&"gpunode.dev/gpus.Tesla-T4"),
        "{keys:?}"
    );
    assert!(
        explanation
            .entries
            .iter()
            .all(|entry| entry.source == gpunode_plan::EntrySource::Facts),
        "{explanation:?}"
    );
}

#[test]
fn gpus_that_do_not_match_and_keys_that_were_taken_over_are_named() {
    let policies = [
        policy("gpus", "{gpuSelector: {minCount: 2}}"),
        policy(
            "takes",
            "{nodeSelector: {}, onConflict: TakeOver, labels: {theirs: ours}}",
        ),
    ];
    let mut world = World::sample();
    world.set_label("theirs", Some("old"));
    world.converge(&policies);
    let explanation = explained(&world, &policies);
    let reason = explanation.policies[0].mismatch.as_deref().unwrap();
    assert!(reason.starts_with("spec.gpuSelector wants 2 such GPUs"), "{reason}");
    assert_eq!(explanation.entries[0].before.as_deref(), Some("old"), "{explanation:?}");
}

#[test]
fn taints_that_come_and_go_name_the_field_that_wants_them() {
    let policies = [
        policy(
            "p",
            "{priority: 2, nodeSelector: {}, startupTaint: {}, devicePlugin: {}}",
        ),
        policy(
            "q",
            "{priority: 1, nodeSelector: {}, startupTaint: {key: a.b/c}, unhealthyTaint: {after: 0s}}",
        ),
    ];
    let mut world = World::sample();
    let broken = json!({"index": 0, "uuid": "GPU-0", "product": "x", "memoryMiB": 1, "health": {"state": "Unhealthy"}});
    let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {"gpus": [broken]}});
    world.gpu_node = Some(serde_json::from_value(gpu_node).expect("a GpuNode"));
    world.converge(&policies);
    let explanation = explained(&world, &policies);
    let taints = explanation
        .entries
        .iter()
        .filter(|entry| entry.kind == gpunode_plan::EntryKind::Taint);
    let lines: Vec<_> = taints
        .map(|entry| {
            let source = serde_json::to_value(&entry.source).expect("JSON");
            format!("{} {}.{} {:?}", entry.key, source["name"], source["field"], entry.state).replace('"', "")
        })
        .collect();
    let expected = [
        "a.b/c:NoSchedule q.spec.startupTaint InPlace",
        "gpunode.dev/not-ready:NoSchedule p.spec.startupTaint InPlace",
        "gpunode.dev/unhealthy:NoSchedule q.spec.unhealthyTaint InPlace",
    ];
    assert_eq!(lines, expected);
}
