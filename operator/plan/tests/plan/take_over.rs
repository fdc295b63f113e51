//! Keys that somebody else owns: taken over and given back, or fought over and conceded.

use crate::world::{World, policy};
use gpunode_crds::{GpuNodePolicy, Reason};
use gpunode_plan::{InterventionCause, PolicyOutcome};
use serde_json::json;

const SPEC: &str = "labels: {team: ours}, taints: [{key: other, value: ours, effect: NoSchedule}]";

fn taking_over() -> GpuNodePolicy {
    policy(
        "taker",
        &format!("{{nodeSelector: {{}}, onConflict: TakeOver, {SPEC}}}"),
    )
}

fn reporting() -> GpuNodePolicy {
    policy("taker", &format!("{{nodeSelector: {{}}, {SPEC}}}"))
}

/// Returns a node on which somebody else owns the label and the taint.
fn foreign() -> World {
    let mut world = World::sample();
    world.set_label("team", Some("theirs"));
    world
}

fn taint(world: &World) -> Option<&str> {
    let taints = world.node["spec"]["taints"].as_array().into_iter().flatten();
    let mut other = taints.filter(|taint| taint["key"] == "other");
    other.next().map(|taint| taint["value"].as_str().unwrap_or_default())
}

fn conflict(world: &World, policies: &[GpuNodePolicy]) -> Option<String> {
    match world.plan(policies).outcomes.remove("taker") {
        Some(PolicyOutcome::Conflicted {
            reason: Reason::KeyOwnedByAnother,
            message,
        }) => Some(message),
        _ => None,
    }
}

