//! The configuration in `GpuNode.spec`, and the outcome that follows from the agent's report.

use crate::world::{World, now, policy};
use gpunode_config::ConfigDocument;
use gpunode_crds::{
    Agent, AgentMode, CdiMode, GpuDevice, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus, Reason,
    RejectedConfiguration, ResourceStatus, RuntimeStatus, WaitingDevice,
};
use gpunode_plan::{GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, plan_node};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

/// Deadline of a policy that sets none.
const PROGRESS_DEADLINE: SignedDuration = SignedDuration::from_mins(10);

fn governing() -> GpuNodePolicy {
    policy("p", "{nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}")
}

/// Returns a governed node without writes left.
fn settled() -> World {
    let mut world = World::sample();
    let plan = world.converge(&[governing()]);
    let GpuNodeChange::Create(mut gpu_node) = plan.gpu_node else {
        panic!("{:?}", plan.gpu_node)
    };
    gpu_node.metadata.uid = Some("g".to_owned());
    gpu_node.metadata.resource_version = Some("7".to_owned());
    gpu_node.metadata.managed_fields = Some(
        serde_json::from_value(json!([
            {"manager": "gpunode-operator", "time": "2026-01-01T00:00:00Z"},
            {"manager": "gpunode-agent", "time": "2026-01-01T09:00:00Z", "subresource": "status"},
        ]))
        .unwrap(),
    );
    world.gpu_node = Some(*gpu_node);
    world
}

fn reported(hash: Option<String>, ready: (&str, Reason)) -> GpuNodeStatus {
    GpuNodeStatus {
        agent: Some(Agent {
            mode: AgentMode::DevicePlugin,
            config_versions: vec![1],
            ..Agent::default()
        }),
        config_hash: hash,
        resources: vec![ResourceStatus {
            name: "nvidia.com/gpu".to_owned(),
            capacity: 8,
            allocatable: 8,
            registered: true,
            ..ResourceStatus::default()
        }],
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: ready.0.to_owned(),
            reason: ready.1.as_str().to_owned(),
            message: "as the agent says".to_owned(),
            last_transition_time: Time(now()),
            observed_generation: None,
        }],
        ..GpuNodeStatus::default()
    }
}

fn in_force() -> Option<String> {
    governing()
        .spec
        .device_plugin
        .map(|config| ConfigDocument::of(&config).hash)
}

fn with_status(status: GpuNodeStatus) -> World {
    let mut world = settled();
    world.gpu_node.as_mut().unwrap().status = Some(status);
    world.node["status"]["allocatable"] = json!({"cpu": "8", "nvidia.com/gpu": "8"});
    world
}

fn outcome_after(world: &World, minutes: i64) -> (NodePlan, PolicyOutcome) {
    let later = now() + SignedDuration::from_mins(minutes);
    let plan = plan_node(
        &PolicySet::new(&[governing()]),
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), later),
    );
    let outcome = plan.outcomes["p"].clone();
    (plan, outcome)
}

