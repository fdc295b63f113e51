//! Approvals of MIG changes within the rollout of the policy, and what becomes of them.

use crate::{
    governed::{back, configuration, down, new, plan, plan_at, world as governed, written},
    world::{World, now, policy},
};
use gpunode_crds::{ChangeState, DisruptiveChange, GpuNodePolicy, LayoutPreview, MigPhase, MigStatus, Reason};
use gpunode_plan::{
    GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, RolloutPermit, RolloutStage, plan_node_with_permit,
};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn divided(more: &str) -> GpuNodePolicy {
    policy(
        "p",
        &format!(
            "{{nodeSelector: {{}}, devicePlugin: {{mig: {{strategy: Mixed, layout: [{{preset: all-balanced}}]}}}}, \
             rollout: {{progressDeadline: 5m}}{more}}}"
        ),
    )
}

/// Returns a node with the layout in force, and one GPU in each phase.
fn world(phases: &[&str]) -> World {
    let mut world = governed(&divided(""), None, &divided(""), true);
    report(&mut world, phases);
    world
}

/// The agent reports one GPU in each phase.
fn report(world: &mut World, phases: &[&str]) {
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    let gpu = |(index, phase): (usize, &&str)| {
        let (phase, reason) = phase
            .split_once('/')
            .map_or((*phase, None), |(phase, reason)| (phase, Some(reason)));
        serde_json::from_value(json!({
            "index": index, "uuid": format!("GPU-{index}"), "product": "A100", "memoryMiB": 1,
            "mig": {"wanted": "1g.5gb:7", "observed": "off", "phase": phase, "reason": reason, "message": format!("is {phase}")},
        }))
        .unwrap()
    };
    status.gpus = phases.iter().enumerate().map(gpu).collect();
}

fn approved(mut world: World, minutes: i64) -> World {
    let since = Time(now() + SignedDuration::from_mins(minutes));
    let hash = configuration(&divided("")).hash;
    world.gpu_node.as_mut().unwrap().spec.change = Some(DisruptiveChange {
        state: ChangeState::Approved,
        hash,
        since,
        reason: None,
        message: None,
        attempts: 0,
    });
    world
}

fn finished(mut world: World) -> World {
    let gpu_node = world.gpu_node.as_mut().unwrap();
    let since = gpu_node.spec.change.as_ref().map(|change| change.since.clone());
    gpu_node.status.as_mut().unwrap().finished_change = since;
    world
}

fn change(world: &World) -> Option<&DisruptiveChange> {
    world.gpu_node.as_ref().unwrap().spec.change.as_ref()
}

fn approval(plan: &NodePlan) -> Option<i64> {
    match &plan.gpu_node {
        GpuNodeChange::Step {
            change: Some(change),
            step: None,
            ..
        } => Some(change.since.0.duration_since(now()).as_secs()),
        _ => None,
    }
}

fn stage(world: &World, minutes: i64) -> RolloutStage {
    plan(world, divided(""), minutes).stage.unwrap()
}

fn withdrawn(world: World, plan: &NodePlan) -> bool {
    matches!(plan.gpu_node, GpuNodeChange::Step { .. }) && change(&written(world, plan)).is_none()
}

