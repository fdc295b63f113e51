//! Nodes that stop the rollout of their policy, and the end of the stop.

use crate::{
    governed::{back, down, new, old, plan, plan_at, rejecting, step, world, written},
    world::{World, now, policy},
};
use gpunode_crds::{ConfigurationStep, GpuNodePolicy, PolicyMode, Reason};
use gpunode_plan::{GpuNodeChange, NodePlan, PolicyOutcome, RolloutPermit, RolloutStage};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn rejected() -> World {
    rejecting(world(&new(), Some(step()), &old(), true), &new())
}

fn stop() -> RolloutStage {
    RolloutStage::Stopped("ConfigurationRejected: no".to_owned())
}

/// Returns the policies, with a reason to leave the node, or its configuration, as it is.
fn held() -> [(World, Vec<GpuNodePolicy>); 4] {
    let labels = |name: &str, spec: &str| policy(name, &format!("{{nodeSelector: {{}}, {spec}}}"));
    let world = rejected();
    let mut ignored = world.clone();
    ignored.set_label("gpunode.dev/ignore", Some(""));
    let mut unreadable = world.clone();
    unreadable.set_record(Some("{broken"));
    let mut paused = world.clone();
    paused.converge(&[new(), labels("q", "labels: {x: '1'}")]);
    [
        (ignored, vec![new()]),
        (unreadable, vec![new()]),
        (world, vec![new(), labels("q", "devicePlugin: {}")]),
        (paused, vec![new(), labels("q", "mode: Paused, labels: {x: '1'}")]),
    ]
}

#[test]
fn verdict_is_written_down_once_and_goes_when_the_configuration_is_in_force() {
    let first = plan(&rejected(), new(), 1);
    assert_eq!(first.stage, Some(stop()));
    let world = written(rejected(), &first);
    let failed = world
        .gpu_node
        .as_ref()
        .unwrap()
        .spec
        .step
        .as_ref()
        .unwrap()
        .failed
        .as_deref();
    assert_eq!(failed, Some("ConfigurationRejected: no"));
    let second = plan(&world, new(), 1);
    assert_eq!((second.stage, second.gpu_node), (Some(stop()), GpuNodeChange::None));

    let mut mended = world;
    mended.gpu_node.as_mut().unwrap().status = self::world(&new(), None, &new(), true).gpu_node.unwrap().status;
    let plan = plan(&mended, new(), 2);
    assert_eq!(plan.stage, Some(RolloutStage::Done));
    assert_eq!(
        plan.gpu_node,
        GpuNodeChange::Step {
            resource_version: "7".to_owned(),
            step: None,
            change: None
        }
    );
}

#[test]
fn stop_outlasts_the_downtime_and_the_words_of_the_node_that_failed() {
    let late = self::world(&new(), Some(step()), &new(), false);
    let verdict = plan(&late, new(), 5);
    let silent = written(late, &verdict);
    let mut forgetful = silent.clone();
    forgetful.gpu_node.as_mut().unwrap().status = None;
    for world in [silent.clone(), forgetful.clone(), down(silent), down(forgetful)] {
        for minutes in [6, 600] {
            assert_eq!(plan(&world, new(), minutes).stage, verdict.stage, "{world:?}");
        }
    }
    // Before the operator recorded the failure.
    assert_eq!(plan(&down(rejected()), new(), 60).stage, Some(stop()));
}

#[test]
fn stop_holds_while_the_node_is_left_as_it_is() {
    for (world, policies) in held() {
        let plan = plan_at(RolloutPermit::Withheld, &world, &policies, 1);
        let is_held = plan.hold.is_some() || plan.is_configuration_disputed();
        assert!(is_held && !plan.waits, "{plan:?}");
        assert_eq!(
            (plan.stage.clone(), plan.governing.as_deref()),
            (Some(stop()), Some("p")),
            "{plan:?}"
        );
        assert_eq!(plan.policy_statuses_after(None)["p"].stage, Some(stop()));
    }
}

#[test]
fn ignored_node_is_in_the_rollout_and_in_no_count() {
    let [(ignored, policies), ..] = held();
    let plan = plan_at(RolloutPermit::Withheld, &ignored, &policies, 1);
    assert!(plan.outcomes.is_empty());
    assert_eq!(plan.policy_statuses_after(None)["p"].outcome, None);
}

#[test]
fn node_that_is_left_as_it_is_keeps_its_turn_and_takes_none() {
    let [(mut changing, policies), ..] = held();
    changing.gpu_node = world(&new(), Some(step()), &old(), true).gpu_node;
    let plan = plan_at(RolloutPermit::Withheld, &changing, &policies, 1);
    assert_eq!(
        (plan.stage, plan.recheck),
        (Some(RolloutStage::Stepping), Some(now() + SignedDuration::from_mins(5)))
    );
    changing.gpu_node = world(&old(), None, &old(), true).gpu_node;
    assert_eq!(plan_at(RolloutPermit::Withheld, &changing, &policies, 1).stage, None);
}