#[test]
fn what_is_taken_over_is_given_back_with_its_old_value() {
    let mut world = foreign();
    let before = world.snapshot();
    world.converge(&[taking_over()]);
    assert_eq!((world.label("team"), taint(&world)), (Some("ours"), Some("ours")));
    assert_eq!(world.plan(&[taking_over()]).outcomes["taker"], PolicyOutcome::Ready);
    insta::assert_snapshot!(world.record().unwrap(), @r#"{"version":1,"labels":{"team":"ours"},"taints":[{"key":"other","effect":"NoSchedule","value":"ours"}],"policies":["taker"],"before":{"labels":{"team":"theirs"},"taints":[{"key":"other","effect":"NoSchedule","value":"x"}]}}"#);
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

/// Returns policy, cause and subject of what the next write takes away.
fn interventions(world: &World, policies: &[GpuNodePolicy]) -> Vec<(String, InterventionCause, String)> {
    let plan = world.plan(policies);
    let interventions = plan.interventions.into_iter();
    interventions
        .map(|it| (it.policy.unwrap_or_default(), it.cause, it.subject))
        .collect()
}

fn intervention(cause: InterventionCause, subject: &str) -> (String, InterventionCause, String) {
    ("taker".to_owned(), cause, subject.to_owned())
}

#[test]
fn a_write_says_which_keys_it_takes_from_others() {
    let mut world = foreign();
    assert_eq!(interventions(&world, &[reporting()]), [], "it takes nothing");
    assert_eq!(
        interventions(&world, &[taking_over()]),
        [
            intervention(InterventionCause::TakenOver, "label team"),
            intervention(InterventionCause::TakenOver, "taint other:NoSchedule"),
        ]
    );
    world.converge(&[taking_over()]);
    assert_eq!(interventions(&world, &[taking_over()]), []);
    world.set_label("team", Some("mine"));
    assert_eq!(
        interventions(&world, &[taking_over()]),
        [intervention(InterventionCause::Restored, "label team")]
    );
    world.set_label("team", None);
    assert_eq!(
        interventions(&world, &[taking_over()]),
        [intervention(InterventionCause::Restored, "label team")]
    );
}

#[test]
fn a_new_value_of_a_policy_takes_nothing_from_anybody() {
    let mut world = World::sample();
    let labelled = |value: &str| policy("taker", &format!("{{nodeSelector: {{}}, labels: {{team: {value}}}}}"));
    assert_eq!(interventions(&world, &[labelled("a")]), [], "the label was absent");
    world.converge(&[labelled("a")]);
    assert_eq!(interventions(&world, &[labelled("b")]), []);
    assert_eq!(interventions(&world, &[]), [], "a label of gpunode goes");
}

#[test]
fn a_new_taint_that_evicts_pods_is_an_intervention() {
    let mut world = World::sample();
    let tainted = policy(
        "taker",
        "{nodeSelector: {}, taints: [{key: maintenance, effect: NoExecute}, {key: dedicated, effect: NoSchedule}]}",
    );
    let expected = [intervention(
        InterventionCause::EvictingTaint,
        "taint maintenance:NoExecute",
    )];
    assert_eq!(interventions(&world, std::slice::from_ref(&tainted)), expected);
    world.converge(std::slice::from_ref(&tainted));
    assert_eq!(interventions(&world, &[tainted]), []);
}

#[test]
fn a_new_value_of_a_taint_that_evicts_pods_is_an_intervention() {
    let mut world = World::sample();
    let tainted = |value: &str| {
        let taint = format!("{{key: dedicated, value: {value}, effect: NoExecute}}");
        policy("taker", &format!("{{nodeSelector: {{}}, taints: [{taint}]}}"))
    };
    world.converge(&[tainted("a")]);
    assert_eq!(
        interventions(&world, &[tainted("b")]),
        [intervention(
            InterventionCause::EvictingTaint,
            "taint dedicated:NoExecute"
        )]
    );
    world.converge(&[tainted("b")]);
    assert_eq!(interventions(&world, &[tainted("b")]), []);
}

#[test]
fn the_policy_that_takes_over_is_named_and_not_one_of_higher_priority_that_does_not() {
    let other = json!({"key": "other", "effect": "NoExecute", "value": "theirs"});
    let world = World::new(&json!({"team": "theirs"}), &json!([other]), &json!({}));
    let spec = "labels: {team: ours}, taints: [{key: other, value: ours, effect: NoExecute}]";
    let of = |name: &str, fields: &str| policy(name, &format!("{{nodeSelector: {{}}, {fields}, {spec}}}"));
    let policies = [of("prod", "priority: 10"), of("taker", "onConflict: TakeOver")];
    assert_eq!(
        interventions(&world, &policies),
        [
            intervention(InterventionCause::TakenOver, "label team"),
            intervention(InterventionCause::TakenOver, "taint other:NoExecute"),
            intervention(InterventionCause::EvictingTaint, "taint other:NoExecute"),
        ]
    );
}

#[test]
fn a_taint_without_a_value_is_given_back_without_one() {
    let taints = json!([{"key": "other", "effect": "NoSchedule"}]);
    let mut world = World::new(&json!({}), &taints, &json!({}));
    let before = world.snapshot();
    world.converge(&[taking_over()]);
    assert_eq!(taint(&world), Some("ours"));
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_policy_that_only_reports_inherits_nothing_that_was_taken_over() {
    let mut world = foreign();
    let before = world.snapshot();
    world.converge(&[taking_over()]);
    world.converge(&[reporting()]);
    assert_eq!(world.snapshot(), before, "given back as soon as nobody takes over");
    assert_eq!(
        conflict(&world, &[reporting()]).as_deref(),
        Some("label team is \"theirs\", not \"ours\"; taint other:NoSchedule is \"x\", not \"ours\"")
    );
}

#[test]
fn a_policy_selects_by_the_value_that_it_takes_over() {
    let spec = "{nodeSelector: {matchLabels: {team: theirs}}, onConflict: TakeOver, labels: {team: ours}}";
    let mut world = foreign();
    world.converge(&[policy("p", spec)]);
    let plan = world.plan(&[policy("p", spec)]);
    assert_eq!(
        (world.label("team"), plan.patch, &plan.outcomes["p"]),
        (Some("ours"), None, &PolicyOutcome::Ready)
    );
}

#[test]
fn the_lower_priority_takes_over_nothing_that_a_higher_one_wants_otherwise() {
    let higher = policy("higher", "{priority: 1, nodeSelector: {}, labels: {team: higher}}");
    let mut world = foreign();
    world.converge(&[taking_over(), higher]);
    assert_eq!((world.label("team"), taint(&world)), (Some("theirs"), Some("ours")));
}

/// Changes the label back once a minute, as another owner would. Returns how often gpunode restored it.
fn tug_of_war(world: &mut World, policies: &[GpuNodePolicy], theirs: Option<&str>, rounds: usize) -> usize {
    let mut restores = 0;
    for _ in 0..rounds {
        world.set_label("a", theirs);
        world.converge(policies);
        restores += usize::from(world.label("a") == Some("ours"));
        world.wait(60);
    }
    restores
}

fn warrior(generation: i64) -> Vec<GpuNodePolicy> {
    let mut policy = policy("taker", "{nodeSelector: {}, onConflict: TakeOver, labels: {a: ours}}");
    policy.metadata.generation = Some(generation);
    vec![policy]
}

#[test]
fn a_tug_of_war_ends_after_three_restores_and_leaves_the_others_value() {
    for theirs in [Some("theirs"), None] {
        let mut world = World::sample();
        world.converge(&warrior(1));
        assert_eq!(tug_of_war(&mut world, &warrior(1), theirs, 30), 3, "{theirs:?}");
        let message = conflict(&world, &warrior(1)).unwrap();
        assert!(
            message.contains("changed by somebody more than 3 times in 10 minutes"),
            "{message}"
        );
        let snapshot = world.snapshot();
        world.wait(100_000);
        assert_eq!(
            world.plan(&warrior(1)).patch,
            None,
            "{theirs:?}: nor does it begin again by itself"
        );
        world.converge(&[]);
        assert_eq!(
            (world.label("a"), world.record()),
            (theirs, None),
            "left on removal, was {snapshot}"
        );
    }
}

#[test]
fn changes_that_are_far_apart_are_put_right_for_ever() {
    let mut world = World::sample();
    world.converge(&warrior(1));
    for _ in 0..20 {
        world.set_label("a", Some("theirs"));
        world.converge(&warrior(1));
        assert_eq!(world.label("a"), Some("ours"));
        world.wait(201);
    }
}

#[test]
fn what_was_conceded_is_taken_up_again_when_the_other_stops_or_the_policy_changes() {
    let conceded = || {
        let mut world = World::sample();
        world.converge(&warrior(1));
        tug_of_war(&mut world, &warrior(1), Some("theirs"), 5);
        assert_eq!(world.label("a"), Some("theirs"));
        world
    };
    for (theirs, generation, expected) in [
        (Some("theirs"), 1, false),
        (Some("other"), 1, false),
        (None, 1, true),
        (Some("ours"), 1, true),
        (Some("theirs"), 2, true),
    ] {
        let mut world = conceded();
        world.set_label("a", theirs);
        world.converge(&warrior(generation));
        if theirs.is_none() {
            assert_eq!(world.label("a"), None, "it may come back at once");
            assert!(world.plan(&warrior(generation)).recheck.is_some());
            world.wait(600);
            world.converge(&warrior(generation));
        }
        let is_ours = world.label("a") == Some("ours") && conflict(&world, &warrior(generation)).is_none();
        assert_eq!(is_ours, expected, "{theirs:?} {generation}");
        if expected {
            world.converge(&[]);
            let theirs = theirs.filter(|theirs| *theirs == "theirs");
            assert_eq!(
                (world.label("a"), world.record()),
                (theirs, None),
                "what the other wanted last is given back"
            );
        }
    }
}

#[test]
fn a_changed_policy_and_keys_of_gpunode_are_no_tug_of_war() {
    let mut world = World::sample();
    for round in 0..10 {
        let spec = format!("{{nodeSelector: {{}}, labels: {{a: v{round}}}, devicePlugin: {{}}}}");
        world.set_label("gpunode.dev/governed", None);
        world.converge(&[policy("p", &spec)]);
        assert_eq!(world.label("a"), Some(format!("v{round}").as_str()));
        assert_eq!(world.label("gpunode.dev/governed"), Some("true"));
    }
    assert!(!world.record().unwrap().contains("restored"));
}

#[test]
fn keys_of_node_feature_discovery_are_somebody_elses_like_any_other() {
    let key = "feature.node.kubernetes.io/pci-10de.present";
    let mut world = World::sample();
    world.set_label(key, Some("true"));
    world.set_label("nvidia.com/gpu.product", Some("Tesla-V100"));
    let before = world.snapshot();
    let selecting = format!(
        "{{nodeSelector: {{matchLabels: {{{key}: 'true'}}}}, onConflict: TakeOver, labels: {{nvidia.com/gpu.product: Tesla-V100, a: b}}}}"
    );
    world.converge(&[policy("p", &selecting)]);
    assert_eq!(
        (world.label(key), world.label("a")),
        (Some("true"), Some("b")),
        "it is seen by selectors and stays"
    );
    assert!(
        !world.record().unwrap().contains("nvidia.com"),
        "a foreign key as wanted is not owned"
    );
    let forbidden = format!("{{nodeSelector: {{}}, onConflict: TakeOver, labels: {{{key}: 'false'}}}}");
    world.converge(&[policy("p", &forbidden)]);
    assert_eq!(world.label(key), Some("true"), "no policy writes it, whatever it says");
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

/// Returns the condition `Conflict` that the plan writes to the `GpuNode`.
fn condition(world: &World, policies: &[GpuNodePolicy]) -> Option<(String, String)> {
    let change = world.plan(policies).conditions?;
    let conflict = change
        .conditions
        .into_iter()
        .find(|it| it.type_ == "Conflict" && it.status == "True")?;
    Some((conflict.reason, conflict.message))
}

#[test]
fn the_gpu_node_tells_conflicts_with_keys_values_and_policies_until_they_are_gone() {
    let mut world = foreign();
    let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {"conditions": []}});
    world.gpu_node = Some(serde_json::from_value(gpu_node).unwrap());
    world.converge(&[reporting()]);
    let (reason, message) = condition(&world, &[reporting()]).unwrap();
    assert_eq!(reason, "KeyOwnedByAnother");
    assert!(
        message.starts_with("label team is \"theirs\", not \"ours\" (wanted by taker); taint other"),
        "{message}"
    );

    let equal = [
        policy("one", "{nodeSelector: {}, labels: {q: x}}"),
        policy("two", "{nodeSelector: {}, labels: {q: y}}"),
    ];
    let (reason, message) = condition(&world, &equal).unwrap();
    assert_eq!(reason, "EqualPriority");
    assert!(
        message.contains("about label q: one wants \"x\", two wants \"y\";"),
        "{message}"
    );

    let written = world.plan(&equal).conditions.unwrap().conditions;
    world.gpu_node.as_mut().unwrap().status.as_mut().unwrap().conditions = written;
    assert_eq!(world.plan(&equal).conditions, None, "nothing is left to write");
    assert_eq!(
        world.plan(&[]).conditions.unwrap().conditions,
        [],
        "it goes with its cause"
    );
}

#[test]
fn whoever_lets_go_and_comes_back_again_and_again_is_not_fought_for_ever() {
    for steps in [[None, Some("theirs")], [Some("ours"), Some("theirs")]] {
        let mut world = World::sample();
        world.converge(&[reporting()]);
        let mut writes = 0;
        for _ in 0..100 {
            for step in steps {
                world.set_label("team", step);
                world.converge(&[reporting()]);
                writes += usize::from(world.label("team") != step);
                world.wait(1);
            }
        }
        assert_eq!((writes, world.label("team")), (3, Some("theirs")), "{steps:?}");
    }
}

#[test]
fn what_the_other_wanted_last_is_given_back() {
    let edited = |generation| {
        let mut policy = taking_over();
        policy.metadata.generation = Some(generation);
        [policy]
    };
    let mut world = foreign();
    world.converge(&edited(1));
    for _ in 0..4 {
        world.set_label("team", Some("insisted"));
        world.converge(&edited(1));
        world.wait(10);
    }
    assert_eq!(world.label("team"), Some("insisted"));
    world.wait(100_000);
    world.converge(&edited(2));
    assert_eq!(world.label("team"), Some("ours"));
    world.converge(&[]);
    assert_eq!(world.label("team"), Some("insisted"));
}

#[test]
fn a_policy_that_selects_by_a_key_that_was_conceded_and_is_gone_does_not_take_it_up_again() {
    let record = r#"{"version":1,"before":{"labels":{"pool":"a"}},"conceded":{"labels":{"pool":{"by":"taker@1","gone":false}}}}"#;
    let policies = [policy(
        "taker",
        "{nodeSelector: {matchLabels: {pool: a}}, onConflict: TakeOver, labels: {pool: b}}",
    )];
    let mut world = World::sample();
    world.set_label("pool", None);
    world.set_record(Some(record));
    world.converge(&policies);
    assert_eq!((world.label("pool"), world.record()), (None, None));
    assert_eq!(world.plan(&policies).patch, None);
}
