//! The startup taint stays from a boot until every promised device is allocatable.

use crate::{
    governed::{configuration, world},
    world::{World, policy},
};
use gpunode_crds::{DeviceHealth, FaultReason, GpuDevice, GpuNode, GpuNodePolicy, HealthState, ResourceStatus};
use gpunode_plan::{NodeContext, NodeHold, PolicySet, RolloutPermit, plan_node_with_permit};
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
fn taint_stays_until_the_kubelet_has_the_list_of_companions_also_an_empty_one() {
    let world = reported("8");
    let set = |world: &mut World, companions: i32, allocatable: Option<&str>, registered: bool| {
        let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
        status.resources.truncate(1);
        status.resources.push(ResourceStatus {
            name: "rdma/hca".to_owned(),
            companion: true,
            capacity: companions,
            allocatable: companions,
            registered,
            ..Default::default()
        });
        let ready = status
            .conditions
            .iter_mut()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        ready.status = if registered { "True" } else { "False" }.to_owned();
        ready.reason = if registered {
            "ConfigurationInForce"
        } else {
            "Registering"
        }
        .to_owned();
        if let Some(allocatable) = allocatable {
            world.node["status"]["allocatable"]["rdma/hca"] = json!(allocatable);
        }
    };
    for (companions, allocatable, registered, is_tainted) in [
        (0, None, false, true),
        (64, None, true, true),
        (64, Some("63"), true, true),
        (64, Some("64"), true, false),
        (0, None, true, false),
    ] {
        let mut world = world.clone();
        set(&mut world, companions, allocatable, registered);
        world.converge(&[starting()]);
        assert_eq!(
            !keys(&world).is_empty(),
            is_tainted,
            "{companions} {allocatable:?} {registered}"
        );
    }
}