#[test]
fn gpus_that_are_free_to_change_wait_for_the_turn_of_their_node_and_get_one_approval() {
    let free = world(&["AwaitingApproval", "Waiting"]);
    let waiting = plan_at(RolloutPermit::Withheld, &free, &[divided("")], 0);
    assert_eq!(
        (&waiting.stage, &waiting.gpu_node, waiting.waits, &waiting.outcomes["p"]),
        (
            &Some(RolloutStage::Pending),
            &GpuNodeChange::None,
            true,
            &PolicyOutcome::Updating
        )
    );
    let granted = plan(&free, divided(""), 0);
    let expected = DisruptiveChange {
        state: ChangeState::Approved,
        hash: configuration(&divided("")).hash,
        since: Time(now()),
        reason: None,
        message: None,
        attempts: 0,
    };
    assert_eq!(
        (granted.gpu_node.clone(), &granted.outcomes["p"]),
        (
            GpuNodeChange::Step {
                resource_version: "7".to_owned(),
                step: None,
                change: Some(expected)
            },
            &PolicyOutcome::Updating
        )
    );
    let mut world = written(free, &granted);
    for phases in [
        ["AwaitingApproval", "Waiting"],
        ["Applying", "Waiting"],
        ["Applied", "Waiting"],
    ] {
        report(&mut world, &phases);
        let changing = plan_at(RolloutPermit::Withheld, &world, &[divided("")], 1);
        assert_eq!(
            (
                changing.stage,
                changing.gpu_node,
                &changing.outcomes["p"],
                changing.recheck
            ),
            (
                Some(RolloutStage::Stepping),
                GpuNodeChange::None,
                &PolicyOutcome::Updating,
                Some(now() + SignedDuration::from_mins(5))
            ),
            "{phases:?}"
        );
    }
    let world = finished(world);
    for minutes in [1, 600] {
        let there = plan(&world, divided(""), minutes);
        assert_eq!(
            (there.stage, there.gpu_node, &there.outcomes["p"]),
            (Some(RolloutStage::Done), GpuNodeChange::None, &PolicyOutcome::Ready)
        );
    }
}

#[test]
fn gpu_that_waits_for_pods_needs_no_turn() {
    for phase in ["Waiting", "Blocked/InUse", "Applied", "Unsupported"] {
        let plan = plan(&world(&[phase]), divided(""), 0);
        assert_eq!(
            (plan.stage, plan.gpu_node, plan.waits),
            (Some(RolloutStage::Done), GpuNodeChange::None, false),
            "{phase}"
        );
    }
}

#[test]
fn gpus_that_get_free_later_get_an_approval_of_another_second() {
    let mut again = finished(approved(world(&["AwaitingApproval"]), 0));
    assert_eq!(approval(&plan(&again, divided(""), 0)), Some(1));
    let status = again.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.finished_change = Some(Time(now() + SignedDuration::from_secs(1)));
    // The agent reports another change than the one in the spec, which is under way.
    assert_eq!(stage(&again, 0), RolloutStage::Stepping);
    again.gpu_node.as_mut().unwrap().spec.change = None;
    assert_eq!(approval(&plan(&again, divided(""), 0)), Some(0));
}

#[test]
fn change_that_fails_stops_the_rollout_until_it_is_done() {
    let failed = approved(world(&["Applied", "Failed"]), 0);
    let verdict = plan(&failed, divided(""), 1);
    let stop = RolloutStage::Stopped("MigFailed: GPU 1: is Failed".to_owned());
    assert_eq!(
        (verdict.stage.as_ref(), &verdict.outcomes["p"]),
        (
            Some(&stop),
            &PolicyOutcome::failed(Reason::MigFailed, "GPU 1: is Failed")
        )
    );
    let mut world = written(failed, &verdict);
    assert!(change(&world).is_some(), "the agent tries again");
    assert_eq!(plan(&world, divided(""), 1).gpu_node, GpuNodeChange::None);
    for phase in ["Applying", "Applied", "Failed"] {
        report(&mut world, &["Applied", phase]);
        for world in [world.clone(), down(world.clone())] {
            let plan = plan(&world, divided(""), 600);
            assert_eq!(
                (plan.stage, plan.gpu_node),
                (Some(stop.clone()), GpuNodeChange::None),
                "{phase}"
            );
        }
    }
    report(&mut world, &["Applied", "Blocked/RolledBack"]);
    for world in [world.clone(), finished(world.clone())] {
        assert_eq!(stage(&world, 600), stop, "the agent gives up");
    }
    report(&mut world, &["Applied", "Applied"]);
    let done = plan(&finished(world.clone()), divided(""), 600);
    assert_eq!(done.stage, Some(RolloutStage::Done));
    let mended = written(finished(world), &done);
    assert_eq!(mended.gpu_node.as_ref().unwrap().spec.step, None);
    assert_eq!(plan(&mended, divided(""), 600).gpu_node, GpuNodeChange::None);
}

