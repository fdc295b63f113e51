//! A node that policy `p` governs, and the report of its agent.

use crate::world::{World, now, policy};
use gpunode_config::ConfigDocument;
use gpunode_crds::{
    Agent, AgentMode, Configuration, ConfigurationStep, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus, Reason,
    RejectedConfiguration,
};
use gpunode_plan::{GpuNodeChange, NodeContext, NodePlan, PolicySet, RolloutPermit, plan_node_with_permit};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

pub fn old() -> GpuNodePolicy {
    policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {}, rollout: {progressDeadline: 5m}}",
    )
}

pub fn new() -> GpuNodePolicy {
    policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}, rollout: {progressDeadline: 5m}}",
    )
}

pub fn configuration(policy: &GpuNodePolicy) -> Configuration {
    let document = ConfigDocument::of(policy.spec.device_plugin.as_ref().unwrap());
    let name = policy.metadata.name.clone().unwrap();
    Configuration {
        policy: name,
        version: 1,
        hash: document.hash,
        document: document.text,
    }
}

pub fn step() -> ConfigurationStep {
    ConfigurationStep {
        started_at: Time(now()),
        generation: Some(1),
        failed: None,
    }
}

/// Returns a node whose `GpuNode` has the configuration `given`, perhaps with a step, and whose agent reports `in_force`.
pub fn world(given: &GpuNodePolicy, step: Option<ConfigurationStep>, in_force: &GpuNodePolicy, ready: bool) -> World {
    let mut world = World::sample();
    world.converge(std::slice::from_ref(given));
    let mut gpu_node = GpuNode::new(
        "n",
        GpuNodeSpec {
            config: Some(configuration(given)),
            step,
            ..GpuNodeSpec::default()
        },
    );
    gpu_node.metadata.resource_version = Some("7".to_owned());
    gpu_node.metadata.managed_fields =
        Some(serde_json::from_value(json!([{"manager": "gpunode-operator", "time": "2026-01-01T00:00:00Z"}])).unwrap());
    gpu_node.status = Some(GpuNodeStatus {
        agent: Some(Agent {
            mode: AgentMode::DevicePlugin,
            config_versions: vec![1],
            ..Agent::default()
        }),
        config_hash: Some(configuration(in_force).hash),
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            reason: if ready { Reason::Registered } else { Reason::Registering }
                .as_str()
                .to_owned(),
            message: "as the agent says".to_owned(),
            last_transition_time: Time(now()),
            observed_generation: None,
        }],
        ..GpuNodeStatus::default()
    });
    world.gpu_node = Some(gpu_node);
    world
}

/// Returns the node after its agent has finished the step.
pub fn finished(mut world: World) -> World {
    let gpu_node = world.gpu_node.as_mut().unwrap();
    let started_at = gpu_node.spec.step.as_ref().map(|step| step.started_at.clone());
    gpu_node.status.as_mut().unwrap().finished_step = started_at;
    world
}

pub fn down(mut world: World) -> World {
    world.node["status"]["conditions"][0]["status"] = json!("Unknown");
    world.node["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    world
}

pub fn rejecting(mut world: World, rejected: &GpuNodePolicy) -> World {
    let hash = configuration(rejected).hash;
    world
        .gpu_node
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .rejected_config = Some(RejectedConfiguration {
        hash,
        message: "no".to_owned(),
    });
    world
}

pub fn plan_at(permit: RolloutPermit, world: &World, policies: &[GpuNodePolicy], minutes: i64) -> NodePlan {
    let later = now() + SignedDuration::from_mins(minutes);
    plan_node_with_permit(
        permit,
        &PolicySet::new(policies),
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), later),
    )
}

pub fn plan(world: &World, policy: GpuNodePolicy, minutes: i64) -> NodePlan {
    plan_at(RolloutPermit::Granted, world, &[policy], minutes)
}

pub fn given(change: &GpuNodeChange) -> Option<(&str, bool)> {
    match change {
        GpuNodeChange::Configure {
            config: Some(config),
            step,
            ..
        } => Some((&config.hash, step.is_some())),
        _ => None,
    }
}

/// Returns the node after it has been Ready again for a number of minutes.
pub fn back(mut world: World, minutes: i64) -> World {
    let since = now() + SignedDuration::from_mins(minutes);
    world.node["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
    world
}

/// Returns the node after the plan's write to its `GpuNode`.
pub fn written(mut world: World, plan: &NodePlan) -> World {
    let spec = &mut world.gpu_node.as_mut().unwrap().spec;
    match &plan.gpu_node {
        GpuNodeChange::Configure { config, step, .. } => {
            (spec.config, spec.step, spec.change) = (config.clone(), step.clone(), None);
        }
        GpuNodeChange::Step { step, change, .. } => (spec.step, spec.change) = (step.clone(), change.clone()),
        other => panic!("{other:?}"),
    }
    world
}
