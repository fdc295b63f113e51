//! `GpuNode` objects that somebody deletes, and clusters without any.

use super::*;
use gpunode_crds::{Agent, GpuDevice, GpuNodeStatus};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A node whose agent reports a GPU, and its `GpuNode`.
fn reported() -> (Scene, GpuNodeFacts) {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.metadata.resource_version = Some(scene.next_version());
    let gpu = GpuDevice {
        product: "Tesla-T4".to_owned(),
        memory_mib: 15360,
        ..GpuDevice::default()
    };
    gpu_node.status = Some(GpuNodeStatus {
        agent: Some(Agent::default()),
        gpus: vec![gpu],
        ..GpuNodeStatus::default()
    });
    let gpu_node = GpuNodeFacts::of(gpu_node);
    scene.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node.clone())));
    (scene, gpu_node)
}

#[test]
fn fact_labels_of_a_deleted_gpu_node_go_after_a_minute_unless_it_is_back() {
    let is_removed_at = |scene: &mut Scene, second| {
        let removal = r#""remove","path":"/metadata/labels/nvidia.com~1gpu.product""#;
        patch_at(scene, second).is_some_and(|patch| patch.contains(removal))
    };
    for is_back in [false, true] {
        let (mut scene, mut gpu_node) = reported();
        scene.write_node("n");
        let deletion = IndexMessage::GpuNodes(WatchUpdate::Deleted(deleted(&gpu_node)));
        scene.apply_at(at(100), deletion);
        if is_back {
            gpu_node.resource_version = scene.next_version();
            let update = IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node));
            scene.apply_at(at(130), update);
        }
        assert!(!is_removed_at(&mut scene, 159));
        assert_eq!(is_removed_at(&mut scene, 160), !is_back);
    }
}

#[test]
fn installation_is_the_first_one_without_a_gpu_node_and_without_a_record() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    assert!(scene.index.is_first_install());
    let (mut scene, gpu_node) = reported();
    assert!(!scene.index.is_first_install(), "there is a GpuNode");
    scene.write_node("n");
    scene.apply(IndexMessage::GpuNodes(WatchUpdate::Deleted(deleted(&gpu_node))));
    assert!(!scene.index.is_first_install(), "the node has a record");
}