#[test]
fn gpu_that_fails_without_an_approval_stops_nothing() {
    for world in [world(&["Failed"]), finished(approved(world(&["Failed"]), 0))] {
        let plan = plan(&world, divided(""), 1);
        assert_eq!(
            (plan.stage, plan.gpu_node),
            (Some(RolloutStage::Done), GpuNodeChange::None)
        );
        assert_eq!(
            plan.outcomes["p"],
            PolicyOutcome::failed(Reason::MigFailed, "GPU 0: is Failed")
        );
    }
}

#[test]
fn change_that_takes_too_long_stops_the_rollout() {
    let slow = approved(world(&["Applying", "AwaitingApproval", "Applied"]), 0);
    assert_eq!(stage(&slow, 4), RolloutStage::Stepping);
    let message = "not in force after 5m: MIG: GPU 0 Applying, GPU 1 AwaitingApproval";
    let late = plan(&slow, divided(""), 5);
    assert_eq!(
        (late.stage, &late.outcomes["p"]),
        (
            Some(RolloutStage::Stopped(format!("ProgressDeadlineExceeded: {message}"))),
            &PolicyOutcome::failed(Reason::ProgressDeadlineExceeded, message)
        )
    );
    // The time counts from when the node was back.
    assert_eq!(stage(&back(slow, 3), 7), RolloutStage::Stepping);
}

#[test]
fn agent_that_breaks_during_a_change_stops_the_rollout() {
    let mut broken = approved(world(&["Applied"]), 0);
    let status = broken.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions[0].status = "False".to_owned();
    status.conditions[0].reason = "MigInstancesUnequal".to_owned();
    let stop = RolloutStage::Stopped("MigInstancesUnequal: as the agent says".to_owned());
    assert_eq!(stage(&broken, 1), stop);
}

#[test]
fn node_that_has_to_reboot_keeps_its_place_without_a_deadline() {
    let waits = approved(world(&["RebootRequired"]), 0);
    let outcome = PolicyOutcome::failed(Reason::MigRebootRequired, "GPU 0: is RebootRequired");
    assert_eq!(plan(&waits, divided(""), 600).outcomes["p"], outcome);
    for world in [waits.clone(), down(waits.clone())] {
        let plan = plan(&world, divided(""), 600);
        assert_eq!(
            (plan.stage, plan.gpu_node),
            (Some(RolloutStage::Stepping), GpuNodeChange::None)
        );
    }
    let mut rebooted = back(waits, 600);
    report(&mut rebooted, &["Applying"]);
    assert_eq!(stage(&rebooted, 604), RolloutStage::Stepping);
    let never_approved = world(&["RebootRequired"]);
    assert_eq!(plan(&never_approved, divided(""), 1).outcomes["p"], outcome);
    assert_eq!(stage(&never_approved, 1), RolloutStage::Done);
}

