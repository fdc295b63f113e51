//! The label that places MPS daemons stays while a configuration needs them or one still runs.

use crate::world::{World, now, policy};
use gpunode_crds::{GpuNode, GpuNodePolicy, GpuNodeSpec, GpuNodeStatus, MpsDaemon, MpsDaemonState};
use gpunode_plan::{GpuNodeChange, GpuNodeFacts, NodeContext, NodeFacts, PolicySet, plan_node};
use serde_json::json;

const LABEL: &str = "gpunode.dev/mps";

fn mps() -> GpuNodePolicy {
    policy(
        "p",
        "{nodeSelector: {matchLabels: {pool: a}}, devicePlugin: {resources: [{name: nvidia.com/gpu, sharing: {strategy: Mps, replicas: 10}}]}}",
    )
}

fn whole() -> GpuNodePolicy {
    policy("p", "{nodeSelector: {matchLabels: {pool: a}}, devicePlugin: {}}")
}

/// Returns an agent's report about one daemon.
fn with_daemon(state: MpsDaemonState) -> GpuNode {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    let daemon = MpsDaemon {
        device: "GPU-1".to_owned(),
        state,
    };
    gpu_node.status = Some(GpuNodeStatus {
        mps_daemons: vec![daemon],
        ..GpuNodeStatus::default()
    });
    gpu_node
}

#[test]
fn node_whose_configuration_wants_mps_gets_the_label_in_the_same_patch_and_loses_it() {
    let mut world = World::sample();
    let before = world.snapshot();
    world.converge(&[mps()]);
    assert_eq!(
        (world.label(LABEL), world.label("gpunode.dev/governed")),
        (Some("true"), Some("true"))
    );
    assert!(world.record().unwrap().contains(r#""gpunode.dev/mps":"true""#));
    assert_eq!(world.plan(&[mps()]).patch, None);
    world.converge(&[whole()]);
    assert_eq!(
        (world.label(LABEL), world.label("gpunode.dev/governed")),
        (None, Some("true"))
    );
    world.converge(&[mps()]);
    world.set_label("pool", Some("b"));
    world.converge(&[mps()]);
    world.wait(60);
    world.converge(&[mps()]);
    world.set_label("pool", Some("a"));
    assert_eq!(world.snapshot(), before);
}

#[test]
fn label_outlives_configuration_and_policy_until_no_daemon_is_left() {
    for state in [
        MpsDaemonState::Answering,
        MpsDaemonState::NotAnswering,
        MpsDaemonState::Stopping,
    ] {
        let mut world = World::sample();
        let before = world.snapshot();
        world.converge(&[mps()]);
        world.gpu_node = Some(with_daemon(state));
        for policies in [vec![whole()], vec![]] {
            world.converge(&policies);
            assert_eq!(world.label(LABEL), Some("true"), "{policies:?}");
            assert_eq!(world.plan(&policies).patch, None);
        }
        assert!(world.plan(&[]).conflicts.is_empty());
        world.gpu_node = None;
        world.converge(&[]);
        world.wait(60);
        world.converge(&[]);
        assert_eq!(world.snapshot(), before);
    }
}

#[test]
fn label_is_gpunodes_own_with_or_without_a_record_and_whatever_its_value() {
    let mut world = World::sample();
    let before = world.snapshot();
    world.set_label(LABEL, Some("theirs"));
    let plan = world.converge(&[mps()]);
    assert_eq!((world.label(LABEL), plan.conflicts), (Some("true"), vec![]));
    world.set_record(None);
    world.converge(&[mps()]);
    world.set_record(None);
    world.converge(&[]);
    assert_eq!(world.snapshot(), before);
}

#[test]
fn label_stays_on_a_node_that_is_left_as_it_is() {
    let mut world = World::sample();
    world.converge(&[mps()]);
    let other = policy("other", "{nodeSelector: {}, devicePlugin: {}}");
    let plan = world.converge(&[mps(), other]);
    assert!(plan.is_configuration_disputed(), "{:?}", plan.disagreements);
    assert_eq!(world.label(LABEL), Some("true"));
    world.set_label("gpunode.dev/ignore", Some(""));
    world.converge(&[]);
    assert_eq!(world.label(LABEL), Some("true"));
}

#[test]
fn no_policy_can_select_by_the_label_or_write_it() {
    let mut world = World::sample();
    let by_label = policy(
        "q",
        "{nodeSelector: {matchLabels: {gpunode.dev/mps: 'true'}}, labels: {x: y}}",
    );
    world.converge(&[mps(), by_label.clone()]);
    assert_eq!(world.converge(&[mps(), by_label]).matched, ["p"]);
    let mut world = World::sample();
    world.converge(&[policy(
        "q",
        "{nodeSelector: {}, labels: {gpunode.dev/mps: 'true', a: b}}",
    )]);
    assert_eq!((world.label(LABEL), world.label("a")), (None, Some("b")));
}

#[test]
fn preview_names_the_label() {
    let mut preview = mps();
    preview.spec.mode = Some(gpunode_crds::PolicyMode::Preview);
    let world = World::sample();
    let plan = world.plan(&[preview.clone()]);
    assert_eq!(
        plan.previews["p"].set_labels.get(LABEL).map(String::as_str),
        Some("true")
    );
    // A daemon that still runs brings the label by itself.
    let facts: NodeFacts = world.facts();
    let plan = plan_node(
        &PolicySet::new(&[preview]),
        NodeContext::new(
            &facts,
            Some(&GpuNodeFacts::of(with_daemon(MpsDaemonState::Answering))),
            now(),
        ),
    );
    assert_eq!(plan.previews["p"].set_labels.get(LABEL), None);
}

#[test]
fn refused_configuration_places_no_daemon_and_ends_none() {
    let refused = policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {resources: [{name: nodomain, sharing: {strategy: Mps, replicas: 2}}]}}",
    );
    let mut world = World::sample();
    world.converge(std::slice::from_ref(&refused));
    assert_eq!(world.label(LABEL), None);
    world.gpu_node = Some(with_daemon(MpsDaemonState::Answering));
    world.converge(&[refused]);
    assert_eq!(world.label(LABEL), Some("true"));
}

#[test]
fn gpu_node_that_says_that_a_daemon_is_left_is_not_deleted() {
    let mut world = World::sample();
    let mut gpu_node = with_daemon(MpsDaemonState::Stopping);
    let GpuNodeChange::Create(created) = world.plan(&[mps()]).gpu_node else {
        panic!()
    };
    gpu_node.spec = created.spec;
    gpu_node.metadata.resource_version = Some("7".to_owned());
    world.gpu_node = Some(gpu_node);
    let withdrawn = GpuNodeChange::Configure {
        resource_version: "7".to_owned(),
        config: None,
        step: None,
    };
    assert_eq!(world.plan(&[]).gpu_node, withdrawn);
    world.gpu_node.as_mut().unwrap().status = Some(serde_json::from_value(json!({})).unwrap());
    assert!(matches!(world.plan(&[]).gpu_node, GpuNodeChange::Delete { .. }));
}
