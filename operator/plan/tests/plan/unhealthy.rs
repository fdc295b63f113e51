//! The taint of nodes with too few healthy GPUs.

use crate::world::{World, now, policy};
use gpunode_crds::{
    DeviceHealth, FaultGrade, GpuDevice, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus, HealthState,
};
use gpunode_plan::PolicySet;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn watching(taint: &str) -> GpuNodePolicy {
    policy("p", &format!("{{nodeSelector: {{}}, unhealthyTaint: {taint}}}"))
}

/// Returns a node with GPUs that are healthy (`None`), or unhealthy or missing for a number of seconds.
fn with_gpus(gpus: &[Option<i64>]) -> World {
    let gpu = |(index, since): (usize, &Option<i64>)| {
        let since = since.map(|seconds| Time(now() - SignedDuration::from_secs(seconds)));
        let is_missing = index % 2 == 1;
        let state = if since.is_some() {
            HealthState::Unhealthy
        } else {
            HealthState::Healthy
        };
        GpuDevice {
            uuid: format!("GPU-{index}"),
            missing_since: since.clone().filter(|_| is_missing),
            health: (!is_missing).then(|| DeviceHealth {
                state,
                since,
                ..DeviceHealth::default()
            }),
            ..GpuDevice::default()
        }
    };
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(GpuNodeStatus {
        gpus: gpus.iter().enumerate().map(gpu).collect(),
        ..GpuNodeStatus::default()
    });
    World {
        gpu_node: Some(gpu_node),
        ..World::sample()
    }
}

fn effects(world: &World) -> Vec<&str> {
    let taints = world.node["spec"]["taints"].as_array().into_iter().flatten();
    taints
        .filter(|it| it["key"] == "gpunode.dev/unhealthy")
        .filter_map(|it| it["effect"].as_str())
        .collect()
}

#[test]
fn preview_names_the_taint_of_an_unhealthy_node() {
    let world = with_gpus(&[Some(30), Some(999)]);
    let preview = policy("p", "{mode: Preview, nodeSelector: {}, unhealthyTaint: {}}");
    let plan = world.plan(&[preview]);
    let keys: Vec<_> = plan.previews["p"].set_taints.iter().map(|taint| &taint.key).collect();
    assert_eq!(keys, ["gpunode.dev/unhealthy"]);
}

#[test]
fn node_is_tainted_once_too_few_of_its_gpus_have_been_healthy_for_the_delay() {
    for (taint, gpus, expected) in [
        ("{}", &[None, Some(999)][..], Ok(false)),
        ("{}", &[Some(30), Some(999)], Ok(true)),
        ("{}", &[Some(29), Some(999)], Err(1)),
        ("{after: 0s}", &[Some(0), Some(999)], Ok(true)),
        ("{after: 5m, minHealthy: 2}", &[None, Some(999), None], Ok(false)),
        ("{after: 5m, minHealthy: 2}", &[Some(200), Some(999), None], Err(100)),
        ("{after: 5m, minHealthy: 2}", &[Some(300), Some(999), None], Ok(true)),
        // The second fault made them too few, whatever fails later.
        (
            "{after: 5m, minHealthy: 2}",
            &[Some(300), Some(10), Some(999)],
            Ok(true),
        ),
        ("{minHealthy: 4}", &[None, None], Ok(true)),
        // A clock that is an hour ahead.
        ("{}", &[Some(-3600)], Ok(true)),
        ("{}", &[Some(-10)], Err(40)),
        ("{}", &[], Ok(false)),
    ] {
        let mut world = with_gpus(gpus);
        let plan = world.converge(&[watching(taint)]);
        assert_eq!(effects(&world).is_empty(), expected != Ok(true), "{taint} {gpus:?}");
        let recheck = expected.err().map(|seconds| now() + SignedDuration::from_secs(seconds));
        assert_eq!(plan.recheck, recheck, "{taint} {gpus:?}");
        assert_eq!(world.plan(&[watching(taint)]).patch, None);
    }
}

/// Returns a node whose GPU has had faults of some grade for a minute, and is broken for a number of seconds.
fn with_grade(grade: FaultGrade, broken: Option<i64>) -> World {
    let mut world = with_gpus(&[Some(60)]);
    let status = world.gpu_node.as_mut().and_then(|gpu_node| gpu_node.status.as_mut());
    let health = status.and_then(|status| status.gpus[0].health.as_mut()).unwrap();
    health.grade = Some(grade);
    health.broken_since = broken.map(|seconds| Time(now() - SignedDuration::from_secs(seconds)));
    if grade == FaultGrade::Degraded {
        health.state = HealthState::Healthy;
    }
    world
}

#[test]
fn taint_that_evicts_pods_counts_broken_gpus_alone_and_a_degraded_one_is_healthy() {
    for (grade, broken, expected) in [
        (FaultGrade::Degraded, None, [false, false]),
        (FaultGrade::NoNewWork, None, [true, false]),
        (FaultGrade::Broken, Some(10), [true, false]),
        (FaultGrade::Broken, Some(30), [true, true]),
    ] {
        for (effect, is_tainted) in ["NoSchedule", "NoExecute"].into_iter().zip(expected) {
            let mut world = with_grade(grade, broken);
            world.converge(&[watching(&format!("{{effect: {effect}}}"))]);
            assert_eq!(!effects(&world).is_empty(), is_tainted, "{effect} {grade:?} {broken:?}");
        }
    }
}

