//! Stages of a node in the rollout of its policy, and the writes with and without a permit.

use crate::{
    governed::{configuration, down, finished, given, new, old, plan, plan_at, rejecting, step, world, written},
    world::{World, now, policy},
};
use gpunode_crds::{Reason, ResourceStatus};
use gpunode_plan::{GpuNodeChange, NodePlan, PolicyOutcome, RolloutPermit, RolloutStage};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

#[test]
fn node_that_works_waits_for_its_turn_and_counts_as_updating() {
    let world = world(&old(), None, &old(), true);
    let waiting = plan_at(RolloutPermit::Withheld, &world, &[new()], 0);
    assert_eq!(
        (waiting.stage.clone(), &waiting.gpu_node, waiting.waits),
        (Some(RolloutStage::Pending), &GpuNodeChange::None, true)
    );
    assert_eq!(waiting.outcomes["p"], PolicyOutcome::Updating);
    assert!(!waiting.is_settled() && !waiting.has_work());
    let plan = plan(&world, new(), 0);
    let hash = configuration(&new()).hash;
    assert_eq!(given(&plan.gpu_node), Some((hash.as_str(), true)));
}

#[test]
fn configured_node_is_written_once() {
    let before = world(&old(), None, &old(), true);
    let granted = plan(&before, new(), 0);
    let mut node = written(before, &granted);
    assert_eq!(plan(&node, new(), 1).gpu_node, GpuNodeChange::None);
    node.gpu_node.as_mut().unwrap().status = world(&new(), None, &new(), true).gpu_node.unwrap().status;
    let node = finished(node);
    for minutes in [1, 4, 5, 600] {
        let there = plan(&node, new(), minutes);
        assert_eq!(
            (there.stage, there.gpu_node, &there.outcomes["p"]),
            (Some(RolloutStage::Done), GpuNodeChange::None, &PolicyOutcome::Ready)
        );
    }
    let mut edited = new();
    edited.metadata.generation = Some(2);
    assert_eq!(plan(&node, edited, 600).gpu_node, GpuNodeChange::None);
}

#[test]
fn node_that_breaks_after_its_step_stops_no_rollout() {
    let rejecting = rejecting(world(&new(), Some(step()), &old(), true), &new());
    let late = world(&new(), Some(step()), &new(), false);
    let down = down(world(&new(), Some(step()), &new(), true));
    for (world, minutes) in [(rejecting, 1), (late, 5), (down, 1)] {
        let plan = plan(&finished(world.clone()), new(), minutes);
        assert_eq!(
            (plan.stage, plan.gpu_node),
            (Some(RolloutStage::Outside), GpuNodeChange::None),
            "{world:?}"
        );
    }
}

#[test]
fn node_whose_kubelet_follows_later_keeps_its_place_until_the_deadline() {
    let mut lagging = finished(world(&new(), Some(step()), &new(), true));
    lagging.gpu_node.as_mut().unwrap().status.as_mut().unwrap().resources = vec![ResourceStatus {
        name: "nvidia.com/gpu".to_owned(),
        capacity: 8,
        allocatable: 8,
        registered: true,
        ..ResourceStatus::default()
    }];
    let at = |world: &World, minutes| {
        let plan = plan(world, new(), minutes);
        (plan.stage, plan.gpu_node)
    };
    assert_eq!(at(&lagging, 4), (Some(RolloutStage::Stepping), GpuNodeChange::None));
    assert_eq!(at(&lagging, 5), (Some(RolloutStage::Outside), GpuNodeChange::None));
    let mut edited = new();
    edited.metadata.generation = Some(2);
    assert_eq!(
        plan(&lagging, edited, 4).gpu_node,
        GpuNodeChange::None,
        "the time does not start again"
    );
    lagging.node["status"]["allocatable"] = json!({"nvidia.com/gpu": "8"});
    assert_eq!(at(&lagging, 4), (Some(RolloutStage::Done), GpuNodeChange::None));
}

#[test]
fn no_two_steps_of_a_node_begin_in_the_same_second() {
    let seconds = |world: &World| match plan(world, old(), 0).gpu_node {
        GpuNodeChange::Configure { step: Some(step), .. } => step.started_at.0.duration_since(now()).as_secs(),
        other => panic!("{other:?}"),
    };
    let mut world = finished(world(&new(), Some(step()), &new(), true));
    assert_eq!(seconds(&world), 1);
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.finished_step = Some(Time(now() + SignedDuration::from_secs(1)));
    assert_eq!(seconds(&world), 2);
    world.gpu_node.as_mut().unwrap().spec.step = None;
    assert_eq!(seconds(&world), 0);
}

