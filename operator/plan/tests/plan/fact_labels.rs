//! Labels with facts about GPUs, on one node.

use crate::world::{World, now, policy};
use gpunode_crds::{Agent, ConditionType, GpuNode};
use gpunode_plan::{NodeContext, NodeHold, NodePlan, PolicyOutcome, PolicySet, plan_node};
use json_patch::PatchOperation;
use serde_json::json;

/// A node with two T4, of which the second product label is what people select by.
fn world() -> World {
    let gpu =
        |index: i32| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-T4", "memoryMiB": 15360});
    let gpu_node: GpuNode = serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "uid": "g", "resourceVersion": "7"}, "spec": {},
        "status": {"gpus": [gpu(0), gpu(1)]},
    }))
    .unwrap();
    World {
        gpu_node: Some(gpu_node),
        ..World::sample()
    }
}

fn without_labels(world: &World) -> NodePlan {
    let policies = PolicySet::default().with_gpu_labels(false);
    plan_node(
        &policies,
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), now()),
    )
}

/// Writes the operator's conditions to the `GpuNode` and returns them.
fn say(world: &mut World, plan: &NodePlan) -> Option<String> {
    let change = plan.conditions.clone()?;
    assert_eq!(change.resource_version, "7");
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions.retain(|condition| {
        ConditionType::OF_OPERATOR
            .iter()
            .all(|of| of.as_str() != condition.type_)
    });
    status.conditions.extend(change.conditions);
    let condition = ConditionType::FactLabels.find(&status.conditions);
    Some(condition.map_or("gone".to_owned(), |it| {
        format!("{} {}: {}", it.status, it.reason, it.message)
    }))
}

#[test]
fn every_node_with_gpus_gets_them_and_loses_them_when_they_are_turned_off() {
    let mut world = world();
    let before = world.snapshot();
    world.converge(&[]);
    assert_eq!(world.label("nvidia.com/gpu.product"), Some("Tesla-T4"));
    assert_eq!(world.label("gpunode.dev/gpus.Tesla-T4"), Some("2"));
    assert!(world.plan(&[]).is_settled(), "a second pass writes nothing");
    let patch = without_labels(&world).patch.unwrap();
    json_patch::patch(&mut world.node, &patch).unwrap();
    world.set_record(None);
    assert_eq!(world.snapshot(), before);
    assert!(without_labels(&world).is_settled());
}

#[test]
fn companions_are_counted_by_resource_also_on_a_node_without_gpu() {
    let mut world = world();
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    (status.gpus, status.agent) = (Vec::new(), Some(Agent::default()));
    let long = format!("example.com/{}", "n".repeat(63));
    status.resources = serde_json::from_value(json!([
        {"name": "rdma/hca", "companion": true, "capacity": 128, "allocatable": 64, "registered": true,
            "devices": [{"device": "path-1", "shares": 64, "healthy": 0}, {"device": "path-2", "shares": 64, "healthy": 64}]},
        {"name": "amd.com/fpga", "companion": true, "capacity": 0, "allocatable": 0, "registered": true},
        {"name": "a.b/c", "capacity": 1, "allocatable": 1, "registered": true, "devices": [{"device": "GPU-1", "shares": 1, "healthy": 1}]},
        {"name": long, "companion": true, "capacity": 1, "allocatable": 1, "registered": true,
            "devices": [{"device": "path-3", "shares": 1, "healthy": 1}]},
    ]))
    .unwrap();
    world.converge(&[]);
    assert_eq!(world.label("gpunode.dev/companions.rdma.hca"), Some("2"));
    assert_eq!(world.label("gpunode.dev/companions.amd.com.fpga"), Some("0"));
    assert_eq!(world.label("gpunode.dev/companions.a.b.c"), None);
    let cut = format!("gpunode.dev/companions.example.com.{}", "n".repeat(40));
    assert_eq!(world.label(&cut), Some("1"));
    assert!(world.plan(&[]).is_settled(), "a second pass writes nothing");
    world
        .gpu_node
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .resources
        .clear();
    world.converge(&[]);
    assert_eq!(world.label("gpunode.dev/companions.rdma.hca"), None);
}

#[test]
fn facts_that_change_are_followed_and_no_policy_waits_for_them() {
    let labels = [policy("p", "{nodeSelector: {}, labels: {a: b}}")];
    let mut world = world();
    world.converge(&labels);
    world.gpu_node.as_mut().unwrap().status.as_mut().unwrap().gpus.pop();
    let plan = world.converge(&labels);
    assert_eq!(
        (world.label("nvidia.com/gpu.count"), plan.outcomes["p"].clone()),
        (Some("1"), PolicyOutcome::Ready)
    );
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    (status.gpus, status.agent) = (Vec::new(), Some(Agent::default()));
    let plan = world.converge(&labels);
    assert_eq!(
        (world.label("nvidia.com/gpu.count"), plan.outcomes["p"].clone()),
        (None, PolicyOutcome::Ready)
    );
    assert_eq!(world.label("a"), Some("b"));
}