#[test]
fn node_that_must_not_change_gets_no_approval_and_loses_its_own() {
    let held = |label: &'static str, value: &'static str| {
        move |mut world: World| {
            world.set_label(label, Some(value));
            world.gpu_node.as_mut().unwrap().spec.release = true;
            world
        }
    };
    let served = |mut world: World| {
        world.gpu_node.as_mut().unwrap().spec.served_by_dra = true;
        world
    };
    let released = held("gpunode.dev/release", "true");
    let paused = held("nvidia.com/gpu.deploy.device-plugin", "paused-for-mig-change");
    let all: [&dyn Fn(World) -> World; 4] = [&released, &paused, &served, &down];
    for (index, hold) in all.into_iter().enumerate() {
        for phase in ["AwaitingApproval", "Applying"] {
            let none = plan(&hold(world(&[phase])), divided(""), 1);
            assert_eq!(
                (none.stage, none.gpu_node),
                (Some(RolloutStage::Outside), GpuNodeChange::None),
                "{index} {phase}"
            );
            let world = hold(approved(world(&[phase]), 0));
            let lost = plan(&world, divided(""), 600);
            assert_eq!(lost.stage, Some(RolloutStage::Outside), "{index} {phase}");
            assert!(withdrawn(world, &lost), "{index} {phase}");
        }
    }
    for hold in [&released as &dyn Fn(World) -> World, &served] {
        let world = hold(approved(world(&["AwaitingApproval"]), 0));
        let lost = plan(&world, divided(""), 1);
        assert!(withdrawn(world, &lost), "at once");
    }
}

#[test]
fn node_that_goes_down_keeps_its_approval_and_its_place_until_the_deadline() {
    let world = down(approved(world(&["Applying"]), 0));
    let early = plan(&world, divided(""), 4);
    assert_eq!(
        (early.stage, early.gpu_node, early.recheck),
        (
            Some(RolloutStage::Stepping),
            GpuNodeChange::None,
            Some(now() + SignedDuration::from_mins(5))
        )
    );
    let late = plan(&world, divided(""), 5);
    assert_eq!(late.stage, Some(RolloutStage::Outside));
    assert!(withdrawn(world, &late));
}

#[test]
fn paused_policy_takes_its_approvals_back_and_grants_none() {
    let labelled = |mode: &str| divided(&format!(", labels: {{x: '1'}}{mode}"));
    let mut world = world(&["AwaitingApproval"]);
    world.converge(&[labelled("")]);
    let paused = [labelled(", mode: Paused")];
    let none = plan_at(RolloutPermit::Granted, &world, &paused, 1);
    assert!(none.hold.is_some() && none.gpu_node == GpuNodeChange::None && none.stage.is_none());
    let world = approved(world, 0);
    let lost = plan_at(RolloutPermit::Withheld, &world, &paused, 1);
    assert!(lost.conditions.is_none() && withdrawn(world.clone(), &lost));
    let after = plan_at(RolloutPermit::Withheld, &written(world, &lost), &paused, 1);
    assert_eq!(after.gpu_node, GpuNodeChange::None);
}

fn ignored(mut world: World) -> World {
    world.set_label("gpunode.dev/ignore", Some(""));
    world
}

#[test]
fn ignored_node_loses_its_approval_and_nothing_else_is_written_there() {
    let none = plan(&ignored(world(&["AwaitingApproval"])), divided(""), 1);
    assert_eq!((none.gpu_node, none.stage), (GpuNodeChange::None, None));

    let free = ignored(approved(world(&["AwaitingApproval"]), 0));
    let lost = plan(&free, divided(""), 1);
    assert!(withdrawn(free.clone(), &lost));
    let after = plan(&written(free, &lost), divided(""), 1);
    assert_eq!((after.gpu_node, after.stage), (GpuNodeChange::None, None));
}

#[test]
fn ignored_node_that_has_begun_its_change_keeps_its_place_without_the_approval() {
    for (phase, minutes, kept) in [("Applying", 4, Some(RolloutStage::Stepping)), ("Applying", 5, None)] {
        let begun = ignored(approved(world(&[phase]), 0));
        let lost = plan(&begun, divided(""), 1);
        assert_eq!(lost.stage, Some(RolloutStage::Stepping), "{phase}");
        assert!(withdrawn(begun.clone(), &lost), "{phase}");
        let after = plan(&written(begun, &lost), divided(""), minutes);
        assert_eq!((after.gpu_node, after.stage), (GpuNodeChange::None, kept), "{phase}");
    }
}