#[test]
fn governed_node_gets_a_gpu_node_that_belongs_to_it() {
    let plan = World::sample().plan(&[governing()]);
    let GpuNodeChange::Create(gpu_node) = plan.gpu_node else {
        panic!("{:?}", plan.gpu_node)
    };
    insta::assert_yaml_snapshot!(gpu_node, @r#"
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNode
    metadata:
      name: n
      ownerReferences:
        - apiVersion: v1
          kind: Node
          name: n
          uid: u
    spec:
      config:
        policy: p
        version: 1
        hash: 02eac49952df12b2
        document: "passDeviceSpecs: true\n"
    "#);
}

#[test]
fn agents_own_gpu_node_gets_the_configuration_under_a_guard() {
    let mut world = World::sample();
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.metadata.resource_version = Some("3".to_owned());
    world.gpu_node = Some(gpu_node);
    let change = world.plan(&[governing()]).gpu_node;
    assert!(change.gives_configuration());
    let GpuNodeChange::Configure {
        resource_version,
        config,
        step: None,
    } = change
    else {
        panic!()
    };
    assert_eq!((resource_version.as_str(), config.unwrap().policy.as_str()), ("3", "p"));
    assert_eq!(world.plan(&[]).gpu_node, GpuNodeChange::None);
}

#[test]
fn gpu_node_without_configuration_stays_where_there_are_gpus_and_goes_where_there_are_none() {
    let mut world = settled();
    assert_eq!(world.plan(&[governing()]).gpu_node, GpuNodeChange::None);
    let gone = GpuNodeChange::Delete {
        uid: "g".to_owned(),
        resource_version: "7".to_owned(),
    };
    assert_eq!(world.plan(&[]).gpu_node, gone);
    let status = GpuNodeStatus {
        gpus: vec![GpuDevice::default()],
        ..GpuNodeStatus::default()
    };
    world.gpu_node.as_mut().unwrap().status = Some(status);
    let withdrawn = GpuNodeChange::Configure {
        resource_version: "7".to_owned(),
        config: None,
        step: None,
    };
    assert_eq!(world.plan(&[]).gpu_node, withdrawn);
    assert!(!withdrawn.gives_configuration() && !gone.gives_configuration());
}

#[test]
fn edited_configuration_comes_back() {
    let mut world = settled();
    world.gpu_node.as_mut().unwrap().spec.config.as_mut().unwrap().document = "{}".to_owned();
    assert!(matches!(
        world.plan(&[governing()]).gpu_node,
        GpuNodeChange::Configure { config: Some(_), .. }
    ));
}

/// Plans a node whose agent reports what it can read; answers the message of the failure.
fn unread_by(agent: Agent, policy: &GpuNodePolicy) -> String {
    let mut world = World::sample();
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(GpuNodeStatus {
        agent: Some(agent),
        ..GpuNodeStatus::default()
    });
    world.gpu_node = Some(gpu_node);
    world.converge(std::slice::from_ref(policy));
    assert_eq!(world.gpu_node.as_ref().unwrap().spec.config, None);
    let plan = world.plan(std::slice::from_ref(policy));
    assert!(plan.is_settled());
    match &plan.outcomes["p"] {
        PolicyOutcome::Failed {
            reason: Reason::ConfigurationPending,
            message,
        } => message.clone(),
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn configuration_that_the_agent_cannot_read_is_not_written() {
    let of_versions = Agent {
        config_versions: vec![0],
        ..Agent::default()
    };
    assert!(unread_by(of_versions, &governing()).contains("configuration versions [0]"));

    // An agent from before MPS, or from before `health.recovery`.
    let without = |missing: &str| Agent {
        config_versions: vec![1],
        config_fields: gpunode_config::known_fields()
            .iter()
            .filter(|field| !field.starts_with(missing))
            .cloned()
            .collect(),
        ..Agent::default()
    };
    let mps = "{nodeSelector: {}, devicePlugin: {resources: [{name: a.b/c, sharing: {strategy: Mps, replicas: 2}}]}}";
    let message = unread_by(without("resources.sharing.strategy=Mps"), &policy("p", mps));
    assert!(
        message.contains("does not know resources.sharing.strategy=Mps"),
        "{message}"
    );
    let manual = "{nodeSelector: {}, devicePlugin: {health: {recovery: Manual}}}";
    let message = unread_by(without("health.recovery"), &policy("p", manual));
    assert!(message.contains("health.recovery"), "{message}");
}

#[test]
fn configuration_goes_to_an_older_agent_that_knows_all_of_it() {
    let mut world = settled();
    let agent = Agent {
        config_versions: vec![1],
        config_fields: vec!["passDeviceSpecs".to_owned()],
        ..Agent::default()
    };
    world.gpu_node.as_mut().unwrap().status = Some(GpuNodeStatus {
        agent: Some(agent),
        ..GpuNodeStatus::default()
    });
    let changed = policy("p", "{nodeSelector: {}, devicePlugin: {passDeviceSpecs: false}}");
    assert!(matches!(
        world.plan(&[changed]).gpu_node,
        GpuNodeChange::Configure { config: Some(_), .. }
    ));
}

#[test]
fn the_runtime_of_a_node_decides_if_its_policy_gives_pods_gpus() {
    let mut world = settled();
    let hash = world
        .gpu_node
        .as_ref()
        .unwrap()
        .spec
        .config
        .as_ref()
        .unwrap()
        .hash
        .clone();
    let refusal = |world: &World, policies: &[GpuNodePolicy]| {
        world.plan(policies).policy_statuses_after(None)["p"]
            .gpu_refusal
            .clone()
    };
    let off = RuntimeStatus {
        name: Some("containerd".to_owned()),
        cdi: Some(CdiMode::Disabled),
        handlers: vec!["runc".to_owned()],
        ..RuntimeStatus::default()
    };
    let report = |world: &mut World, runtime: Option<RuntimeStatus>| {
        world.gpu_node.as_mut().unwrap().status = Some(GpuNodeStatus {
            runtime,
            gpus: vec![GpuDevice::default()],
            ..reported(Some(hash.clone()), ("True", Reason::ConfigurationInForce))
        });
    };
    report(&mut world, None);
    assert_eq!(
        refusal(&world, &[governing()]),
        None,
        "an older agent does not report it"
    );
    report(&mut world, Some(off.clone()));
    assert!(refusal(&world, &[governing()]).is_some_and(|reason| reason.starts_with("CDI is off in containerd")));
    let paused = policy(
        "p",
        "{mode: Paused, nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}}",
    );
    assert!(
        refusal(&world, &[paused]).is_some(),
        "a pause changes nothing on the node"
    );
    let on = RuntimeStatus {
        cdi: Some(CdiMode::Enabled),
        ..off
    };
    report(&mut world, Some(on));
    assert_eq!(refusal(&world, &[governing()]), None);
    let by_variable = policy("p", "{nodeSelector: {}, devicePlugin: {deviceListStrategy: [Envvar]}}");
    assert_eq!(
        refusal(&world, std::slice::from_ref(&by_variable)),
        None,
        "it is not in force on the node yet"
    );
    let config = world.gpu_node.as_mut().unwrap().spec.config.as_mut().unwrap();
    (config.hash, config.document) = ("variable".to_owned(), "deviceListStrategy: [Envvar]".to_owned());
    for wanted in [governing(), by_variable] {
        assert!(refusal(&world, &[wanted]).is_some_and(|reason| reason.contains("NVIDIA's container runtime")));
    }
}

#[test]
fn refused_configuration_replaces_no_working_one() {
    let mut world = settled();
    let refused = policy(
        "p",
        "{nodeSelector: {}, labels: {a: b}, devicePlugin: {resources: [{name: nodomain}]}}",
    );
    world.converge(std::slice::from_ref(&refused));
    let plan = world.plan(&[refused]);
    assert_eq!((world.label("a"), &plan.gpu_node), (Some("b"), &GpuNodeChange::None));
    assert_eq!(world.label("gpunode.dev/governed"), Some("true"));
    let PolicyOutcome::Failed {
        reason: Reason::InvalidSpec,
        message,
    } = &plan.outcomes["p"]
    else {
        panic!()
    };
    assert!(
        message.starts_with("spec.devicePlugin.resources[0].name: `nodomain` has no domain"),
        "{message}"
    );
}

#[test]
fn node_is_ready_when_its_agent_has_the_very_configuration_in_force() {
    let world = with_status(reported(in_force(), ("True", Reason::Registered)));
    assert_eq!(outcome_after(&world, 1).1, PolicyOutcome::Ready);
}

#[test]
fn rejected_configuration_fails_at_once_with_the_agents_words() {
    let mut status = reported(Some("old".to_owned()), ("True", Reason::Registered));
    let message = "resources[0].name: no".to_owned();
    status.rejected_config = Some(RejectedConfiguration {
        hash: in_force().unwrap(),
        message: message.clone(),
    });
    assert_eq!(
        outcome_after(&with_status(status), 0).1,
        PolicyOutcome::failed(Reason::ConfigurationRejected, message)
    );
}

#[test]
fn agent_that_does_not_get_there_is_waited_for_until_the_deadline() {
    let deadline = now() + PROGRESS_DEADLINE;
    for (world, expected) in [
        (settled(), Reason::AgentNotReporting),
        (
            with_status(reported(Some("old".to_owned()), ("True", Reason::Registered))),
            Reason::ConfigurationPending,
        ),
        (
            with_status(reported(in_force(), ("False", Reason::Registering))),
            Reason::Registering,
        ),
    ] {
        let (plan, outcome) = outcome_after(&world, 9);
        assert_eq!((outcome, plan.recheck), (PolicyOutcome::Updating, Some(deadline)));
        let (plan, outcome) = outcome_after(&world, 10);
        assert!(
            matches!(outcome, PolicyOutcome::Failed { reason, .. } if reason == expected),
            "{outcome:?}"
        );
        assert_eq!(plan.recheck, None);
    }
}

#[test]
fn ready_agent_whose_gpus_the_node_does_not_offer_is_waited_for_and_then_failed() {
    let mut world = with_status(reported(in_force(), ("True", Reason::Registered)));
    for allocatable in [
        json!({"cpu": "8"}),
        json!({"nvidia.com/gpu": "0"}),
        json!({"nvidia.com/gpu.shared": "8"}),
    ] {
        world.node["status"]["allocatable"] = allocatable;
        let (plan, outcome) = outcome_after(&world, 9);
        assert_eq!(
            (outcome, plan.recheck),
            (PolicyOutcome::Updating, Some(now() + PROGRESS_DEADLINE))
        );
        let (plan, outcome) = outcome_after(&world, 10);
        let message =
            "the agent reports 8 nvidia.com/gpu, node n has 0 allocatable; see the agent's pod on n and its log";
        assert_eq!(
            (outcome, plan.recheck),
            (PolicyOutcome::failed(Reason::AgentNotReporting, message), None)
        );
    }
}

#[test]
fn agent_that_has_just_registered_again_is_waited_for() {
    let mut status = reported(in_force(), ("True", Reason::Registered));
    status.conditions[0].last_transition_time = Time(now() + SignedDuration::from_mins(60));
    let mut world = with_status(status);
    world.node["status"]["allocatable"] = json!({});
    assert_eq!(outcome_after(&world, 61).1, PolicyOutcome::Updating);
    assert!(matches!(
        outcome_after(&world, 70).1,
        PolicyOutcome::Failed {
            reason: Reason::AgentNotReporting,
            ..
        }
    ));
}

#[test]
fn agent_that_died_with_the_old_configuration_does_not_report() {
    let mut world = with_status(reported(Some("old".to_owned()), ("True", Reason::Registered)));
    world.node["status"]["allocatable"] = json!({});
    assert!(matches!(
        outcome_after(&world, 10).1,
        PolicyOutcome::Failed {
            reason: Reason::AgentNotReporting,
            ..
        }
    ));
}

#[test]
fn node_whose_agent_has_nothing_to_offer_is_ready() {
    let mut status = reported(in_force(), ("True", Reason::Registered));
    status.resources[0].allocatable = 0;
    let mut world = with_status(status);
    world.node["status"]["allocatable"] = json!({});
    assert_eq!(outcome_after(&world, 60).1, PolicyOutcome::Ready);
}

#[test]
fn node_whose_devices_wait_for_their_holders_is_ready_and_names_them() {
    let mut status = reported(in_force(), ("True", Reason::Registered));
    // Of eight shares three are held; the free ones are Unhealthy until the device has changed.
    status.resources[0].allocatable = 3;
    let waiting = |device: &str| WaitingDevice {
        device: device.to_owned(),
        pods: vec!["a/b".to_owned()],
        ..WaitingDevice::default()
    };
    status.waiting = vec![waiting("GPU-1"), waiting("GPU-2")];
    let mut world = with_status(status);
    for allocatable in ["3", "2"] {
        world.node["status"]["allocatable"] = json!({"nvidia.com/gpu": allocatable});
        let (plan, outcome) = outcome_after(&world, 60);
        assert_eq!((outcome, plan.recheck), (PolicyOutcome::Ready, None));
        let devices: Vec<_> = plan.policy_statuses_after(None)["p"]
            .waiting
            .iter()
            .map(|it| it.device.clone())
            .collect();
        assert_eq!(devices, ["GPU-1", "GPU-2"]);
    }
    assert!(world.plan(&[]).waiting.is_empty(), "nobody governs the node");
    world.node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    let (plan, _) = outcome_after(&world, 60);
    assert!(plan.waiting.is_empty(), "the pods of a node that is down may be gone");
}

#[test]
fn resource_of_which_every_share_is_unhealthy_is_not_missed() {
    let mut status = reported(in_force(), ("True", Reason::Registered));
    status.resources[0].allocatable = 0;
    status.resources.push(ResourceStatus {
        name: "nvidia.com/gpu.mps".to_owned(),
        capacity: 10,
        allocatable: 10,
        registered: true,
        ..ResourceStatus::default()
    });
    let mut world = with_status(status);
    world.node["status"]["allocatable"] = json!({"nvidia.com/gpu": "0", "nvidia.com/gpu.mps": "10"});
    assert_eq!(outcome_after(&world, 60).1, PolicyOutcome::Ready);
}

#[test]
fn device_that_cannot_be_offered_fails_at_once_and_one_that_may_come_is_waited_for() {
    for reason in [
        Reason::MigInstancesUnequal,
        Reason::MigWithoutInstances,
        Reason::MpsUnsupported,
        Reason::MemoryBelowUnit,
    ] {
        let world = with_status(reported(in_force(), ("False", reason)));
        assert_eq!(
            outcome_after(&world, 0).1,
            PolicyOutcome::failed(reason, "as the agent says")
        );
    }
    for reason in [
        Reason::MpsDaemonNotAnswering,
        Reason::CdiNotDescribed,
        Reason::HoldersUnknown,
        Reason::DriverNotReady,
    ] {
        let world = with_status(reported(in_force(), ("False", reason)));
        assert_eq!(outcome_after(&world, 9).1, PolicyOutcome::Updating);
        assert_eq!(
            outcome_after(&world, 10).1,
            PolicyOutcome::failed(reason, "as the agent says")
        );
    }
}

#[test]
fn resource_of_another_plugin_fails_at_once_and_is_said() {
    let mut status = reported(in_force(), ("False", Reason::ServedByAnother));
    status.resources[0].registered = false;
    let world = with_status(status);
    assert_eq!(
        outcome_after(&world, 0).1,
        PolicyOutcome::failed(Reason::ServedByAnother, "as the agent says")
    );
}

#[test]
fn broken_driver_and_unreachable_node_fail_at_once() {
    let mut world = with_status(reported(in_force(), ("False", Reason::DriverNotFound)));
    assert!(matches!(
        outcome_after(&world, 0).1,
        PolicyOutcome::Failed {
            reason: Reason::DriverNotFound,
            ..
        }
    ));
    world.node["status"]["conditions"][0]["status"] = json!("Unknown");
    assert!(matches!(
        outcome_after(&world, 0).1,
        PolicyOutcome::Failed {
            reason: Reason::NodeNotReady,
            ..
        }
    ));
}

#[test]
fn node_that_has_just_joined_may_take_its_time() {
    let mut world = settled();
    world.node["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    world.node["status"]["conditions"][0]["status"] = json!("False");
    assert_eq!(outcome_after(&world, 1).1, PolicyOutcome::Updating);
    assert!(matches!(
        outcome_after(&world, 11).1,
        PolicyOutcome::Failed {
            reason: Reason::NodeNotReady,
            ..
        }
    ));
}

/// A `GpuNode` with a configuration and GPUs that belongs to a node of this UID.
fn gpu_node_of(uid: &str) -> GpuNode {
    serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "uid": "g", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid}]},
        "spec": {"config": {"policy": "p", "version": 1, "hash": "0123456789abcdef", "document": "{}"}},
        "status": {"gpus": [serde_json::to_value(gpunode_crds::GpuDevice::default()).unwrap()]},
    }))
    .unwrap()
}