#[test]
fn hang_of_one_gpu_evicts_no_pod_of_the_gpus_that_wait_behind_it() {
    // As the agent reports them: the first GPU hangs, calls for the others wait, and none is missing.
    let mut world = with_gpus(&[Some(60), None, None, None]);
    let status = world.gpu_node.as_mut().and_then(|gpu_node| gpu_node.status.as_mut());
    for (index, gpu) in status.unwrap().gpus.iter_mut().enumerate() {
        let since = Some(Time(now() - SignedDuration::from_secs(60)));
        gpu.health = Some(DeviceHealth {
            state: HealthState::Unhealthy,
            grade: Some(if index == 0 {
                FaultGrade::Broken
            } else {
                FaultGrade::NoNewWork
            }),
            broken_since: since.clone().filter(|_| index == 0),
            since,
            ..DeviceHealth::default()
        });
    }
    for (taint, expected) in [
        ("{effect: NoExecute, minHealthy: 3}", vec![]),
        ("{effect: NoExecute, minHealthy: 4}", vec!["NoExecute"]),
        ("{effect: NoSchedule}", vec!["NoSchedule"]),
    ] {
        let mut world = world.clone();
        world.converge(&[watching(taint)]);
        assert_eq!(effects(&world), expected, "{taint}");
    }
}

#[test]
fn taint_goes_on_recovery_and_with_the_policy() {
    let policies = [watching("{effect: NoExecute}")];
    let mut world = with_gpus(&[Some(60)]);
    let before = world.node["spec"].clone();
    world.converge(&policies);
    assert_eq!(effects(&world), ["NoExecute"]);
    let tainted = world.clone();
    world.gpu_node = with_gpus(&[None]).gpu_node;
    world.converge(&policies);
    assert_eq!(world.node["spec"], before);
    let mut world = tainted;
    world.converge(&[]);
    assert_eq!(world.node["spec"], before);
}

#[test]
fn taint_goes_on_recovery_while_another_policy_cannot_be_read() {
    let newer = policy("newer", "{nodeSelector: {}, labels: {x: y}}");
    let mut world = with_gpus(&[Some(60)]);
    world.converge(&[watching("{}"), newer]);
    let set = PolicySet::new(&[watching("{}")]).with_unreadable(["newer".to_owned()]);
    world.converge_with(&set);
    assert_eq!(effects(&world), ["NoSchedule"]);
    world.gpu_node = with_gpus(&[None]).gpu_node;
    world.converge_with(&set);
    assert_eq!((effects(&world), world.label("x")), (vec![], Some("y")));
}

#[test]
fn taint_stays_as_it_is_while_nothing_is_known_of_gpus() {
    let policies = [watching("{}")];
    let mut tainted = with_gpus(&[Some(60)]);
    tainted.converge(&policies);
    for is_tainted in [true, false] {
        let node = if is_tainted {
            tainted.node.clone()
        } else {
            World::sample().node
        };
        let released = || {
            let gpu_node = with_gpus(&[if is_tainted { None } else { Some(60) }]).gpu_node;
            let mut world = World {
                node: node.clone(),
                gpu_node,
                ..tainted.clone()
            };
            world.set_label("gpunode.dev/release", Some("true"));
            world
        };
        let forgotten = World {
            node: node.clone(),
            gpu_node: with_gpus(&[]).gpu_node,
            ..tainted.clone()
        };
        let gone = World {
            node: node.clone(),
            gpu_node: None,
            ..tainted.clone()
        };
        for mut world in [released(), forgotten, gone] {
            world.converge(&policies);
            assert_eq!(effects(&world).is_empty(), !is_tainted);
        }
    }
}

#[test]
fn key_is_gpunodes_alone() {
    let mut world = with_gpus(&[None]);
    world.node["spec"]["taints"]
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "gpunode.dev/unhealthy", "effect": "NoExecute"}));
    world.converge(&[]);
    assert_eq!(effects(&world), Vec::<&str>::new());
}

#[test]
fn taint_of_a_paused_node_goes_when_enough_gpus_are_healthy_and_comes_only_with_the_policy() {
    let spec = |mode: &str| {
        policy(
            "p",
            &format!("{{mode: {mode}, nodeSelector: {{}}, labels: {{a: b}}, unhealthyTaint: {{}}}}"),
        )
    };
    let (broken, whole) = (with_gpus(&[Some(99)]).gpu_node, with_gpus(&[None]).gpu_node);
    let mut world = with_gpus(&[Some(99)]);
    world.converge(&[spec("Enforce")]);
    assert_eq!(effects(&world), ["NoSchedule"]);
    world.converge(&[spec("Paused")]);
    assert_eq!(effects(&world), ["NoSchedule"]);
    world.gpu_node = whole;
    world.converge(&[spec("Paused")]);
    assert_eq!((effects(&world), world.label("a")), (vec![], Some("b")));
    world.gpu_node = broken;
    world.converge(&[spec("Paused")]);
    assert_eq!(effects(&world), Vec::<&str>::new(), "a paused node gets nothing new");
}

#[test]
fn taint_of_a_paused_node_whose_rule_is_gone_goes_when_every_gpu_is_healthy() {
    let spec = |rest: &str| policy("p", &format!("{{nodeSelector: {{}}, labels: {{a: b}}, {rest}}}"));
    let newer = policy("newer", "{nodeSelector: {}, labels: {x: y}}");
    let mut world = with_gpus(&[None, Some(99)]);
    world.converge(&[spec("unhealthyTaint: {minHealthy: 2}"), newer]);
    let paused = || PolicySet::new(&[spec("mode: Paused")]);
    world.converge_with(&paused());
    assert_eq!(effects(&world), ["NoSchedule"]);
    world.gpu_node = with_gpus(&[None, None]).gpu_node;
    world.converge_with(&paused().with_unreadable(["newer".to_owned()]));
    assert_eq!(effects(&world), ["NoSchedule"], "nobody knows the rules of that policy");
    world.converge_with(&paused());
    assert_eq!((effects(&world), world.label("a")), (vec![], Some("b")));
}