#[test]
fn ignored_node_that_waits_for_its_reboot_keeps_its_approval_and_its_place() {
    let waiting = ignored(approved(world(&["RebootRequired"]), 0));
    for world in [waiting.clone(), down(waiting)] {
        let plan = plan(&world, divided(""), 600);
        assert_eq!(
            (plan.stage, plan.gpu_node),
            (Some(RolloutStage::Stepping), GpuNodeChange::None)
        );
    }
    let mut rebooted = back(ignored(approved(world(&["RebootRequired"]), 0)), 600);
    report(&mut rebooted, &["Waiting"]);
    let kept = plan(&rebooted, divided(""), 601);
    assert_eq!(kept.gpu_node, GpuNodeChange::None, "its instances need the approval");
    let never_approved = plan(&ignored(world(&["RebootRequired"])), divided(""), 1);
    assert_eq!(never_approved.stage, None, "it keeps nobody from changing");
}

#[test]
fn gpu_that_went_back_stops_the_rollout_whatever_became_of_its_approval() {
    let mut back = world(&["Failed/RolledBack"]);
    let stopped = RolloutStage::Stopped("MigFailed: GPU 0: is Failed".to_owned());
    assert_eq!(stage(&back, 600), stopped);
    assert_eq!(stage(&ignored(back.clone()), 600), stopped);
    // With another configuration it is tried again, and the report from before is none about it.
    let next = plan_at(RolloutPermit::Granted, &back, &[new()], 601);
    let stage_of_next = plan_at(RolloutPermit::Withheld, &written(back.clone(), &next), &[new()], 601).stage;
    assert_eq!(stage_of_next, Some(RolloutStage::Stepping));
    report(&mut back, &["Failed/DriverError"]);
    assert_eq!(stage(&back, 600), RolloutStage::Done, "a boot may have brought it");
}

#[test]
fn change_that_failed_on_an_ignored_node_stops_the_rollout_after_its_approval_went() {
    let failed = ignored(approved(world(&["Failed"]), 0));
    let lost = plan(&failed, divided(""), 1);
    assert!(matches!(&lost.stage, Some(RolloutStage::Stopped(_))), "{lost:?}");
    assert!(withdrawn(failed.clone(), &lost));
    let after = plan(&written(failed, &lost), divided(""), 600);
    assert_eq!((after.gpu_node, after.stage), (GpuNodeChange::None, lost.stage));
}

#[test]
fn another_configuration_voids_the_approval_in_its_own_write() {
    let changing = approved(world(&["Applying"]), 0);
    let next = plan_at(RolloutPermit::Withheld, &changing, &[new()], 1);
    assert_eq!(next.stage, Some(RolloutStage::Stepping), "it goes on in its place");
    assert!(
        matches!(&next.gpu_node, GpuNodeChange::Configure { step: Some(_), .. }),
        "{next:?}"
    );
    assert_eq!(change(&written(changing, &next)), None);
    let free = finished(approved(world(&["Applied"]), 0));
    let waits = plan_at(RolloutPermit::Withheld, &free, &[new()], 1);
    assert_eq!(
        (waits.stage, waits.gpu_node),
        (Some(RolloutStage::Pending), GpuNodeChange::None)
    );
}

#[test]
fn stale_approval_is_removed() {
    let mut stale = approved(world(&["AwaitingApproval"]), 0);
    stale.gpu_node.as_mut().unwrap().spec.change.as_mut().unwrap().hash = "another".to_owned();
    let cleaned = plan_at(RolloutPermit::Withheld, &stale, &[divided("")], 1);
    assert_eq!(cleaned.stage, Some(RolloutStage::Pending));
    assert!(withdrawn(stale.clone(), &cleaned));
    assert_eq!(
        approval(&plan(&stale, divided(""), 1)),
        Some(60),
        "or replaced at its turn"
    );
}

