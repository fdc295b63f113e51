//! Nodes whose GPUs NVIDIA's DRA driver serves.

use super::*;
use crate::index::dra_nodes::SliceOwner;

fn slice(scene: &mut Scene, node: &str) -> SliceOwner {
    SliceOwner {
        name: format!("{node}-gpu.nvidia.com-x"),
        version: scene.next_version(),
        node: Some(node.to_owned()),
    }
}

/// Sets the Ready condition of a node.
fn set_ready(scene: &mut Scene, name: &str, status: &str, since: Timestamp) {
    let version = scene.next_version();
    let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": since.to_string()});
    let node =
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}, "status": {"conditions": [ready]}});
    let facts = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
    scene.apply_at(since, IndexMessage::Nodes(WatchUpdate::applied(facts)));
}

/// Sets the condition of a `GpuNode` that NVIDIA's driver answers.
fn set_driver(scene: &mut Scene, name: &str, status: &str, since: Timestamp) {
    let mut gpu_node = (**scene.index.objects.gpu_nodes.get(name).unwrap()).clone();
    let condition = json!({"type": "DriverAvailable", "status": status, "reason": "x", "message": "", "lastTransitionTime": since.to_string()});
    set_status(&mut gpu_node, json!({"conditions": [condition]}));
    gpu_node.resource_version = scene.next_version();
    scene.apply_at(since, IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
}

/// A cluster with a reported `GpuNode` for each of two nodes.
fn scene() -> Scene {
    let mut scene = Scene::synced();
    for name in ["a", "b"] {
        set_ready(&mut scene, name, "True", at(0));
        let version = scene.next_version();
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "spec": {},
            "metadata": {"name": name, "uid": format!("g-{name}"), "resourceVersion": version,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}]}});
        let gpu_node = GpuNodeFacts::of(serde_json::from_value(object).unwrap());
        scene.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
    }
    scene
}

/// Returns what the next write of a node would say about the driver; `None` if it says nothing.
fn request(scene: &mut Scene, now: Timestamp, node: &str) -> Option<bool> {
    let write = scene.go(|index, _, effects| index.node_write(node, now, effects))?;
    match write.gpu_node {
        GpuNodeChange::Requests { served_by_dra, .. } => Some(served_by_dra),
        _ => None,
    }
}

/// Stores in the `GpuNode` whether the driver serves the GPUs.
fn store(scene: &mut Scene, node: &str, served_by_dra: bool) {
    let mut gpu_node = (**scene.index.objects.gpu_nodes.get(node).unwrap()).clone();
    Arc::make_mut(&mut gpu_node.spec).served_by_dra = served_by_dra;
    gpu_node.resource_version = scene.next_version();
    scene.written(WrittenObject::GpuNode(Box::new(gpu_node), WriteKind::Update));
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn queued(scene: &Scene) -> BTreeSet<&WorkKey> {
    scene.effects.queued.iter().map(|queued| &queued.key).collect()
}

fn assert_looks_again(scene: &Scene, node: &str, expected: Timestamp) {
    let key = WorkKey::Node(node.to_owned());
    let recheck = scene.effects.queued.iter().find(|queued| queued.key == key);
    assert_eq!(
        recheck.and_then(|queued| queued.at),
        Some(expected),
        "{:?}",
        scene.effects.queued
    );
}

#[test]
fn agents_of_a_node_with_slices_are_told_and_no_other_ones() {
    let mut scene = scene();
    let of_a = slice(&mut scene, "a");
    scene.list(IndexMessage::ResourceSlices, vec![]);
    scene.apply(IndexMessage::ResourceSlices(WatchUpdate::applied(of_a)));
    assert!(
        queued(&scene).contains(&WorkKey::Node("a".to_owned())),
        "{:?}",
        scene.effects.queued
    );
    assert!(!queued(&scene).contains(&WorkKey::Node("b".to_owned())));
    assert_eq!(
        [request(&mut scene, at(0), "a"), request(&mut scene, at(0), "b")],
        [Some(true), None]
    );
    store(&mut scene, "a", true);
    assert_eq!(request(&mut scene, at(0), "a"), None, "all is said");
}

#[test]
fn what_the_gpu_node_says_stands_until_the_slices_are_known() {
    let mut scene = scene();
    store(&mut scene, "a", true);
    assert_eq!(request(&mut scene, at(0), "a"), None);
    scene.list_at(at(1000), IndexMessage::ResourceSlices, vec![]);
    assert_looks_again(&scene, "a", at(1120));
    assert_eq!(
        request(&mut scene, at(1119), "a"),
        None,
        "its slices may have gone just before this operator started"
    );
    assert_eq!(request(&mut scene, at(1120), "a"), Some(false));
}

#[test]
fn agents_serve_again_two_minutes_after_the_last_slice() {
    let mut scene = scene();
    let of_a = slice(&mut scene, "a");
    scene.list(IndexMessage::ResourceSlices, vec![of_a]);
    store(&mut scene, "a", true);
    scene.list_at(at(1000), IndexMessage::ResourceSlices, vec![]);
    assert_looks_again(&scene, "a", at(1120));
    assert_eq!(request(&mut scene, at(1119), "a"), None);
    assert_eq!(request(&mut scene, at(1120), "a"), Some(false));
}

#[test]
fn two_minutes_begin_when_node_and_driver_are_back() {
    let mut scene = scene();
    let of_a = slice(&mut scene, "a");
    scene.list(IndexMessage::ResourceSlices, vec![of_a]);
    store(&mut scene, "a", true);
    set_ready(&mut scene, "a", "False", at(1000));
    scene.list_at(at(1030), IndexMessage::ResourceSlices, vec![]);
    assert_eq!(request(&mut scene, at(2000), "a"), None, "the node reboots");
    set_ready(&mut scene, "a", "True", at(2000));
    set_driver(&mut scene, "a", "False", at(2010));
    assert_eq!(request(&mut scene, at(3000), "a"), None, "the driver is compiled");
    set_driver(&mut scene, "a", "True", at(3000));
    assert_eq!(request(&mut scene, at(3119), "a"), None);
    assert_eq!(request(&mut scene, at(3120), "a"), Some(false));
}
