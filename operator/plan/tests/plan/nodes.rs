//! Labels, taints and the record of one node.

use crate::world::{World, policy};
use gpunode_crds::{GpuNodePolicy, Reason};
use gpunode_plan::{NodeHold, PolicyOutcome};
use serde_json::json;

fn v100() -> GpuNodePolicy {
    policy(
        "v100",
        "{nodeSelector: {matchLabels: {pool: a}}, labels: {accelerator: nvidia-tesla-v100}, taints: [{key: dedicated, value: v100, effect: NoSchedule}]}",
    )
}

fn reason(outcome: Option<&PolicyOutcome>) -> Option<Reason> {
    match outcome {
        Some(PolicyOutcome::Failed { reason, .. } | PolicyOutcome::Conflicted { reason, .. }) => Some(*reason),
        _ => None,
    }
}

#[test]
fn labels_taints_and_record_move_in_one_guarded_patch() {
    let plan = World::sample().plan(&[v100()]);
    insta::assert_yaml_snapshot!(plan.patch, @r#"
    - op: test
      path: /metadata/resourceVersion
      value: "1"
    - op: add
      path: /metadata/labels/accelerator
      value: nvidia-tesla-v100
    - op: add
      path: /spec/taints/-
      value:
        effect: NoSchedule
        key: dedicated
        value: v100
    - op: add
      path: /metadata/annotations/gpunode.dev~1owned
      value: "{\"version\":1,\"labels\":{\"accelerator\":\"nvidia-tesla-v100\"},\"taints\":[{\"key\":\"dedicated\",\"effect\":\"NoSchedule\",\"value\":\"v100\"}],\"policies\":[\"v100\"]}"
    "#);
    assert_eq!(plan.outcomes["v100"], PolicyOutcome::Updating);
}

#[test]
fn deselected_node_gets_its_old_labels_and_taints_back() {
    let mut world = World::sample();
    let before = world.snapshot();
    world.converge(&[v100()]);
    assert_eq!(world.plan(&[v100()]).outcomes["v100"], PolicyOutcome::Ready);
    world.set_label("pool", Some("b"));
    world.converge(&[v100()]);
    world.set_label("pool", Some("a"));
    assert_eq!(world.snapshot(), before);
}

#[test]
fn node_without_any_label_annotation_or_taint_gets_them_and_loses_them() {
    let mut world = World::new(&json!({}), &json!([]), &json!({}));
    let before = world.snapshot();
    world.converge(&[policy(
        "all",
        "{nodeSelector: {}, labels: {a: b}, taints: [{key: k, effect: NoSchedule}]}",
    )]);
    assert_eq!(world.label("a"), Some("b"));
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn foreign_value_as_wanted_satisfies_and_stays() {
    let mut world = World::sample();
    world.set_label("accelerator", Some("nvidia-tesla-v100"));
    let before = world.snapshot();
    world.converge(&[v100()]);
    assert!(!world.record().unwrap().contains("accelerator"));
    assert_eq!(world.plan(&[v100()]).outcomes["v100"], PolicyOutcome::Ready);
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn foreign_value_in_the_way_is_a_conflict_and_other_keys_are_still_written() {
    let mut world = World::sample();
    world.set_label("accelerator", Some("mine"));
    world.node["metadata"]["managedFields"] = json!([
        {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:accelerator": {}}}}},
    ]);
    let before = world.snapshot();
    world.converge(&[v100()]);
    assert_eq!(world.label("accelerator"), Some("mine"));
    assert_eq!(world.node["spec"]["taints"][2]["key"], "dedicated");
    assert_eq!(
        world.plan(&[v100()]).outcomes["v100"],
        PolicyOutcome::conflicted(
            Reason::KeyOwnedByAnother,
            "label accelerator is \"mine\", not \"nvidia-tesla-v100\", written by kubectl-label"
        )
    );
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn foreign_taint_of_the_same_key_and_another_effect_stays() {
    let taints =
        json!([{"key": "dedicated", "effect": "NoExecute", "value": "team"}, {"key": "b", "effect": "NoSchedule"}]);
    let mut world = World::new(&json!({"pool": "a"}), &taints, &json!({}));
    world.converge(&[v100()]);
    assert_eq!(
        world.node["spec"]["taints"].as_array().unwrap()[..2],
        taints.as_array().unwrap()[..]
    );
    world.converge(&[]);
    assert_eq!(world.node["spec"]["taints"], taints);
}

#[test]
fn removed_or_changed_owned_keys_come_back() {
    let mut world = World::sample();
    world.converge(&[v100()]);
    // The record also says when keys came back.
    let look = |world: &World| (world.node["metadata"]["labels"].clone(), world.node["spec"].clone());
    let after = look(&world);
    world.set_label("accelerator", None);
    world.node["spec"]["taints"].as_array_mut().unwrap().pop();
    world.converge(&[v100()]);
    assert_eq!(look(&world), after);
    world.set_label("accelerator", Some("changed"));
    world.node["spec"]["taints"][2]["value"] = json!("changed");
    world.converge(&[v100()]);
    assert_eq!(look(&world), after);
}

#[test]
fn owned_key_that_somebody_changed_is_theirs_when_nobody_wants_it_any_more() {
    let mut world = World::sample();
    world.converge(&[v100()]);
    world.set_label("accelerator", Some("changed"));
    world.converge(&[]);
    assert_eq!((world.label("accelerator"), world.record()), (Some("changed"), None));
}

#[test]
fn changed_policy_changes_owned_values_in_place() {
    let mut world = World::sample();
    world.converge(&[v100()]);
    world.node["spec"]["taints"]
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "late", "effect": "NoSchedule"}));
    let changed = policy(
        "v100",
        "{nodeSelector: {}, labels: {other: l}, taints: [{key: dedicated, effect: NoSchedule}]}",
    );
    world.converge(&[changed]);
    let keys: Vec<_> = world.node["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| &taint["key"])
        .collect();
    assert_eq!(keys, ["other", "z", "dedicated", "late"]);
    assert_eq!((world.label("accelerator"), world.label("other")), (None, Some("l")));
}

#[test]
fn policy_does_not_deselect_itself_by_its_own_label() {
    let spec =
        "{nodeSelector: {matchExpressions: [{key: accelerator, operator: DoesNotExist}]}, labels: {accelerator: x}}";
    let mut world = World::sample();
    world.converge(&[policy("p", spec)]);
    let plan = world.plan(&[policy("p", spec)]);
    assert_eq!((plan.patch, &plan.outcomes["p"]), (None, &PolicyOutcome::Ready));
}

#[test]
fn device_plugin_places_its_pods_by_labels_that_only_gpunode_uses() {
    let mut world = World::sample();
    let governing = [policy("p", "{nodeSelector: {}, devicePlugin: {}}")];
    let before = world.snapshot();
    world.set_label("gpunode.dev/policy.gone", Some("true"));
    world.converge(&governing);
    assert_eq!(world.label("gpunode.dev/governed"), Some("true"));
    assert_eq!(world.label("gpunode.dev/policy.p"), Some("true"));
    assert_eq!(world.label("gpunode.dev/policy.gone"), None);
    world.set_record(None);
    world.converge(&governing);
    world.converge(&[]);
    world.wait(60);
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn higher_priority_wins_a_key_and_the_device_plugin() {
    let low = policy("low", "{nodeSelector: {}, labels: {a: low, b: low}, devicePlugin: {}}");
    let high = policy(
        "high",
        "{priority: 1, nodeSelector: {}, labels: {a: high}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let mut world = World::sample();
    let plan = world.converge(&[low, high]);
    assert_eq!(plan.matched, ["high", "low"]);
    assert_eq!(plan.governing.as_deref(), Some("high"));
    assert_eq!((world.label("a"), world.label("b")), (Some("high"), Some("low")));
}

#[test]
fn equal_priorities_that_disagree_leave_that_key_as_it_is() {
    for (what, one, two) in [
        ("label a", "labels: {a: x}", "labels: {a: y}"),
        (
            "taint k:NoSchedule",
            "taints: [{key: k, effect: NoSchedule}]",
            "taints: [{key: k, value: v, effect: NoSchedule}]",
        ),
        (
            "devicePlugin",
            "devicePlugin: {}",
            "devicePlugin: {passDeviceSpecs: true}",
        ),
    ] {
        let policies = [one, two].map(|spec| {
            policy(
                if spec == one { "one" } else { "two" },
                &format!("{{nodeSelector: {{}}, {spec}}}"),
            )
        });
        let plan = World::sample().plan(&policies);
        assert!(plan.is_settled(), "{what}");
        for name in ["one", "two"] {
            assert_eq!(reason(plan.outcomes.get(name)), Some(Reason::EqualPriority), "{what}");
        }
        assert_eq!((&plan.hold, plan.disagreements.len()), (&None, 1), "{what}");
        let PolicyOutcome::Conflicted { message, .. } = &plan.outcomes["one"] else {
            panic!()
        };
        let expected = format!("policies one, two have equal priority and disagree about {what}: one wants \"");
        assert!(
            message.starts_with(&expected) && message.contains("\", two wants \""),
            "{message}"
        );
    }
}

#[test]
fn a_disputed_key_keeps_its_value_and_its_place_in_the_record_until_it_is_settled() {
    let spec = |name: &str, value: &str| {
        let labels = format!("{{a: {value}, own-{name}: x}}");
        policy(
            name,
            &format!("{{nodeSelector: {{}}, labels: {labels}, taints: [{{key: {name}, effect: NoSchedule}}]}}"),
        )
    };
    let mut world = World::sample();
    let before = world.snapshot();
    world.converge(&[spec("one", "x")]);
    let policies = [spec("one", "x"), spec("two", "y")];
    world.converge(&policies);
    assert_eq!(
        (world.label("a"), world.label("own-one"), world.label("own-two")),
        (Some("x"), Some("x"), Some("x"))
    );
    assert!(world.plan(&policies).is_settled());
    // What somebody changes meanwhile stays too.
    world.set_label("a", Some("theirs"));
    world.converge(&policies);
    assert_eq!(world.label("a"), Some("theirs"));
    world.set_label("a", Some("x"));
    world.converge(&[spec("two", "y")]);
    assert_eq!((world.label("a"), world.label("own-one")), (Some("y"), None));
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn policy_below_a_disagreement_loses_to_it_whatever_it_wants() {
    for [one, two, low] in [
        [
            "devicePlugin: {}",
            "devicePlugin: {passDeviceSpecs: true}",
            "devicePlugin: {}",
        ],
        ["labels: {a: x}", "labels: {a: y}", "labels: {a: x}"],
        ["labels: {a: x}", "labels: {a: y}", "labels: {a: z}"],
    ] {
        let spec = |priority: i32, rest: &str| format!("{{priority: {priority}, nodeSelector: {{}}, {rest}}}");
        let plan = World::sample().plan(&[
            policy("one", &spec(1, one)),
            policy("two", &spec(1, two)),
            policy("low", &spec(0, low)),
        ]);
        assert_eq!(plan.disagreements.len(), 1);
        let lost = &plan.overridden["low"];
        assert!(lost.is_whole, "{low}");
        assert!(
            lost.message.ends_with(" by policy one (priority 1)"),
            "{}",
            lost.message
        );
    }
}

#[test]
fn disagreement_that_a_higher_priority_settles_is_none() {
    let spec =
        |priority: i32, value: &str| format!("{{priority: {priority}, nodeSelector: {{}}, labels: {{a: {value}}}}}");
    let mut world = World::sample();
    let plan = world.converge(&[
        policy("a", &spec(0, "x")),
        policy("b", &spec(0, "y")),
        policy("c", &spec(1, "z")),
    ]);
    assert_eq!((plan.hold, world.label("a")), (None, Some("z")));
}

#[test]
fn ignored_node_is_neither_written_nor_counted() {
    let mut world = World::sample();
    world.converge(&[v100()]);
    world.set_label("gpunode.dev/ignore", Some(""));
    for policies in [
        vec![],
        vec![policy("v100", "{nodeSelector: {}, labels: {accelerator: x}}")],
    ] {
        let plan = world.plan(&policies);
        assert!(plan.is_settled() && plan.outcomes.is_empty());
        assert_eq!(plan.hold, Some(NodeHold::Ignored));
    }
}

#[test]
fn unreadable_record_is_reported_and_never_overwritten() {
    let mut world = World::sample();
    world.set_record(Some("{broken"));
    let plan = world.plan(&[v100()]);
    assert!(plan.is_settled());
    assert_eq!(reason(plan.outcomes.get("v100")), Some(Reason::RecordUnreadable));
}

#[test]
fn forged_record_of_a_kubernetes_key_removes_nothing() {
    let mut world = World::sample();
    let before = world.snapshot();
    world.set_record(Some(r#"{"version":1,"labels":{"kubernetes.io/os":"linux"}}"#));
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn policy_being_deleted_is_gone() {
    let mut deleted = v100();
    deleted.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::world::now()));
    assert!(World::sample().plan(&[deleted]).outcomes.is_empty());
}

#[test]
fn policy_that_the_api_should_have_refused_writes_no_key_of_kubernetes() {
    let mut world = World::sample();
    let os = world.label("kubernetes.io/os").map(str::to_owned);
    let plan = world.converge(&[policy("p", "{nodeSelector: {}, labels: {kubernetes.io/os: x, a: b}}")]);
    assert_eq!(
        (world.label("a"), world.label("kubernetes.io/os")),
        (Some("b"), os.as_deref())
    );
    assert_eq!(reason(plan.outcomes.get("p")), Some(Reason::InvalidSpec));
}

#[test]
fn preview_reports_what_would_change_and_changes_nothing() {
    let mut world = World::sample();
    world.set_label("b", Some("mine"));
    let low = policy("low", "{nodeSelector: {}, labels: {a: low}}");
    world.converge(std::slice::from_ref(&low));
    let spec = "{mode: Preview, priority: 5, nodeSelector: {matchLabels: {pool: a}}, labels: {a: high, b: x, pool: a}, taints: [{key: k, effect: NoExecute}], devicePlugin: {}}";
    let plan = world.plan(&[low.clone(), policy("high", spec)]);
    assert!(plan.is_settled());
    insta::assert_yaml_snapshot!(plan.previews["high"], @r#"
    node: n
    setLabels:
      a: high
      gpunode.dev/governed: "true"
      gpunode.dev/policy.high: "true"
    setTaints:
      - key: k
        effect: NoExecute
    configHash: ca3d163bab055381
    conflicts:
      - "label b is \"mine\", not \"x\""
    "#);
    assert_eq!(plan.outcomes["low"], PolicyOutcome::Ready);
    let harmless = policy("same", "{mode: Preview, nodeSelector: {}, labels: {a: low}}");
    let plan = world.plan(&[low, harmless]);
    assert_eq!(
        (plan.outcomes.get("same"), plan.previews.len()),
        (Some(&PolicyOutcome::Ready), 0)
    );
}

#[test]
fn refused_write_counts_as_failed_and_not_as_on_its_way() {
    let plan = World::sample().plan(&[v100()]);
    assert_eq!(plan.policy_statuses_after(None)["v100"], PolicyOutcome::Updating.into());
    assert_eq!(
        plan.policy_statuses_after(Some("denied"))["v100"],
        PolicyOutcome::failed(Reason::WriteFailed, "denied").into()
    );
}

#[test]
fn fields_of_a_later_version_in_the_record_stay_and_cause_no_write() {
    let wanted = policy("p", "{nodeSelector: {}, labels: {x: y}}");
    let mut world = World::sample();
    let record = r#"{"colour": "red", "version": 1, "labels": {"x": "y"}, "policies": ["p"]}"#;
    world.set_label("x", Some("y"));
    world.set_record(Some(record));
    assert_eq!(
        world.plan(std::slice::from_ref(&wanted)).patch,
        None,
        "another order is no change"
    );

    let other = policy("p", "{nodeSelector: {}, labels: {x: z}}");
    world.converge(std::slice::from_ref(&other));
    let written: serde_json::Value = serde_json::from_str(world.record().unwrap()).unwrap();
    assert_eq!(
        (&written["colour"], &written["labels"]["x"]),
        (&"red".into(), &"z".into())
    );
    assert_eq!(world.plan(&[other]).patch, None);
}