#[test]
fn change_that_goes_on_without_an_approval_uses_the_budget_for_a_while() {
    let applying = world(&["Applying"]);
    assert_eq!(
        (stage(&applying, 4), stage(&applying, 5)),
        (RolloutStage::Stepping, RolloutStage::Done)
    );
    assert_eq!(
        stage(&back(applying, 600), 604),
        RolloutStage::Stepping,
        "after a reboot"
    );
}

#[test]
fn kubelet_that_follows_later_keeps_the_place_of_the_node() {
    let mut lagging = finished(approved(world(&["Applied"]), 0));
    let resource = json!({"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true});
    let status = lagging.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.resources = vec![serde_json::from_value(resource).unwrap()];
    assert_eq!(stage(&lagging, 4), RolloutStage::Stepping);
    lagging.node["status"]["allocatable"] = json!({"nvidia.com/gpu": "8"});
    assert_eq!(stage(&lagging, 4), RolloutStage::Done);
}

#[test]
fn preview_names_the_layouts_that_gpus_would_get() {
    let mut world = governed(
        &policy("p", "{nodeSelector: {}, devicePlugin: {}}"),
        None,
        &divided(""),
        true,
    );
    let gpu = |index: u32, mode: &str| {
        serde_json::from_value(
            json!({"index": index, "uuid": format!("GPU-{index}"), "memoryMiB": 1, "migMode": mode,
            "product": "NVIDIA-A100-SXM4-40GB", "pciDeviceId": "0x20B010DE"}),
        )
        .unwrap()
    };
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.gpus = vec![gpu(0, "Disabled"), gpu(1, "Disabled"), gpu(2, "Enabled")];
    let layout = "[{devices: {deviceIds: ['0x20B010DE'], indices: [0, 1]}, preset: all-balanced}, {instances: {}}]";
    let previewing = policy(
        "q",
        &format!(
            "{{mode: Preview, priority: 9, nodeSelector: {{}}, devicePlugin: {{mig: {{strategy: Mixed, layout: {layout}}}}}}}"
        ),
    );
    let layouts = world.plan(&[previewing]).previews["q"].layouts.clone();
    let expected = LayoutPreview {
        gpus: vec![0, 1],
        now: "off".to_owned(),
        then: Some("1g.5gb:2,2g.10gb:1,3g.20gb:1".to_owned()),
        message: None,
    };
    assert_eq!(layouts, [expected]);
}

#[test]
fn preview_approves_nothing() {
    let (world, policies) = (world(&["AwaitingApproval"]), PolicySet::new(&[divided("")]));
    let (facts, gpu_facts) = (world.facts(), world.gpu_facts());
    let context = NodeContext::new(&facts, gpu_facts.as_ref(), now());
    let plan = plan_node_with_permit(RolloutPermit::Simulated, &policies, context);
    assert_eq!(plan.gpu_node, GpuNodeChange::None);
}

#[test]
fn obstacles_that_may_pass_wait_with_their_message_and_others_fail() {
    let waiting = |world: &World| -> Vec<(String, Option<String>)> {
        let plan = plan(world, divided(""), 1);
        let waiting = plan.waiting.into_iter();
        waiting.map(|it| (it.device, it.message)).collect()
    };
    for reason in ["InUse", "MpsDaemon", "Unhealthy", "OfANewerAgent"] {
        let world = world(&["Applied", &format!("Blocked/{reason}")]);
        assert_eq!(
            plan(&world, divided(""), 1).outcomes["p"],
            PolicyOutcome::Ready,
            "{reason}"
        );
        let expected = ("GPU-1".to_owned(), Some("is Blocked".to_owned()));
        assert_eq!(waiting(&world), [expected], "{reason}");
        assert_eq!(waiting(&down(world)), [], "{reason}");
    }
    for (reason, told) in [
        ("DoesNotFit", Reason::MigBlocked),
        ("ModePending", Reason::MigBlocked),
        ("RolledBack", Reason::MigFailed),
        ("DriverError", Reason::MigFailed),
    ] {
        let phase = format!("Blocked/{reason}");
        let world = world(&[&phase, &phase]);
        let message = "GPU 0: is Blocked; so with 1 more GPU";
        let plan = plan(&world, divided(""), 1);
        assert_eq!(plan.outcomes["p"], PolicyOutcome::failed(told, message), "{reason}");
        let stage = if reason == "RolledBack" {
            RolloutStage::Stopped(format!("MigFailed: {message}"))
        } else {
            // It serves its pods.
            RolloutStage::Done
        };
        assert_eq!(plan.stage, Some(stage), "{reason}");
        assert_eq!(waiting(&world), [], "{reason}");
    }
}

#[test]
fn node_beside_mig_manager_keeps_its_configuration_and_says_why() {
    let managed = |world: World, state: &str, deploy: Option<&str>| {
        let mut world = world;
        world.set_label("nvidia.com/mig.config", Some("all-disabled"));
        world.set_label("nvidia.com/mig.config.state", Some(state));
        world.set_label("nvidia.com/gpu.deploy.mig-manager", deploy);
        world
    };
    let before = governed(&new(), None, &new(), true);
    for (state, deploy, is_there) in [
        ("success", None, true),
        ("failed", Some("true"), true),
        ("pending", Some("paused-for-driver-upgrade"), true),
        ("success", Some("false"), false),
        ("", Some("true"), false),
    ] {
        let world = managed(before.clone(), state, deploy);
        let plan = plan(&world, divided(""), 1);
        let case = format!("{state} {deploy:?}");
        if !is_there {
            assert!(plan.gpu_node.gives_configuration(), "{case}");
            continue;
        }
        assert_eq!(plan.gpu_node, GpuNodeChange::None, "{case}");
        assert_eq!(plan.stage, Some(RolloutStage::AwaitsAgent), "{case}");
        let PolicyOutcome::Failed { reason, message } = &plan.outcomes["p"] else {
            panic!("{case}: {plan:?}")
        };
        assert_eq!(*reason, Reason::MigManager, "{case}");
        assert!(message.contains("nvidia.com/gpu.deploy.mig-manager=false"), "{message}");
        assert!(governed_by_others(&world), "a policy without a layout is not concerned");
    }
    // Nothing is placed on a node that has no configuration.
    let mut fresh = managed(World::sample(), "success", None);
    let plan = fresh.converge(&[divided("")]);
    assert_eq!(
        (plan.gpu_node, fresh.label("gpunode.dev/policy.p")),
        (GpuNodeChange::None, None)
    );
}

fn governed_by_others(world: &World) -> bool {
    let other = policy("p", "{nodeSelector: {}, devicePlugin: {mig: {strategy: Mixed}}}");
    plan(world, other, 1).gpu_node.gives_configuration()
}

#[test]
fn approval_goes_when_mig_manager_comes() {
    for phase in ["AwaitingApproval", "Applying"] {
        let mut world = approved(world(&[phase]), 0);
        world.set_label("nvidia.com/mig.config.state", Some("pending"));
        let lost = plan(&world, divided(""), 1);
        assert!(withdrawn(world.clone(), &lost), "{phase}");
        let after = plan(&written(world, &lost), divided(""), 1);
        assert_eq!(after.gpu_node, GpuNodeChange::None, "{phase}");
        assert!(matches!(
            after.outcomes["p"],
            PolicyOutcome::Failed {
                reason: Reason::MigManager,
                ..
            }
        ));
    }
}

#[test]
fn phases_of_a_newer_agent_are_nobodys_business() {
    let mut world = world(&["Applied"]);
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.gpus[0].mig = Some(MigStatus {
        phase: MigPhase::Unknown,
        ..MigStatus::default()
    });
    assert_eq!(plan(&world, divided(""), 1).outcomes["p"], PolicyOutcome::Ready);
}