#[test]
fn node_of_a_dra_driver_waits_for_no_resource() {
    let mut world = reported("0");
    world.converge(&[starting()]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    world.gpu_node.as_mut().unwrap().spec.served_by_dra = true;
    world.converge(&[starting()]);
    assert_eq!(keys(&world), [""; 0]);
}

#[test]
fn taint_stays_until_every_gpu_has_joined_its_fabric() {
    let mut world = reported("8");
    let waiting = DeviceHealth {
        state: HealthState::Unhealthy,
        reason: Some(FaultReason::FabricNotReady),
        ..DeviceHealth::default()
    };
    for (health, is_tainted) in [(Some(waiting), true), (None, false)] {
        let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
        status.gpus = vec![GpuDevice {
            uuid: "GPU-0".to_owned(),
            health,
            ..GpuDevice::default()
        }];
        world.converge(&[starting()]);
        assert_eq!(
            (keys(&world).is_empty(), started(&world).is_some()),
            (!is_tainted, !is_tainted)
        );
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
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), world.now),
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

/// Returns a node that joined with the taint and on which discovery finds GPU functions and no driver.
fn without_driver() -> World {
    let mut world = unreported();
    join_with(
        &mut world,
        json!({"key": "gpunode.dev/not-ready", "effect": "NoSchedule"}),
    );
    let gpu_node: GpuNode = serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {
            "agent": {"pod": "d", "podUid": "u", "mode": "Discovery", "version": "1", "configVersions": [1]},
            "conditions": [{
                "type": "DriverAvailable", "status": "False", "reason": "DriverNotFound", "message": "no driver",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    }))
    .unwrap();
    world.gpu_node = Some(gpu_node);
    world
}

fn find_gpus(world: &mut World) {
    let gpu = GpuDevice {
        product: "Tesla-T4".to_owned(),
        ..GpuDevice::default()
    };
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    (status.gpus, status.conditions) = (vec![gpu], Vec::new());
}

#[test]
fn taint_waits_for_a_driver_that_comes_minutes_later_and_for_the_devices_of_the_policy_that_then_matches() {
    let by_gpus = |product: &str| {
        policy(
            "p",
            &format!("{{gpuSelector: {{products: [{product}]}}, startupTaint: {{}}, devicePlugin: {{}}}}"),
        )
    };
    let mut world = without_driver();
    world.wait(900);
    world.converge(&[by_gpus("Tesla-T4")]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"], "the report names no GPU yet");
    find_gpus(&mut world);
    let mut other = world.clone();
    let plan = world.converge(&[by_gpus("Tesla-T4")]);
    assert_eq!(
        (plan.governing.as_deref(), keys(&world)),
        (Some("p"), vec!["gpunode.dev/not-ready"])
    );
    other.converge(&[by_gpus("Tesla-V100")]);
    assert_eq!(
        keys(&other),
        Vec::<&str>::new(),
        "no policy with a startup taint selects these GPUs"
    );
}

#[test]
fn taint_stays_while_the_policy_that_would_want_it_is_paused() {
    let paused = |pool: &str| {
        policy(
            "p",
            &format!(
                "{{mode: Paused, nodeSelector: {{matchLabels: {{pool: {pool}}}}}, startupTaint: {{}}, devicePlugin: {{}}}}"
            ),
        )
    };
    let mut joined = without_driver();
    find_gpus(&mut joined);
    joined.wait(900);
    let mut world = joined.clone();
    world.converge(&[paused("a")]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    world.converge(&[starting()]);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"], "nothing is allocatable yet");
    joined.converge(&[paused("b")]);
    assert_eq!(
        keys(&joined),
        Vec::<&str>::new(),
        "the paused policy does not select the node"
    );
}

#[test]
fn startup_taint_ends_while_another_policy_cannot_be_read() {
    let newer = policy("newer", "{nodeSelector: {}, labels: {x: y}}");
    let mut world = reported("8");
    world.converge(&[starting(), newer]);
    let set = PolicySet::new(&[starting()]).with_unreadable(["newer".to_owned()]);
    boot(&mut world, "b2", "0");
    world.converge_with(&set);
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    boot(&mut world, "b2", "8");
    world.converge_with(&set);
    assert_eq!((keys(&world), started(&world).as_deref()), (vec![], Some("b2")));
    assert_eq!(world.label("x"), Some("y"));
}

#[test]
fn taint_stays_while_the_policy_that_would_want_it_waits_for_a_paused_one() {
    let labels = |mode: &str| policy("l", &format!("{{mode: {mode}, nodeSelector: {{}}, labels: {{x: y}}}}"));
    let mut joined = without_driver();
    joined.converge(&[labels("Enforce")]);
    find_gpus(&mut joined);
    for (product, expected) in [("Tesla-T4", vec!["gpunode.dev/not-ready"]), ("Tesla-V100", vec![])] {
        let waiting = policy(
            "q",
            &format!("{{gpuSelector: {{products: [{product}]}}, startupTaint: {{}}, devicePlugin: {{}}}}"),
        );
        let mut world = joined.clone();
        let plan = world.converge(&[labels("Paused"), waiting]);
        assert_eq!(plan.hold, Some(NodeHold::Paused("l".to_owned())));
        assert_eq!(keys(&world), expected, "{product}");
    }
}

#[test]
fn taint_goes_with_the_promise_of_the_policy_that_governs_whatever_a_paused_one_would_want() {
    let policies = [
        policy(
            "paused",
            "{mode: Paused, priority: 5, nodeSelector: {}, startupTaint: {}, devicePlugin: {}}",
        ),
        policy("p", "{nodeSelector: {}, devicePlugin: {}}"),
    ];
    for (allocatable, expected) in [("7", vec!["gpunode.dev/not-ready"]), ("8", vec![])] {
        let mut world = unreported();
        join_with(
            &mut world,
            json!({"key": "gpunode.dev/not-ready", "effect": "NoSchedule"}),
        );
        world.gpu_node = reported("8").gpu_node;
        boot(&mut world, "b1", allocatable);
        let plan = world.converge(&policies);
        assert_eq!((plan.hold, plan.governing.as_deref()), (None, Some("p")));
        assert_eq!(keys(&world), expected);
    }
}

#[test]
fn paused_node_loses_its_startup_taint_once_everything_promised_is_allocatable_and_nothing_else() {
    let paused = policy(
        "p",
        "{mode: Paused, nodeSelector: {}, labels: {new: label}, startupTaint: {}, devicePlugin: {}}",
    );
    let mut world = reported("7");
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    assert!(world.plan(std::slice::from_ref(&paused)).is_settled());
    boot(&mut world, "b1", "8");
    let labels = world.node["metadata"]["labels"].clone();
    world.converge(std::slice::from_ref(&paused));
    assert_eq!((keys(&world), started(&world).as_deref()), (vec![], Some("b1")));
    assert_eq!(world.node["metadata"]["labels"], labels);
    assert!(world.plan(&[paused]).is_settled());
    assert!(
        world.plan(&[starting()]).patch.is_none(),
        "the record is that of a node in force"
    );
}

#[test]
fn disagreement_about_a_label_holds_back_neither_the_startup_taint_nor_other_keys() {
    let say = |name: &str, key: &str| {
        policy(
            name,
            &format!(
                "{{nodeSelector: {{}}, labels: {{zone: {name}, {key}: x}}, startupTaint: {{}}, devicePlugin: {{}}}}"
            ),
        )
    };
    let policies = [say("p", "one"), say("q", "two")];
    let mut world = unreported();
    let plan = world.converge(&policies);
    assert_eq!((plan.hold, plan.disagreements.len()), (None, 1));
    assert_eq!(
        (world.label("zone"), world.label("one"), world.label("two")),
        (None, Some("x"), Some("x"))
    );
    assert_eq!(keys(&world), ["gpunode.dev/not-ready"]);
    world.gpu_node = reported("8").gpu_node;
    boot(&mut world, "b1", "8");
    world.converge(&policies);
    assert_eq!((keys(&world), started(&world).as_deref()), (vec![], Some("b1")));
}

#[test]
fn disagreement_about_the_device_plugin_keeps_configuration_agent_and_startup_taint() {
    let other = policy(
        "q",
        "{nodeSelector: {}, labels: {q: x}, startupTaint: {}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let both = [starting(), other];
    let mut new = unreported();
    let plan = new.converge(&both);
    assert!(plan.is_configuration_disputed() && plan.gpu_node == gpunode_plan::GpuNodeChange::None);
    assert_eq!(
        (keys(&new), new.label("q"), new.label("gpunode.dev/governed")),
        (vec!["gpunode.dev/not-ready"], Some("x"), None)
    );
    new.wait(3600);
    new.converge(&both);
    assert_eq!(keys(&new), ["gpunode.dev/not-ready"]);

    let mut world = reported("8");
    let plan = world.converge(&both);
    assert_eq!(plan.gpu_node, gpunode_plan::GpuNodeChange::None);
    assert_eq!(
        plan.governing.as_deref(),
        Some("p"),
        "the policy whose configuration it has"
    );
    assert_eq!(world.label("gpunode.dev/policy.p"), Some("true"));
    assert_eq!(keys(&world), Vec::<&str>::new(), "what it has is allocatable");
    assert!(world.plan(&both).patch.is_none());
}
