//! The startup taint stays from a boot until every promised device is allocatable.

use crate::{
    governed::{configuration, world},
    world::{World, policy},
};
use gpunode_crds::{GpuNodePolicy, ResourceStatus};
use gpunode_plan::{NodeContext, PolicySet, RolloutPermit, plan_node_with_permit};
use serde_json::{Value, json};

fn starting() -> GpuNodePolicy {
    policy("p", "{nodeSelector: {}, startupTaint: {}, devicePlugin: {}}")
}

fn keys(world: &World) -> Vec<&str> {
    let taints = world.node["spec"]["taints"].as_array().into_iter().flatten();
    taints
        .filter_map(|taint| taint["key"].as_str())
        .filter(|key| !["other", "z"].contains(key))
        .collect()
}

fn started(world: &World) -> Option<String> {
    let record: Value = serde_json::from_str(world.record()?).unwrap();
    record["started"].as_str().map(str::to_owned)
}

fn boot(world: &mut World, id: &str, allocatable: &str) {
    world.node["status"]["nodeInfo"] = json!({
        "architecture": "amd64", "bootID": id, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
        "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
    });
    world.node["status"]["allocatable"] = json!({"nvidia.com/gpu": allocatable});
}

/// Returns a node in its first boot whose agent advertises 8 GPUs, of which some are allocatable.
fn reported(allocatable: &str) -> World {
    let mut world = world(&starting(), None, &starting(), true);
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    let offered = ResourceStatus {
        name: "nvidia.com/gpu".to_owned(),
        capacity: 8,
        allocatable: 8,
        ..Default::default()
    };
    status.resources = vec![offered];
    boot(&mut world, "b1", allocatable);
    world
}

fn unreported() -> World {
    let mut world = World::sample();
    boot(&mut world, "b1", "0");
    world.node["metadata"]["creationTimestamp"] = json!(world.now);
    world.node["status"]["conditions"][0]["lastTransitionTime"] = json!(world.now);
    world
}

fn join_with(world: &mut World, taint: Value) {
    world.node["spec"]["taints"].as_array_mut().unwrap().push(taint);
}

#[test]
fn new_node_is_tainted_until_all_that_its_agent_offers_is_allocatable() {
    let mut world = unreported();
    world.converge(&[starting()]);
    assert_eq!((keys(&world), started(&world)), (vec!["gpunode.dev/not-ready"], None));
    let (node, gpu_node) = (world.node.clone(), reported("8").gpu_node);
    for (allocatable, is_tainted) in [("0", true), ("7", true), ("8", false)] {
        let mut world = World {
            node: node.clone(),
            gpu_node: gpu_node.clone(),
            ..world.clone()
        };
        boot(&mut world, "b1", allocatable);
        world.converge(&[starting()]);
        assert_eq!(keys(&world).is_empty(), !is_tainted, "{allocatable}");
        assert_eq!(started(&world).is_some(), !is_tainted, "{allocatable}");
        assert_eq!(world.plan(&[starting()]).patch, None);
    }
}

#[test]
fn nodes_that_work_already_get_no_taint_when_a_policy_comes_to_want_one() {
    let mut world = reported("8");
    world.converge(&[starting()]);
    assert_eq!((keys(&world), started(&world).as_deref()), (vec![], Some("b1")));
}

#[test]
fn each_boot_begins_with_the_taint_and_what_changes_later_does_not() {
    let mut world = reported("8");
    world.converge(&[starting()]);
    boot(&mut world, "b1", "0");
    world.converge(&[starting()]);
    assert_eq!(keys(&world), Vec::<&str>::new(), "the promise was kept in this boot");
    boot(&mut world, "b2", "0");
    world.converge(&[starting()]);
    assert_eq!(
        (keys(&world), started(&world).as_deref()),
        (vec!["gpunode.dev/not-ready"], Some("b1"))
    );
    boot(&mut world, "b2", "8");
    let plan = world.converge(&[starting()]);
    assert_eq!(
        (keys(&world), started(&world).as_deref()),
        (vec![], Some("b2")),
        "{:?}",
        plan.patch
    );
}

