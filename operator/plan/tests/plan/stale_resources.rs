//! Keys of resources leave a node's status after the plugin that served them.

use crate::world::{World, policy};
use gpunode_crds::{Agent, AgentMode, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus, ResourceStatus};
use serde_json::{Value, json};

const GPU: &str = "nvidia.com/gpu";

fn whole() -> GpuNodePolicy {
    policy("p", "{nodeSelector: {}, devicePlugin: {}}")
}

fn resources(world: &World) -> Value {
    world.record().map_or(Value::Null, |record| {
        serde_json::from_str::<Value>(record).unwrap()["resources"].clone()
    })
}

fn status(world: &mut World, capacity: &str, allocatable: &str) {
    world.node["status"]["capacity"] = json!({"cpu": "8", GPU: capacity});
    world.node["status"]["allocatable"] = json!({"cpu": "8", GPU: allocatable});
}

#[test]
fn record_names_a_resource_before_the_agent_can_register_it() {
    let mut world = World::sample();
    world.converge(&[policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {resources: [{name: a.b/c, sharing: {strategy: Mps, replicas: 2, renameByDefault: true}}]}}",
    )]);
    assert_eq!(resources(&world), json!({"a.b/c.shared": null}));
}

/// Plans once a second, as events about a node would, and returns the seconds at which keys were removed.
fn removals(world: &mut World, seconds: i64, kubelet: impl Fn(&mut World)) -> Vec<i64> {
    let mut removals = Vec::new();
    for second in 1..=seconds {
        world.wait(1);
        removals.extend(world.converge(&[]).status_patch.map(|_| second));
        kubelet(world);
    }
    removals
}

#[test]
fn key_goes_with_the_record_when_the_kubelet_lets_it() {
    let mut world = World::sample();
    let before = world.snapshot()["metadata"].clone();
    world.converge(&[whole()]);
    status(&mut world, "8", "8");
    world.converge(&[]);
    assert!(removals(&mut world, 20, |world| status(world, "8", "0")).is_empty());
    assert!(removals(&mut world, 309, |world| status(world, "0", "0")).is_empty());
    assert_eq!(removals(&mut world, 60, |_| {}), [1]);
    assert_eq!(world.node["status"]["capacity"], json!({"cpu": "8"}));
    assert_eq!(world.node["status"]["allocatable"], json!({"cpu": "8"}));
    assert!(world.record().is_some(), "the kubelet may put it back");
    assert!(removals(&mut world, 1, |_| {}).is_empty());
    assert_eq!(world.snapshot()["metadata"], before);
}

#[test]
fn kubelet_that_puts_a_key_back_is_met_once_a_minute_and_five_times_in_all() {
    let mut world = World::sample();
    let before = world.snapshot()["metadata"].clone();
    world.converge(&[whole()]);
    status(&mut world, "8", "8");
    world.converge(&[]);
    assert_eq!(
        removals(&mut world, 2000, |world| status(world, "0", "0")),
        [330, 390, 450, 510, 570]
    );
    assert_eq!(world.snapshot()["metadata"], before);
}

#[test]
fn a_try_is_noted_in_the_very_patch_that_removes_the_key_and_waits_for_other_writes() {
    let mut world = World::sample();
    world.converge(&[whole()]);
    status(&mut world, "0", "0");
    world.converge(&[]);
    world.wait(330);
    let busy = world.plan(&[policy("q", "{nodeSelector: {}, labels: {a: b}}")]);
    assert!(busy.patch.is_some() && busy.status_patch.is_none());
    let plan = world.converge(&[]);
    assert!(plan.patch.is_none() && plan.status_patch.is_some());
    assert_eq!(resources(&world), json!({GPU: [world.now.as_second()]}));
}

#[test]
fn names_of_mig_profiles_are_recorded_before_the_agent_can_register_them() {
    let mut world = World::sample();
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    let gpus = json!([{
        "index": 0, "uuid": "GPU-1", "product": "NVIDIA-A100-SXM4-40GB", "memoryMiB": 40960, "migMode": "Enabled",
        "migDevices": [
            {"uuid": "MIG-1", "profile": "1g.5gb", "gpuInstance": 1, "computeInstance": 0, "memoryMiB": 4864},
            {"uuid": "MIG-2", "profile": "3g.20gb", "gpuInstance": 2, "computeInstance": 0, "memoryMiB": 19968},
        ],
    }]);
    gpu_node.status = Some(GpuNodeStatus {
        gpus: serde_json::from_value(gpus).unwrap(),
        ..GpuNodeStatus::default()
    });
    world.gpu_node = Some(gpu_node);
    let named = |spec: &str| {
        let mut world = world.clone();
        world.converge(&[policy("p", &format!("{{nodeSelector: {{}}, devicePlugin: {spec}}}"))]);
        resources(&world)
    };
    let resources = "resources: [{name: a.b/small, devices: {migProfiles: [1g.5gb]}}]";
    let mixed = json!({GPU: null, "nvidia.com/mig-1g.5gb": null, "nvidia.com/mig-3g.20gb": null});
    assert_eq!(named("{mig: {strategy: Mixed}}"), mixed);
    assert_eq!(
        named(&format!("{{mig: {{strategy: Mixed}}, {resources}}}")),
        json!({"a.b/small": null, "nvidia.com/mig-3g.20gb": null})
    );
    assert_eq!(named("{mig: {strategy: None}}"), json!({GPU: null}));
}

