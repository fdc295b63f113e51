//! Nodes whose GPUs no agent has reported: their `GpuNode` is gone, new or unreadable.

use crate::world::{World, policy};
use gpunode_crds::{Agent, GpuDevice, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus};
use gpunode_plan::{GpuNodeChange, NodeContext, PolicyOutcome, PolicySet, explain, missing_owner, plan_node};

fn by_gpus() -> GpuNodePolicy {
    policy(
        "g",
        "{nodeSelector: {matchLabels: {pool: a}}, gpuSelector: {products: ['Tesla-*']}, labels: {x: y}, taints: [{key: gpu, effect: NoSchedule}], devicePlugin: {}}",
    )
}

fn gpu_node(gpus: Option<Vec<GpuDevice>>) -> GpuNode {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    let agent = Some(Agent::default());
    gpu_node.status = gpus.map(|gpus| GpuNodeStatus {
        agent,
        gpus,
        ..GpuNodeStatus::default()
    });
    gpu_node
}

/// Returns a node with one GPU that the policy matches.
fn governed() -> World {
    let gpu = GpuDevice {
        product: "Tesla-T4".to_owned(),
        memory_mib: 15360,
        ..GpuDevice::default()
    };
    let mut world = World::sample();
    world.gpu_node = Some(gpu_node(Some(vec![gpu])));
    world.converge(&[by_gpus()]);
    assert_eq!(
        (world.label("x"), world.label("nvidia.com/gpu.product")),
        (Some("y"), Some("Tesla-T4"))
    );
    world
}

#[test]
fn node_without_a_word_of_its_agent_keeps_what_it_has() {
    let mut said_by_the_operator = gpu_node(None);
    said_by_the_operator.status = Some(GpuNodeStatus::default());
    for unknown in [None, Some(gpu_node(None)), Some(said_by_the_operator)] {
        let mut world = governed();
        let before = world.snapshot();
        world.gpu_node = unknown;
        let plan = world.converge(&[by_gpus()]);
        assert_eq!((world.snapshot(), plan.matched), (before, vec!["g".to_owned()]));
        assert!(plan.gpu_node.gives_configuration());
        let explained = explain(
            &PolicySet::new(&[by_gpus()]),
            NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), world.now),
        );
        assert_eq!(explained.policies[0].mismatch, None);
    }
}

#[test]
fn word_of_an_agent_that_there_is_no_gpu_takes_a_node_from_the_policy() {
    let mut world = governed();
    world.gpu_node = Some(gpu_node(Some(Vec::new())));
    let plan = world.converge(&[by_gpus()]);
    assert!(plan.matched.is_empty());
    assert_eq!((world.label("x"), world.label("nvidia.com/gpu.product")), (None, None));
}

#[test]
fn everything_but_missing_facts_takes_a_node_from_the_policy_as_ever() {
    let elsewhere = policy(
        "g",
        "{nodeSelector: {matchLabels: {pool: b}}, gpuSelector: {minCount: 1}, labels: {x: y}}",
    );
    for policies in [vec![], vec![elsewhere]] {
        let mut world = governed();
        world.gpu_node = None;
        world.converge(&policies);
        assert_eq!(
            (world.label("x"), world.label("nvidia.com/gpu.product")),
            (None, Some("Tesla-T4"))
        );
    }
}

#[test]
fn policy_by_gpus_adds_no_node_that_nobody_knows() {
    let mut world = World::sample();
    let before = world.snapshot();
    let plan = world.converge(&[by_gpus()]);
    assert_eq!(
        (world.snapshot(), plan.outcomes.get("g")),
        (before, None::<&PolicyOutcome>)
    );
}

#[test]
fn fact_labels_of_a_deleted_gpu_node_go_after_a_minute_and_not_before() {
    let label = |world: &World| world.label("nvidia.com/gpu.product").map(str::to_owned);
    let mut world = governed();
    world.gpu_node = None;
    let facts = world.facts();
    let (since, policies) = (world.now, PolicySet::new(&[]));
    let plan_at = |seconds: i64| {
        let now = since + jiff::SignedDuration::from_secs(seconds);
        plan_node(&policies, NodeContext::new(&facts, None, now).absent_since(Some(since)))
    };
    let soon = plan_at(59);
    assert_eq!(soon.recheck, Some(since + jiff::SignedDuration::from_secs(60)));
    json_patch::patch(&mut world.node, &soon.patch.unwrap()).unwrap();
    assert_eq!((label(&world).as_deref(), world.label("x")), (Some("Tesla-T4"), None));
    let facts = world.facts();
    let now = since + jiff::SignedDuration::from_secs(60);
    let plan = plan_node(&policies, NodeContext::new(&facts, None, now).absent_since(Some(since)));
    json_patch::patch(&mut world.node, &plan.patch.unwrap()).unwrap();
    assert_eq!(label(&world), None);
}

#[test]
fn a_removed_reference_to_the_node_comes_back_beside_others() {
    let mut world = governed();
    let other = serde_json::json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}]);
    world.gpu_node.as_mut().unwrap().metadata.owner_references = serde_json::from_value(other).unwrap();
    let facts = world.facts();
    let change = missing_owner(NodeContext::new(&facts, world.gpu_facts().as_ref(), world.now)).unwrap();
    let GpuNodeChange::Own { owners, .. } = change else {
        panic!("{change:?}")
    };
    let kinds: Vec<_> = owners
        .iter()
        .map(|owner| (owner.kind.as_str(), owner.uid.as_str()))
        .collect();
    assert_eq!(kinds, [("ConfigMap", "c"), ("Node", "u")]);
    world.gpu_node.as_mut().unwrap().metadata.owner_references = Some(owners);
    assert_eq!(
        missing_owner(NodeContext::new(&facts, world.gpu_facts().as_ref(), world.now)),
        None
    );
}