#[test]
fn node_that_works_with_its_configuration_needs_no_permit_for_the_end_of_the_startup_taint() {
    let mut world = reported("8");
    let changed = policy(
        "p",
        "{nodeSelector: {}, startupTaint: {}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let set = PolicySet::new([&changed]);
    assert_ne!(configuration(&changed), configuration(&starting()));
    let plan = plan_node_with_permit(
        RolloutPermit::Withheld,
        &set,
        NodeContext::new(&world.facts(), world.gpu_node.as_ref(), world.now),
    );
    json_patch::patch(&mut world.node, &plan.patch.unwrap()).unwrap();
    assert_eq!((keys(&world), started(&world).as_deref()), (vec![], Some("b1")));
}

#[test]
fn each_policy_that_matches_has_its_own_key_and_only_where_a_device_plugin_runs() {
    let autoscaler = "startup-taint.cluster-autoscaler.kubernetes.io/gpu";
    let other = policy(
        "q",
        &format!("{{nodeSelector: {{}}, startupTaint: {{key: {autoscaler}}}}}"),
    );
    let mut world = unreported();
    world.converge(std::slice::from_ref(&other));
    assert_eq!(keys(&world), Vec::<&str>::new());
    world.converge(&[starting(), other.clone()]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready", autoscaler]);
    world.converge(&[starting()]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    world.converge(&[]);
    assert_eq!(keys(&world), Vec::<&str>::new());
}

#[test]
fn taint_that_a_node_joined_with_is_taken_for_ours_and_keeps_its_value() {
    let mut world = unreported();
    join_with(
        &mut world,
        json!({"key": "gpunode.dev/not-ready", "value": "true", "effect": "NoSchedule"}),
    );
    let before = world.node["spec"]["taints"].clone();
    world.converge(&[starting()]);
    assert_eq!(world.node["spec"]["taints"], before);
    world.gpu_node = reported("8").gpu_node;
    boot(&mut world, "b1", "8");
    world.converge(&[starting()]);
    assert_eq!(keys(&world), Vec::<&str>::new());
}

#[test]
fn taint_that_no_matching_policy_wants_goes_with_the_first_report_or_two_minutes_after_the_node_became_ready() {
    let elsewhere = policy(
        "q",
        "{nodeSelector: {matchLabels: {pool: b}}, startupTaint: {key: a.b/c}, devicePlugin: {}}",
    );
    let mut joined = unreported();
    join_with(
        &mut joined,
        json!({"key": "gpunode.dev/not-ready", "effect": "NoSchedule"}),
    );
    join_with(&mut joined, json!({"key": "a.b/c", "effect": "NoSchedule"}));
    join_with(&mut joined, json!({"key": "a.b/c", "effect": "NoExecute"}));
    let policies = [elsewhere];
    let mut world = joined.clone();
    world.wait(119);
    let plan = world.converge(&policies);
    assert_eq!(
        (plan.patch, plan.recheck),
        (None, Some(joined.now + jiff::SignedDuration::from_secs(120)))
    );
    world.wait(1);
    world.converge(&policies);
    assert_eq!(
        keys(&world),
        ["a.b/c"],
        "the one with another effect is somebody else's"
    );

    let mut world = World {
        gpu_node: reported("0").gpu_node,
        ..joined.clone()
    };
    world.gpu_node.as_mut().unwrap().spec.config = None;
    world.converge(&policies);
    assert_eq!(keys(&world), ["a.b/c"]);

    let mut world = joined;
    world.node["status"]["conditions"][0]["status"] = json!("False");
    world.wait(3600);
    world.converge(&policies);
    assert_eq!(keys(&world).len(), 3, "it is not Ready");
}

#[test]
fn clock_of_a_node_that_is_a_year_ahead_is_not_waited_for() {
    let mut world = unreported();
    join_with(
        &mut world,
        json!({"key": "gpunode.dev/not-ready", "effect": "NoSchedule"}),
    );
    world.node["status"]["conditions"][0]["lastTransitionTime"] = json!("2027-01-01T00:00:00Z");
    world.wait(120);
    world.converge(&[]);
    assert_eq!(keys(&world), Vec::<&str>::new());
}

#[test]
fn plan_for_people_leaves_out_a_taint_that_goes_by_itself() {
    let world = unreported();
    let set = PolicySet::new([&starting()]);
    let plan = plan_node_with_permit(
        RolloutPermit::Simulated,
        &set,
        NodeContext::new(&world.facts(), None, world.now),
    );
    assert!(!format!("{:?}", plan.patch).contains("not-ready"), "{:?}", plan.patch);
    let preview = policy(
        "p",
        "{mode: Preview, nodeSelector: {}, startupTaint: {}, devicePlugin: {}}",
    );
    let plan = world.plan(&[preview]);
    assert!(plan.previews["p"].set_taints.is_empty(), "{:?}", plan.previews);
}
