//! Mode Paused.

use crate::world::{World, policy};
use gpunode_crds::{GpuNodePolicy, Reason};
use gpunode_plan::{GpuNodeChange, NodeHold, PolicyOutcome};

fn pool(mode: &str, further: &str) -> GpuNodePolicy {
    policy(
        "pool",
        &format!(
            "{{mode: {mode}, nodeSelector: {{matchLabels: {{pool: a}}}}, labels: {{x: y}}, devicePlugin: {{}}{further}}}"
        ),
    )
}

/// A node that the policy governs.
fn governed() -> World {
    let mut world = World::sample();
    let GpuNodeChange::Create(gpu_node) = world.converge(&[pool("Enforce", "")]).gpu_node else {
        panic!()
    };
    world.gpu_node = Some(*gpu_node);
    world
}

#[test]
fn a_changed_spec_of_a_paused_policy_changes_nothing_on_its_nodes() {
    let world = governed();
    for more in [
        "",
        ", priority: 7, taints: [{key: k, effect: NoSchedule}]",
        ", image: other",
    ] {
        let plan = world.plan(&[pool("Paused", more)]);
        assert!(plan.is_settled(), "{more}");
        assert_eq!(
            (plan.hold, plan.governing.as_deref()),
            (Some(NodeHold::Paused("pool".to_owned())), Some("pool"))
        );
    }
    let changed = policy(
        "pool",
        "{mode: Paused, nodeSelector: {}, labels: {z: z}, devicePlugin: {passDeviceSpecs: true}}",
    );
    assert!(world.plan(&[changed]).is_settled());
}

#[test]
fn a_paused_policy_is_judged_by_what_is_in_force_and_not_by_its_spec() {
    let world = governed();
    let changed = policy(
        "pool",
        "{mode: Paused, nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}",
    );
    for policies in [[pool("Paused", "")], [changed]] {
        let plan = world.plan(&policies);
        // No agent has reported yet.
        assert_eq!(
            (plan.outcomes.get("pool"), plan.recheck.is_some()),
            (Some(&PolicyOutcome::Updating), true)
        );
    }
}

#[test]
fn a_node_that_leaves_the_pool_of_a_paused_policy_stays_as_it_is() {
    let mut world = governed();
    world.set_label("pool", Some("b"));
    assert!(world.plan(&[pool("Paused", "")]).is_settled());
    world.converge(&[pool("Enforce", "")]);
    assert_eq!(world.label("x"), None, "and is cleaned when the policy goes on");
}

#[test]
fn what_somebody_changes_on_a_node_of_a_paused_policy_stays_changed() {
    let mut world = governed();
    world.set_label("x", Some("z"));
    assert!(world.plan(&[pool("Paused", "")]).is_settled());
    world.converge(&[pool("Enforce", "")]);
    assert_eq!(world.label("x"), Some("y"));
}

#[test]
fn a_new_node_gets_nothing_of_a_paused_policy_and_everything_of_others() {
    let mut world = World::sample();
    let other = policy("other", "{nodeSelector: {}, labels: {o: o}}");
    let plan = world.converge(&[pool("Paused", ""), other]);
    assert_eq!((plan.hold, plan.matched), (None, vec!["other".to_owned()]));
    assert_eq!((world.label("x"), world.label("o")), (None, Some("o")));
    assert!(!plan.outcomes.contains_key("pool"));
}

#[test]
fn other_policies_wait_for_the_paused_one_and_say_so() {
    let world = governed();
    let other = policy("other", "{priority: 9, nodeSelector: {}, labels: {x: other}}");
    let preview = policy("preview", "{mode: Preview, nodeSelector: {}, labels: {p: p}}");
    let plan = world.plan(&[pool("Paused", ""), other, preview]);
    assert!(plan.is_settled());
    for name in ["other", "preview"] {
        let PolicyOutcome::Conflicted {
            reason: Reason::Paused,
            message,
        } = &plan.outcomes[name]
        else {
            panic!("{name}")
        };
        assert!(
            message.starts_with("policy pool is paused and owns keys of the node"),
            "{message}"
        );
    }
}

#[test]
fn deletion_of_a_paused_policy_cleans_as_ever() {
    let mut world = governed();
    world.converge(&[pool("Paused", "")]);
    world.converge(&[]);
    world.wait(60);
    world.converge(&[]);
    assert_eq!(world.snapshot(), World::sample().snapshot());
}

#[test]
fn an_annotation_that_cannot_be_read_is_said_on_a_node_of_a_paused_policy_too() {
    let mut world = governed();
    world.node["metadata"]["annotations"]["gpunode.dev/recovered"] = "yesterday".into();
    let plan = world.plan(&[pool("Paused", "")]);
    let types: Vec<String> = plan
        .conditions
        .unwrap()
        .conditions
        .into_iter()
        .map(|it| it.type_)
        .collect();
    assert_eq!((types, plan.patch), (vec!["RecoveredAnnotation".to_owned()], None));
}