#[test]
fn step_of_an_older_agent_ends_with_one_more_write_when_the_configuration_is_in_force() {
    let stepping = world(&new(), Some(step()), &old(), true);
    let on_its_way = plan(&stepping, new(), 1);
    assert_eq!(
        (on_its_way.stage, on_its_way.gpu_node),
        (Some(RolloutStage::Stepping), GpuNodeChange::None)
    );
    assert_eq!(on_its_way.outcomes["p"], PolicyOutcome::Updating);
    assert_eq!(on_its_way.recheck, Some(now() + SignedDuration::from_mins(5)));

    let there = plan(&world(&new(), Some(step()), &new(), true), new(), 1);
    assert_eq!(
        (there.stage, &there.outcomes["p"]),
        (Some(RolloutStage::Done), &PolicyOutcome::Ready)
    );
    assert_eq!(
        there.gpu_node,
        GpuNodeChange::Step {
            resource_version: "7".to_owned(),
            step: None,
            change: None
        }
    );
    let settled = plan(&world(&new(), None, &new(), true), new(), 1);
    assert_eq!(
        (settled.stage, settled.gpu_node),
        (Some(RolloutStage::Done), GpuNodeChange::None)
    );
}

#[test]
fn node_that_fails_or_takes_too_long_at_its_turn_stops_the_rollout() {
    let rejecting = rejecting(world(&new(), Some(step()), &old(), true), &new());
    let rejected = plan(&rejecting, new(), 0);
    assert_eq!(
        rejected.stage,
        Some(RolloutStage::Stopped("ConfigurationRejected: no".to_owned()))
    );

    let late = plan(&world(&new(), Some(step()), &new(), false), new(), 5);
    let message = "not in force after 5m: as the agent says";
    assert_eq!(
        late.outcomes["p"],
        PolicyOutcome::failed(Reason::ProgressDeadlineExceeded, message)
    );
    assert_eq!(
        late.stage,
        Some(RolloutStage::Stopped(format!("ProgressDeadlineExceeded: {message}")))
    );
}

#[test]
fn node_that_failed_gets_the_next_configuration_at_once_and_outside_the_budget() {
    let failed = rejecting(world(&new(), Some(step()), &old(), true), &new());
    let plan = plan_at(RolloutPermit::Withheld, &failed, &[old()], 1);
    assert_eq!((plan.stage, plan.waits), (Some(RolloutStage::Outside), false));
    assert_eq!(
        given(&plan.gpu_node),
        Some((configuration(&old()).hash.as_str(), false))
    );
}

#[test]
fn node_that_is_changing_goes_on_to_the_next_configuration_in_its_place() {
    let plan = plan_at(
        RolloutPermit::Withheld,
        &world(&new(), Some(step()), &old(), true),
        &[old()],
        1,
    );
    assert_eq!(plan.stage, Some(RolloutStage::Stepping));
    let GpuNodeChange::Configure { step: Some(step), .. } = plan.gpu_node else {
        panic!("{:?}", plan.gpu_node)
    };
    assert_eq!(step.started_at.0, now() + SignedDuration::from_mins(1));
}

#[test]
fn node_that_never_worked_is_outside_the_budget() {
    for world in [World::sample(), world(&old(), None, &new(), true)] {
        let plan = plan_at(RolloutPermit::Withheld, &world, &[new()], 1);
        assert_eq!(
            (plan.stage, plan.waits),
            (Some(RolloutStage::Outside), false),
            "{world:?}"
        );
        assert!(plan.gpu_node.gives_configuration());
    }
}

#[test]
fn node_whose_agent_starts_again_has_worked_before() {
    let plan = plan_at(
        RolloutPermit::Withheld,
        &world(&old(), None, &old(), false),
        &[new()],
        1,
    );
    assert_eq!((plan.stage, plan.waits), (Some(RolloutStage::Pending), true));
}

#[test]
fn node_whose_agent_is_replaced_is_no_more_outside_than_before() {
    let plan = plan_at(
        RolloutPermit::Withheld,
        &world(&new(), None, &new(), false),
        &[new()],
        1,
    );
    assert_eq!(
        (plan.stage, &plan.outcomes["p"]),
        (Some(RolloutStage::Done), &PolicyOutcome::Updating)
    );
}

