//! A node whose labels no longer match keeps what it has for half a minute.

use crate::world::{World, policy};
use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{Deselection, Deselections, NodeContext, NodePlan, PolicySet, explain, plan_node};
use jiff::SignedDuration;

fn pool(name: &str, pool: &str, rest: &str) -> GpuNodePolicy {
    policy(
        name,
        &format!("{{nodeSelector: {{matchLabels: {{pool: {pool}}}}}, {rest}}}"),
    )
}

/// Plans the node as an operator does that saw policy `p` stop to match at the world's time.
fn plan_after(world: &World, policies: &[GpuNodePolicy], seconds: i64) -> NodePlan {
    let since = world.now;
    let deselection = Deselection {
        generation: Some(1),
        since,
    };
    let known = Deselections::from([("p".to_owned(), deselection)]);
    let now = since + SignedDuration::from_secs(seconds);
    let facts = world.facts();
    let gpu_node = world.gpu_facts();
    let context = NodeContext::new(&facts, gpu_node.as_ref(), now).remembering(Some(&known));
    plan_node(&PolicySet::new(policies), context)
}

fn apply(world: &mut World, plan: &NodePlan) {
    json_patch::patch(&mut world.node, plan.patch.as_ref().unwrap()).unwrap();
}

#[test]
fn labels_taints_agent_and_configuration_stay_for_half_a_minute_and_explain_shows_the_time_left() {
    let policies = [pool(
        "p",
        "a",
        "labels: {x: y}, taints: [{key: k, effect: NoExecute}], devicePlugin: {}",
    )];
    let mut world = World::sample();
    world.converge(&policies);
    world.set_label("pool", None);
    let plan = plan_after(&world, &policies, 2);
    assert_eq!(
        (&plan.patch, &plan.matched),
        (&None, &vec!["p".to_owned()]),
        "a flap of 2 s writes nothing"
    );
    assert_eq!(plan.recheck, Some(world.now + SignedDuration::from_secs(5)));
    let plan = plan_after(&world, &policies, 5);
    assert_eq!(plan.recheck, Some(world.now + SignedDuration::from_secs(30)));
    let before = world.node["spec"].clone();
    apply(&mut world, &plan);
    assert_eq!((world.node["spec"].clone(), world.label("x")), (before, Some("y")));
    assert!(world.record().unwrap().contains("deselected"));
    // Another process knows the moment from the record.
    world.wait(10);
    let facts = world.facts();
    let explained = explain(&PolicySet::new(&policies), NodeContext::new(&facts, None, world.now));
    assert_eq!(explained.policies[0].leaves_after, Some(20));
    assert_eq!(world.plan(&policies).patch, None);
    let mut back = world.clone();
    back.set_label("pool", Some("a"));
    back.converge(&policies);
    assert!(!back.record().unwrap().contains("deselected") && back.label("x") == Some("y"));
    world.wait(20);
    world.converge(&policies);
    assert_eq!((world.label("x"), world.label("gpunode.dev/governed")), (None, None));
    world.wait(60);
    world.converge(&policies);
    assert_eq!(world.record(), None);
}

#[test]
fn what_another_matching_policy_wants_moves_at_once() {
    let policies = [
        pool("p", "a", "priority: 9, labels: {x: p, only: p}, devicePlugin: {}"),
        pool("q", "b", "labels: {x: q}, devicePlugin: {passDeviceSpecs: true}"),
    ];
    let mut world = World::sample();
    world.converge(&policies);
    world.set_label("pool", Some("b"));
    let plan = plan_after(&world, &policies, 1);
    apply(&mut world, &plan);
    assert_eq!((world.label("x"), world.label("only")), (Some("q"), Some("p")));
    assert_eq!(plan.governing.as_deref(), Some("q"));
    assert!(plan.disagreements.is_empty() && plan.overridden.is_empty());
    let plan = plan_after(&world, &policies, 30);
    apply(&mut world, &plan);
    assert_eq!((world.label("x"), world.label("only")), (Some("q"), None));
}

#[test]
fn an_edited_or_deleted_policy_and_gpus_that_do_not_fit_have_no_grace() {
    let original = pool("p", "a", "labels: {x: y}");
    let mut world = World::sample();
    world.converge(std::slice::from_ref(&original));
    world.set_label("pool", None);
    assert_eq!(plan_after(&world, std::slice::from_ref(&original), 1).patch, None);
    let mut edited = original.clone();
    edited.metadata.generation = Some(2);
    for policies in [vec![edited], vec![]] {
        assert!(plan_after(&world, &policies, 1).patch.is_some());
    }
    world.set_label("gpunode.dev/ignore", Some(""));
    assert_eq!(plan_after(&world, &[original], 99).patch, None);
}