#[test]
fn stop_ends_with_another_configuration_and_with_no_other_edit() {
    let verdict = plan(&rejected(), new(), 1);
    let world = written(rejected(), &verdict);
    let mut edited = new();
    edited.metadata.generation = Some(2);
    edited.spec.labels = [("a".to_owned(), "b".to_owned())].into();
    assert_eq!(plan(&world, edited, 2).stage, Some(stop()));
    let plan = plan_at(RolloutPermit::Withheld, &world, &[old()], 2);
    assert_eq!((&plan.stage, plan.waits), (&Some(RolloutStage::Outside), false));
    assert_eq!(written(world, &plan).gpu_node.unwrap().spec.step, None);
}

#[test]
fn node_that_failed_and_works_again_waits_for_its_turn_like_any_other() {
    let mut world = world(
        &new(),
        Some(ConfigurationStep {
            failed: Some("x".to_owned()),
            ..step()
        }),
        &new(),
        true,
    );
    let plan = plan_at(RolloutPermit::Withheld, &world, &[old()], 60);
    assert_eq!((plan.stage, plan.waits), (Some(RolloutStage::Pending), true));
    let granted = plan_at(RolloutPermit::Granted, &world, &[old()], 60);
    world = written(world, &granted);
    assert_eq!(world.gpu_node.unwrap().spec.step.unwrap().failed, None);
}

#[test]
fn node_that_comes_back_after_its_deadline_gets_the_time_from_there() {
    let world = down(world(&new(), Some(step()), &old(), true));
    assert_eq!(plan(&world, new(), 20).stage, Some(RolloutStage::Outside));
    let world = back(world, 20);
    let early = plan(&world, new(), 24);
    assert_eq!(
        (early.stage, early.recheck),
        (
            Some(RolloutStage::Stepping),
            Some(now() + SignedDuration::from_mins(25))
        )
    );
    assert!(matches!(plan(&world, new(), 25).stage, Some(RolloutStage::Stopped(_))));
}

#[test]
fn pause_does_not_use_up_the_time_of_a_step() {
    let edit = |generation, mode| {
        let mut policy = new();
        policy.metadata.generation = Some(generation);
        policy.spec.mode = Some(mode);
        policy
    };
    let world = world(&new(), Some(step()), &old(), true);
    let paused = plan(&world, edit(2, PolicyMode::Paused), 60);
    assert_eq!(
        (paused.stage, &paused.gpu_node),
        (Some(RolloutStage::Stepping), &GpuNodeChange::None)
    );
    let resumed = plan(&world, edit(3, PolicyMode::Enforce), 61);
    assert_eq!(resumed.stage, Some(RolloutStage::Stepping));
    let world = written(world, &resumed);
    let after = |minutes| -> NodePlan { plan(&world, edit(3, PolicyMode::Enforce), minutes) };
    assert_eq!(
        (after(65).stage, after(65).gpu_node),
        (Some(RolloutStage::Stepping), GpuNodeChange::None)
    );
    assert!(matches!(after(66).stage, Some(RolloutStage::Stopped(_))));
}

#[test]
fn clock_of_a_node_that_is_far_ahead_keeps_nobody_waiting() {
    let mut ahead = world(&new(), None, &new(), false);
    let year = SignedDuration::from_hours(24 * 365);
    let reported = &mut ahead.gpu_node.as_mut().unwrap().status.as_mut().unwrap().conditions[0].last_transition_time;
    *reported = Time(now() + year);
    let outcome = plan(&ahead, new(), 5).outcomes["p"].clone();
    assert!(
        matches!(
            outcome,
            PolicyOutcome::Failed {
                reason: Reason::Registering,
                ..
            }
        ),
        "{outcome:?}"
    );

    let mut ahead = world(&new(), Some(step()), &old(), true);
    ahead.node["status"]["conditions"][0]["lastTransitionTime"] = json!(now() + year);
    assert!(matches!(plan(&ahead, new(), 5).stage, Some(RolloutStage::Stopped(_))));
}

#[test]
fn clock_of_a_node_that_is_a_little_ahead_costs_no_more_than_that() {
    let mut ahead = world(&new(), None, &new(), false);
    let reported = &mut ahead.gpu_node.as_mut().unwrap().status.as_mut().unwrap().conditions[0].last_transition_time;
    *reported = Time(now() + SignedDuration::from_mins(61));
    let plan_at = |minutes| plan(&ahead, new(), minutes).outcomes["p"].clone();
    assert_eq!(
        (plan_at(60), plan_at(65)),
        (PolicyOutcome::Updating, PolicyOutcome::Updating)
    );
    assert!(matches!(plan_at(66), PolicyOutcome::Failed { .. }));
}