#[test]
fn node_that_is_held_and_down_holds_nobody() {
    let mut world = down(world(&new(), None, &new(), true));
    world.set_label("gpunode.dev/ignore", Some(""));
    let plan = plan_at(RolloutPermit::Withheld, &world, &[new()], 1);
    assert!(plan.hold.is_some());
    assert_eq!((plan.stage, plan.outcomes.len()), (Some(RolloutStage::Held), 0));
}

#[test]
fn node_that_is_down_gets_the_configuration_when_it_is_back_and_holds_nobody() {
    let plan = plan_at(
        RolloutPermit::Withheld,
        &down(world(&old(), None, &old(), true)),
        &[new()],
        1,
    );
    assert_eq!(
        (plan.stage, plan.gpu_node),
        (Some(RolloutStage::Outside), GpuNodeChange::None)
    );
    assert!(matches!(
        plan.outcomes["p"],
        PolicyOutcome::Failed {
            reason: Reason::NodeNotReady,
            ..
        }
    ));
}

#[test]
fn node_that_goes_down_at_its_turn_keeps_its_place_until_the_deadline() {
    let down = down(world(&new(), Some(step()), &old(), true));
    let early = plan(&down, new(), 4);
    assert_eq!(
        (early.stage, early.recheck),
        (Some(RolloutStage::Stepping), Some(now() + SignedDuration::from_mins(5)))
    );
    assert!(matches!(
        early.outcomes["p"],
        PolicyOutcome::Failed {
            reason: Reason::NodeNotReady,
            ..
        }
    ));
    assert_eq!(plan(&down, new(), 5).stage, Some(RolloutStage::Outside));
}

#[test]
fn node_that_breaks_after_its_turn_stops_nothing() {
    let plan = plan(&world(&new(), None, &new(), false), new(), 60);
    assert_eq!(plan.stage, Some(RolloutStage::Outside));
}

#[test]
fn agent_of_another_policy_is_placed_with_the_configuration() {
    let other = policy(
        "q",
        "{priority: 1, nodeSelector: {}, labels: {x: y}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let world = world(&old(), None, &old(), true);
    let patched = |plan: &NodePlan| serde_json::to_string(&plan.patch).unwrap();
    let waiting = plan_at(RolloutPermit::Withheld, &world, &[old(), other.clone()], 0);
    assert!(waiting.waits && patched(&waiting).contains("labels/x") && !patched(&waiting).contains("policy.q"));
    let granted = plan_at(RolloutPermit::Granted, &world, &[old(), other.clone()], 0);
    assert!(patched(&granted).contains("policy.q"));
    let orphaned = plan_at(RolloutPermit::Withheld, &world, &[other], 0);
    assert!(
        patched(&orphaned).contains("policy.q"),
        "the DaemonSet of the old policy is gone"
    );
}

#[test]
fn policy_whose_configuration_cannot_be_written_moves_no_agent() {
    let invalid = policy(
        "q",
        "{priority: 9, nodeSelector: {}, devicePlugin: {resources: [{name: nodomain}]}}",
    );
    let other = policy(
        "q",
        "{priority: 9, nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let works = world(&old(), None, &old(), true);
    let mut too_old = works.clone();
    too_old
        .gpu_node
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .agent
        .as_mut()
        .unwrap()
        .config_versions = vec![9];
    for (mut world, policies) in [(works, [old(), invalid.clone()]), (too_old, [old(), other])] {
        for permit in [RolloutPermit::Withheld, RolloutPermit::Granted] {
            assert_eq!(plan_at(permit, &world, &policies, 1).gpu_node, GpuNodeChange::None);
        }
        world.converge(&policies);
        assert_eq!(
            (world.label("gpunode.dev/policy.p"), world.label("gpunode.dev/policy.q")),
            (Some("true"), None)
        );
        assert!(matches!(
            world.plan(&policies).outcomes["q"],
            PolicyOutcome::Failed { .. }
        ));
    }
    let mut orphaned = world(&old(), None, &old(), true);
    orphaned.converge(&[invalid]);
    assert_eq!(
        orphaned.label("gpunode.dev/policy.q"),
        Some("true"),
        "the DaemonSet of the old policy is gone"
    );
}
