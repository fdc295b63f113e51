//! Requests to the agents of a node: release the GPUs, clear recovered faults, leave the GPUs to a DRA driver.

use crate::{
    governed,
    world::{World, policy},
};
use gpunode_crds::{GpuNode, GpuNodePolicy, GpuNodeSpec, Reason, SERVED_BY_DRA};
use gpunode_plan::{
    GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, RolloutPermit, RolloutStage, plan_node_with_permit,
};
use serde_json::json;

fn governing() -> GpuNodePolicy {
    policy("p", "{nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}")
}

/// Returns a node with the `GpuNode` that its agent created.
fn reported() -> World {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.metadata.resource_version = Some("7".to_owned());
    World {
        gpu_node: Some(gpu_node),
        ..World::sample()
    }
}

/// Writes the requests to the `GpuNode`. Returns true if there was a write.
fn ask(world: &mut World, policies: &[GpuNodePolicy]) -> bool {
    match world.plan(policies).gpu_node {
        GpuNodeChange::Requests {
            release,
            served_by_dra,
            recovered,
            ..
        } => {
            let spec = &mut world.gpu_node.as_mut().unwrap().spec;
            (spec.release, spec.served_by_dra) = (release, served_by_dra);
            // Reads the object as the API server would return it.
            spec.recovered = serde_json::from_value(json!(recovered)).unwrap();
            true
        }
        _ => false,
    }
}

fn spec(world: &World) -> (bool, Option<String>) {
    let spec = &world.gpu_node.as_ref().unwrap().spec;
    (spec.release, spec.recovered.as_ref().map(|time| time.0.to_string()))
}

#[test]
fn agents_get_the_request_for_release_once_while_a_label_asks_for_it() {
    for (key, value, lets_go) in [
        ("gpunode.dev/release", "true", true),
        ("gpunode.dev/release", "false", false),
        ("nvidia.com/gpu.deploy.device-plugin", "paused-for-driver-upgrade", true),
        (
            "nvidia.com/gpu.deploy.device-plugin",
            "true,paused-for-mig-change",
            true,
        ),
        ("nvidia.com/gpu.deploy.device-plugin", "false", false),
    ] {
        let mut world = reported();
        world.set_label(key, Some(value));
        assert_eq!(
            (ask(&mut world, &[]), spec(&world).0),
            (lets_go, lets_go),
            "{key}={value}"
        );
        assert!(!ask(&mut world, &[]), "{key}={value}");
        world.set_label(key, None);
        assert_eq!(
            (ask(&mut world, &[]), spec(&world).0),
            (lets_go, false),
            "{key}={value}"
        );
    }
}

#[test]
fn release_waits_for_no_turn_and_for_no_paused_policy_but_an_ignored_node_is_left_alone() {
    let mut world = reported();
    world.set_label("gpunode.dev/release", Some("true"));
    let is_asked = |world: &World, policies: &[GpuNodePolicy]| {
        let set = PolicySet::new(policies);
        let plan = plan_node_with_permit(
            RolloutPermit::Withheld,
            &set,
            NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), world.now),
        );
        matches!(plan.gpu_node, GpuNodeChange::Requests { release: true, .. })
    };
    assert!(is_asked(&world, &[governing()]));
    world.converge(&[governing()]);
    assert!(is_asked(
        &world,
        &[policy(
            "p",
            "{mode: Paused, nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}"
        )]
    ));
    world.set_label("gpunode.dev/ignore", Some(""));
    assert!(!is_asked(&world, &[governing()]));
}

#[test]
fn agent_that_is_to_start_on_a_released_node_never_uses_its_driver() {
    let mut world = World::sample();
    world.set_label("gpunode.dev/release", Some("true"));
    world.node["metadata"]["annotations"] = json!({"gpunode.dev/recovered": "2026-01-01T10:00:00Z"});
    let GpuNodeChange::Create(gpu_node) = world.plan(&[governing()]).gpu_node else {
        panic!()
    };
    assert!(gpu_node.spec.release && gpu_node.spec.config.is_some());
    world.gpu_node = Some(*gpu_node);
    assert!(!ask(&mut world, &[governing()]), "all is said");
}

#[test]
fn released_node_is_outside_of_a_rollout_and_says_why() {
    let mut world = reported();
    world.converge(&[governing()]);
    let GpuNodeChange::Configure { config, .. } = world.plan(&[governing()]).gpu_node else {
        panic!()
    };
    world.gpu_node.as_mut().unwrap().spec.config = config;
    world.set_label("gpunode.dev/release", Some("true"));
    assert!(ask(&mut world, &[governing()]));
    let plan = world.plan(&[governing()]);
    assert_eq!(
        (plan.stage, plan.gpu_node),
        (Some(RolloutStage::Outside), GpuNodeChange::None)
    );
    assert!(
        matches!(
            plan.outcomes["p"],
            PolicyOutcome::Failed {
                reason: Reason::Released,
                ..
            }
        ),
        "{:?}",
        plan.outcomes
    );
}