#[test]
fn resource_that_the_agent_still_serves_is_kept_and_one_that_its_configuration_cannot_yield_is_not_recorded() {
    let mut world = World::sample();
    world.converge(&[whole()]);
    status(&mut world, "8", "8");
    let served = policy("q", "{nodeSelector: {}, devicePlugin: {resources: [{name: a.b/c}]}}");
    let mut gpu_node = GpuNode::new(
        "n",
        GpuNodeSpec {
            config: Some(crate::governed::configuration(&served)),
            ..GpuNodeSpec::default()
        },
    );
    let resource = |name: String| ResourceStatus {
        name,
        ..ResourceStatus::default()
    };
    let forged = (0..60).map(|at| resource(format!("forged.example/r{at}")));
    let agent = Agent {
        mode: AgentMode::DevicePlugin,
        ..Agent::default()
    };
    gpu_node.status = Some(GpuNodeStatus {
        agent: Some(agent),
        resources: [resource("a.b/c".to_owned())].into_iter().chain(forged).collect(),
        ..GpuNodeStatus::default()
    });
    world.gpu_node = Some(gpu_node);
    world.converge(&[]);
    let since = resources(&world)[GPU].clone();
    assert!(since.is_i64());
    let names: Vec<String> = resources(&world).as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        (names, &resources(&world)["a.b/c"]),
        (vec!["a.b/c".to_owned(), GPU.to_owned()], &Value::Null)
    );
    // What the record has stays in use while the agent reports it, whatever becomes of its configuration.
    world.gpu_node.as_mut().unwrap().spec.config = None;
    world.converge(&[]);
    assert_eq!(resources(&world)["a.b/c"], Value::Null);
}

#[test]
fn mig_profiles_that_do_not_exist_are_not_recorded() {
    let mut world = World::sample();
    let devices: Vec<Value> = (0..200)
        .map(|at| {
            let profile = if at == 0 { "a b/c".to_owned() } else { format!("1g.{at}gb") };
            json!({"uuid": format!("MIG-{at}"), "profile": profile, "gpuInstance": at, "computeInstance": 0, "memoryMiB": 4864})
        })
        .collect();
    let gpus = json!([{
        "index": 0, "uuid": "GPU-1", "product": "x", "memoryMiB": 40960, "migMode": "Enabled", "migDevices": devices,
    }]);
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(GpuNodeStatus {
        gpus: serde_json::from_value(gpus).unwrap(),
        ..GpuNodeStatus::default()
    });
    world.gpu_node = Some(gpu_node);
    world.converge(&[policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {mig: {strategy: Mixed}}}",
    )]);
    let names: Vec<String> = resources(&world).as_object().unwrap().keys().cloned().collect();
    assert_eq!(names.len(), 33, "32 profiles and the resource of whole GPUs");
    assert!(!names.iter().any(|name| name.contains(' ')));
}

#[test]
fn resource_that_comes_back_is_served_again() {
    let mut world = World::sample();
    world.converge(&[whole()]);
    status(&mut world, "8", "8");
    world.converge(&[]);
    world.wait(200);
    world.converge(&[whole()]);
    assert_eq!(resources(&world), json!({GPU: null}));
    status(&mut world, "0", "0");
    world.wait(9999);
    assert_eq!(world.converge(&[whole()]).status_patch, None);
}

#[test]
fn key_of_a_stale_resource_goes_on_a_paused_node_too() {
    let mut world = World::sample();
    let named = |mode: &str, name: &str| {
        policy(
            "p",
            &format!("{{mode: {mode}, nodeSelector: {{}}, devicePlugin: {{resources: [{{name: {name}}}]}}}}"),
        )
    };
    world.converge(&[named("Enforce", GPU)]);
    status(&mut world, "0", "0");
    world.converge(&[named("Enforce", "a.b/c")]);
    world.wait(329);
    assert!(world.plan(&[named("Paused", "a.b/c")]).is_settled());
    world.wait(1);
    assert!(world.converge(&[named("Paused", "a.b/c")]).status_patch.is_some());
    assert_eq!(world.node["status"]["capacity"], json!({"cpu": "8"}));
    world.wait(60);
    world.converge(&[named("Paused", "a.b/c")]);
    assert_eq!(resources(&world), json!({"a.b/c": null}), "the other stays in use");
}
