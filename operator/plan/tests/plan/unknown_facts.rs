//! Nodes whose GPUs no agent has reported: their `GpuNode` is gone, new or unreadable.

use crate::world::{World, policy};
use gpunode_crds::{Agent, GpuDevice, GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus};
use gpunode_plan::{NodeContext, PolicyOutcome, PolicySet, explain};

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
            NodeContext::new(&world.facts(), world.gpu_node.as_ref(), world.now),
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
