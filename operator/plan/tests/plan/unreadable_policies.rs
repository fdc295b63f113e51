//! Policies that exist and cannot be read: what they wrote stays, and no other policy waits for them.

use crate::world::{World, policy};
use gpunode_crds::{GpuNodePolicy, Reason};
use gpunode_plan::{GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, plan_node};
use serde_json::json;

fn plan(world: &World, policies: &[GpuNodePolicy]) -> NodePlan {
    let set = PolicySet::new(policies).with_unreadable(["newer".to_owned()]);
    plan_node(
        &set,
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), world.now),
    )
}

/// A node on which the policies are in force.
fn with_gpu_node(policies: &[GpuNodePolicy]) -> World {
    let mut world = World::sample();
    let created = world.converge(policies).gpu_node;
    let GpuNodeChange::Create(mut gpu_node) = created else {
        panic!("{created:?}")
    };
    gpu_node.metadata.uid = Some("g".to_owned());
    gpu_node.metadata.resource_version = Some("7".to_owned());
    world.gpu_node = Some(*gpu_node);
    world
}

/// A node on which the policy was in force before it could no longer be read.
fn governed() -> World {
    with_gpu_node(&[policy(
        "newer",
        "{nodeSelector: {}, labels: {x: y}, taints: [{key: t, effect: NoSchedule}], devicePlugin: {}}",
    )])
}

#[test]
fn everything_that_it_wrote_stays() {
    let world = governed();
    let plan = plan(&world, &[]);
    assert_eq!(plan.patch, None);
    assert_eq!(plan.gpu_node, GpuNodeChange::None);
    // Without it the same node is cleaned.
    assert!(world.plan(&[]).patch.is_some());
}

#[test]
fn key_that_another_policy_wants_follows_that_policy() {
    let world = governed();
    let other = policy("other", "{nodeSelector: {}, labels: {x: z, other: works}}");
    let patch = json!(plan(&world, &[other]).patch).to_string();
    assert!(
        patch.contains("\"/metadata/labels/x\"") && patch.contains("\"/metadata/labels/other\""),
        "{patch}"
    );
    assert!(!patch.contains("gpunode.dev~1policy.newer"), "{patch}");
    assert!(!patch.contains("/spec/taints"), "{patch}");
}

#[test]
fn policies_that_would_govern_instead_wait_and_say_so() {
    let world = governed();
    let other = |name: &str, priority: i32, config: &str| {
        policy(
            name,
            &format!("{{nodeSelector: {{}}, priority: {priority}, devicePlugin: {config}}}"),
        )
    };
    let plan = plan(
        &world,
        &[
            other("other", 5, "{passDeviceSpecs: true}"),
            other("same", 4, "{passDeviceSpecs: true}"),
            other("lower", 3, "{}"),
        ],
    );
    assert_eq!(plan.gpu_node, GpuNodeChange::None);
    let patch = json!(plan.patch).to_string();
    assert!(!patch.contains("gpunode.dev~1policy.other"), "{patch}");
    for name in ["other", "same"] {
        let outcome = &plan.outcomes[name];
        assert!(
            matches!(outcome, PolicyOutcome::Conflicted { reason: Reason::Unreadable, message } if message.contains("policy newer")),
            "{outcome:?}"
        );
    }
    assert_eq!(
        plan.overridden["lower"].message,
        "devicePlugin by policy other (priority 5)"
    );
}

#[test]
fn node_of_another_policy_is_cleaned_as_usual() {
    let gone = policy("gone", "{nodeSelector: {}, labels: {x: y}}");
    let mut world = World::sample();
    world.converge(std::slice::from_ref(&gone));
    assert!(plan(&world, &[]).patch.is_some());
}

#[test]
fn agent_of_another_policy_goes_with_its_configuration() {
    let newer = policy("newer", "{nodeSelector: {}, labels: {x: y}}");
    let other = |pool: &str| {
        policy(
            "other",
            &format!("{{nodeSelector: {{matchLabels: {{pool: {pool}}}}}, devicePlugin: {{}}}}"),
        )
    };
    let governed = with_gpu_node(&[newer, other("a")]);
    for policies in [vec![], vec![other("b")]] {
        let mut world = governed.clone();
        assert_eq!(world.label("gpunode.dev/governed"), Some("true"));
        let set = PolicySet::new(&policies).with_unreadable(["newer".to_owned()]);
        let plan = world.converge_with(&set);
        assert!(
            matches!(plan.gpu_node, GpuNodeChange::Delete { .. }),
            "{:?}",
            plan.gpu_node
        );
        let left = ["gpunode.dev/governed", "gpunode.dev/policy.other", "x"].map(|key| world.label(key));
        assert_eq!(left, [None, None, Some("y")], "{policies:?}");
    }
}
