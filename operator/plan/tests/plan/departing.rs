//! Policies that are gone: what they wrote stays until their removal reaches the node.

use crate::world::{World, policy};
use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, plan_node};
use jiff::SignedDuration;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

fn plan(world: &World, policies: &[GpuNodePolicy]) -> NodePlan {
    let departing = BTreeSet::from(["gone".to_owned()]);
    let facts = world.facts();
    let gpu_node = world.gpu_facts();
    let context = NodeContext::new(&facts, gpu_node.as_ref(), world.now).departing(&departing);
    plan_node(&PolicySet::new(policies), context)
}

/// Returns the plan while the policy is missing, and may come back for a minute.
fn plan_while_missing(world: &World, policies: &[GpuNodePolicy]) -> NodePlan {
    let departing = BTreeSet::from(["gone".to_owned()]);
    let missing = BTreeMap::from([("gone".to_owned(), world.now + SignedDuration::from_mins(1))]);
    let facts = world.facts();
    let gpu_node = world.gpu_facts();
    let context = NodeContext::new(&facts, gpu_node.as_ref(), world.now)
        .departing(&departing)
        .missing(&missing);
    plan_node(&PolicySet::new(policies), context)
}

fn gone() -> GpuNodePolicy {
    policy(
        "gone",
        "{nodeSelector: {}, labels: {x: y}, taints: [{key: t, effect: NoExecute}], startupTaint: {}, devicePlugin: {}}",
    )
}

/// A node on which the policy was in force.
fn governed() -> World {
    let mut world = World::sample();
    let created = world.converge(&[gone()]).gpu_node;
    let GpuNodeChange::Create(mut gpu_node) = created else {
        panic!("{created:?}")
    };
    gpu_node.metadata.uid = Some("g".to_owned());
    gpu_node.metadata.resource_version = Some("7".to_owned());
    world.gpu_node = Some(*gpu_node);
    let mut record: serde_json::Value = serde_json::from_str(world.record().unwrap()).unwrap();
    record["started"] = json!("");
    world.set_record(Some(&record.to_string()));
    world.converge(&[gone()]);
    world
}

#[test]
fn everything_stays_until_the_removal_reaches_the_node() {
    let world = governed();
    let kept = plan(&world, &[]);
    assert_eq!((kept.patch, kept.gpu_node), (None, GpuNodeChange::None));
    let reached = world.plan(&[]);
    assert!(reached.patch.is_some() && reached.gpu_node != GpuNodeChange::None);
    // It is in force again, as if nothing had happened.
    let back = world.plan(&[gone()]);
    assert_eq!(back.gpu_node, GpuNodeChange::None);
    assert!(!json!(back.patch).to_string().contains("/spec/taints"));
}

#[test]
fn policy_that_wants_the_node_instead_waits_for_no_removal() {
    let world = governed();
    let other = policy(
        "other",
        "{nodeSelector: {}, labels: {x: z}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let plan = plan(&world, &[other]);
    assert_eq!(plan.governing.as_deref(), Some("other"));
    assert!(plan.gpu_node.gives_configuration());
    let patch = json!(plan.patch).to_string();
    assert!(
        patch.contains("\"/metadata/labels/x\"") && !patch.contains("/spec/taints"),
        "{patch}"
    );
    assert!(plan.disagreements.is_empty() && plan.conflicts.is_empty());
}

#[test]
fn policy_that_wants_the_node_instead_waits_while_the_missing_one_may_come_back() {
    let world = governed();
    let other = policy(
        "other",
        "{nodeSelector: {}, labels: {x: z}, taints: [{key: t, value: v, effect: NoExecute}], devicePlugin: {passDeviceSpecs: true}}",
    );
    let plan = plan_while_missing(&world, &[other]);
    assert_eq!((&plan.patch, &plan.gpu_node), (&None, &GpuNodeChange::None));
    assert_eq!(plan.governing, None);
    let end = world.now + SignedDuration::from_mins(1);
    assert!(plan.recheck.is_some_and(|recheck| recheck <= end));
    assert_eq!(plan.outcomes["other"], PolicyOutcome::Updating);
}

#[test]
fn policy_whose_edit_waits_for_a_missing_one_is_updating_and_keeps_its_place_in_the_record() {
    let other = |tier: &str| policy("other", &format!("{{nodeSelector: {{}}, labels: {{tier: {tier}}}}}"));
    let mut world = governed();
    world.converge(&[gone(), other("old")]);
    assert!(world.record().unwrap().contains(r#""other""#));
    for (tier, outcome) in [("old", PolicyOutcome::Ready), ("new", PolicyOutcome::Updating)] {
        let plan = plan_while_missing(&world, &[other(tier)]);
        assert_eq!(plan.patch, None, "{tier}");
        assert_eq!(plan.outcomes["other"], outcome, "{tier}");
    }
}