#[test]
fn recovery_is_passed_on_and_an_unreadable_one_changes_nothing_and_is_reported() {
    let mut world = reported();
    let set = |world: &mut World, value: &str| {
        world.node["metadata"]["annotations"] = json!({"gpunode.dev/recovered": value});
    };
    set(&mut world, "2026-01-01T10:00:00.75+01:00");
    assert!(ask(&mut world, &[]));
    assert_eq!(
        spec(&world).1.as_deref(),
        Some("2026-01-01T09:00:01Z"),
        "the end of that second"
    );
    assert!(!ask(&mut world, &[]));
    for unreadable in ["-000001-01-01T00:00:00Z", "9999-12-30T22:00:00Z", "yesterday"] {
        set(&mut world, unreadable);
        assert!(!ask(&mut world, &[]), "{unreadable}");
    }
    let conditions = world.plan(&[]).conditions.expect("it is said").conditions;
    let [condition] = conditions.as_slice() else {
        panic!("{conditions:?}")
    };
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("RecoveredAnnotation", "False")
    );
    assert!(condition.message.contains("\"yesterday\""), "{}", condition.message);
    let equals = ["a", "b"].map(|name| policy(name, &format!("{{nodeSelector: {{}}, labels: {{x: {name}}}}}")));
    let conditions = world.plan(&equals).conditions.expect("it is said").conditions;
    let types: Vec<&str> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(
        types,
        ["Conflict", "RecoveredAnnotation"],
        "also where policies disagree"
    );
    world.node["metadata"]["annotations"] = json!({"team": "t"});
    assert!(ask(&mut world, &[]));
    assert_eq!(spec(&world).1, None);
}

#[test]
fn agent_that_does_not_come_back_after_the_release_is_waited_for_no_longer_than_the_deadline() {
    let mut world = governed::world(&governed::old(), None, &governed::old(), false);
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions[0].reason = Reason::Released.as_str().to_owned();
    let outcome = |minutes| governed::plan(&world, governed::old(), minutes).outcomes["p"].clone();
    assert_eq!(outcome(4), PolicyOutcome::Updating);
    assert_eq!(outcome(5), PolicyOutcome::failed(Reason::Released, "as the agent says"));
}

/// Plans the sample node while this is known about a DRA driver of its GPUs.
fn plan_beside(world: &World, policies: &[GpuNodePolicy], served_by_dra: Option<bool>) -> NodePlan {
    let (set, facts) = (PolicySet::new(policies), world.facts());
    let gpu_node = world.gpu_facts();
    let context = NodeContext::new(&facts, gpu_node.as_ref(), world.now).served_by_dra(served_by_dra);
    plan_node_with_permit(RolloutPermit::Granted, &set, context)
}

#[test]
fn agents_leave_the_gpus_to_a_dra_driver_while_it_serves_them() {
    let mut world = reported();
    for (known, before, told) in [
        (None, false, None),
        (None, true, None),
        (Some(true), false, Some(true)),
        (Some(true), true, None),
        (Some(false), true, Some(false)),
        (Some(false), false, None),
    ] {
        world.gpu_node.as_mut().unwrap().spec.served_by_dra = before;
        let written = match plan_beside(&world, &[], known).gpu_node {
            GpuNodeChange::Requests { served_by_dra, .. } => Some(served_by_dra),
            _ => None,
        };
        assert_eq!(written, told, "known {known:?}, {before} before");
    }
}

#[test]
fn agent_that_is_to_start_beside_a_dra_driver_registers_nothing() {
    let plan = plan_beside(&World::sample(), &[governing()], Some(true));
    let GpuNodeChange::Create(gpu_node) = plan.gpu_node else {
        panic!("{:?}", plan.gpu_node)
    };
    assert!(gpu_node.spec.served_by_dra && gpu_node.spec.config.is_some());
}

#[test]
fn node_of_a_dra_driver_fails_with_the_reason_and_stops_no_rollout() {
    for (step, minutes, stage) in [
        (None, 0, RolloutStage::Outside),
        (Some(governed::step()), 1, RolloutStage::Stepping),
        (Some(governed::step()), 9, RolloutStage::Outside),
    ] {
        let mut world = governed::world(&governed::old(), step, &governed::old(), true);
        world.gpu_node.as_mut().unwrap().spec.served_by_dra = true;
        let plan = governed::plan(&world, governed::old(), minutes);
        assert_eq!(
            plan.outcomes["p"],
            PolicyOutcome::failed(Reason::ServedByAnother, SERVED_BY_DRA),
            "an older agent says that it serves the node"
        );
        assert_eq!(plan.stage, Some(stage), "after {minutes} minutes");
    }
}