#[test]
fn a_policy_that_wants_such_a_label_wins_and_gives_it_back() {
    let wins = policy("p", "{nodeSelector: {}, labels: {nvidia.com/gpu.product: mine}}");
    let mut world = world();
    world.converge(&[]);
    let before = world.snapshot();
    world.converge(&[wins]);
    assert_eq!(world.label("nvidia.com/gpu.product"), Some("mine"));
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn policies_do_not_select_by_what_gpunode_wrote() {
    let by_fact = policy(
        "p",
        "{nodeSelector: {matchLabels: {nvidia.com/gpu.product: Tesla-T4}}, labels: {a: b}}",
    );
    let mut world = world();
    world.converge(&[]);
    assert!(world.plan(&[by_fact]).matched.is_empty());
}

#[test]
fn labels_of_gpu_feature_discovery_stay_and_the_gpu_node_says_so() {
    let mut world = world();
    world.set_label("nvidia.com/gpu.count", Some("1"));
    world.set_label("nvidia.com/gpu.product", Some("Tesla-T4"));
    world.node["metadata"]["managedFields"] = json!([{"manager": "nfd-master", "fieldsV1":
        {"f:metadata": {"f:labels": {"f:nvidia.com/gpu.count": {}, "f:nvidia.com/gpu.product": {}}}}}]);
    let plan = world.converge(&[]);
    assert!(plan.conflicts.is_empty(), "no policy is in conflict");
    assert_eq!(world.label("nvidia.com/gpu.count"), Some("1"));
    assert!(!world.record().unwrap().contains("gpu.count") && !world.record().unwrap().contains("gpu.product"));
    assert_eq!(
        say(&mut world, &plan).as_deref(),
        Some(
            "False OwnedByAnother: nfd-master keeps 2 of the GPU fact labels, as GPU feature discovery does: \
             nvidia.com/gpu.count is \"1\", not \"2\""
        )
    );
    assert!(world.plan(&[]).is_settled(), "it is said once");

    world.set_label("nvidia.com/gpu.count", None);
    let plan = world.converge(&[]);
    assert_eq!(world.label("nvidia.com/gpu.count"), Some("2"));
    assert!(
        say(&mut world, &plan)
            .unwrap()
            .ends_with("keeps 1 of the GPU fact labels, as GPU feature discovery does: with the same values")
    );
    world.set_label("nvidia.com/gpu.product", None);
    let plan = world.converge(&[]);
    assert_eq!(say(&mut world, &plan).as_deref(), Some("gone"));
    assert!(world.plan(&[]).is_settled());
}

#[test]
fn counts_of_products_are_always_gpunodes() {
    let mut world = world();
    world.set_label("gpunode.dev/gpus.Tesla-T4", Some("99"));
    world.set_label("gpunode.dev/gpus.Tesla-V100", Some("8"));
    world.converge(&[]);
    assert_eq!(world.label("gpunode.dev/gpus.Tesla-T4"), Some("2"));
    assert_eq!(world.label("gpunode.dev/gpus.Tesla-V100"), None);
}

#[test]
fn an_ignored_node_gets_none_and_keeps_those_that_it_has() {
    let mut world = world();
    world.set_label("gpunode.dev/ignore", Some(""));
    assert_eq!(
        world.plan(&[]),
        NodePlan {
            hold: Some(NodeHold::Ignored),
            ..NodePlan::default()
        }
    );
    world.set_label("gpunode.dev/ignore", None);
    world.converge(&[]);
    world.set_label("gpunode.dev/ignore", Some(""));
    world.gpu_node = None;
    assert!(world.plan(&[]).is_settled());
}

#[test]
fn labels_of_policies_and_facts_move_in_one_patch() {
    let labels = policy("p", "{nodeSelector: {}, labels: {a: b}}");
    let patch = world().plan(&[labels]).patch.unwrap();
    let tests = patch
        .0
        .iter()
        .filter(|operation| matches!(operation, PatchOperation::Test(_)))
        .count();
    assert_eq!(tests, 1);
    let paths: Vec<String> = patch.0.iter().map(|operation| operation.path().to_string()).collect();
    assert!(paths.iter().any(|path| path.ends_with("/a")) && paths.iter().any(|path| path.ends_with("gpu.product")));
}

#[test]
fn facts_that_are_no_label_values_stop_no_other_write_and_fail_no_policy() {
    let mut world = world();
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.machine = Some("-bad-".to_owned());
    status.gpus[1].product = "a/b/c".to_owned();
    let wants = policy(
        "p",
        "{nodeSelector: {}, labels: {a: b}, taints: [{key: k, effect: NoSchedule}]}",
    );
    let policies = [wants];
    let plan = world.converge(&policies);
    assert_eq!(world.label("nvidia.com/gpu.machine"), Some("bad"));
    assert_eq!(world.label("gpunode.dev/gpus.abc"), Some("1"));
    assert!(world.node["spec"]["taints"].to_string().contains("\"k\""));
    assert_eq!(
        say(&mut world, &plan).as_deref(),
        Some(
            "False InvalidFact: facts in the status of the GpuNode do not fit into labels: machine is \"-bad-\", written as \
             \"bad\"; gpus[1].product is \"a/b/c\", written as \"abc\""
        )
    );
    let plan = world.plan(&policies);
    assert!(
        plan.is_settled() && plan.outcomes["p"] == PolicyOutcome::Ready,
        "{plan:?}"
    );
}