#[test]
fn gpu_node_of_an_earlier_node_of_the_same_name_is_not_believed_and_is_deleted_first() {
    let by_gpus = policy("by-gpus", "{gpuSelector: {minCount: 1}, labels: {x: y}}");
    let mut world = World::sample();
    world.gpu_node = Some(gpu_node_of("u"));
    assert_eq!(world.plan(std::slice::from_ref(&by_gpus)).matched, ["by-gpus"]);

    world.gpu_node = Some(gpu_node_of("earlier"));
    for policies in [vec![], vec![by_gpus], vec![governing()]] {
        let plan = world.plan(&policies);
        let (uid, resource_version) = ("g".to_owned(), "7".to_owned());
        assert_eq!(plan.gpu_node, GpuNodeChange::Delete { uid, resource_version });
        assert!(!plan.matched.contains(&"by-gpus".to_owned()));
    }
    world.gpu_node = None;
    assert!(matches!(world.plan(&[governing()]).gpu_node, GpuNodeChange::Create(_)));
}

#[test]
fn gpu_node_of_a_later_node_of_the_same_name_is_neither_believed_nor_deleted() {
    let by_gpus = policy("by-gpus", "{gpuSelector: {minCount: 1}, labels: {x: y}}");
    let mut world = World::sample();
    world.node["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut gpu_node = gpu_node_of("another");
    for (created, is_deleted) in [("2026-01-01T00:00:01Z", false), ("2026-01-01T00:00:00Z", true)] {
        gpu_node.metadata.creation_timestamp = Some(Time(created.parse().unwrap()));
        world.gpu_node = Some(gpu_node.clone());
        let plan = world.plan(std::slice::from_ref(&by_gpus));
        assert!(plan.matched.is_empty());
        assert_eq!(plan.gpu_node != GpuNodeChange::None, is_deleted, "{created}");
    }
}

#[test]
fn gpu_node_without_its_owner_is_believed() {
    let mut world = World::sample();
    let mut gpu_node = gpu_node_of("u");
    gpu_node.metadata.owner_references = None;
    world.gpu_node = Some(gpu_node);
    let by_gpus = policy("by-gpus", "{gpuSelector: {minCount: 1}, labels: {x: y}}");
    assert_eq!(world.plan(&[by_gpus]).matched, ["by-gpus"]);
}
