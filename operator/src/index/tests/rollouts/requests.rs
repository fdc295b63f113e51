//! Requests to the agents of a node, and its turn in a rollout.

use super::*;

#[test]
fn request_goes_before_the_configuration_and_costs_the_node_no_turn() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    let version = scene.next_version();
    let known = scene.index.objects.nodes.get("a").unwrap().as_ref().clone();
    let asking = NodeFacts {
        recovered: Some("1970-01-01T00:00:00Z".to_owned()),
        resource_version: version,
        ..known
    };
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    scene.apply(IndexMessage::Nodes(WatchUpdate::applied(asking)));
    assert!(!scene.work_on("a"), "the request is written first");
    let gpu_node = |scene: &Scene| scene.index.objects.gpu_nodes.get("a").unwrap().clone();
    assert!(gpu_node(&scene).spec.recovered.is_some() && gpu_node(&scene).step.is_none());
    for name in ["b", "c", "d"] {
        assert!(!scene.work_on(name), "it is the turn of another node");
    }
    assert!(scene.work_on("a"), "it still is its turn");
    assert!(gpu_node(&scene).step.is_some());
}

/// Gives the node one label, or none.
fn labelled(scene: &mut Scene, name: &str, label: Option<(&str, &str)>) {
    let mut facts = scene.facts(name, &json!(label.into_iter().collect::<BTreeMap<_, _>>()));
    let known = scene.index.objects.nodes.get(name).unwrap().clone();
    (facts.owned, facts.ready) = (known.owned.clone(), known.ready);
    scene.apply(IndexMessage::Nodes(WatchUpdate::applied(facts)));
}

#[test]
fn node_that_is_released_before_its_turn_gets_it_when_it_is_back() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    assert_eq!(scene.due_nodes(), ["a"]);
    labelled(&mut scene, "a", Some(("gpunode.dev/release", "true")));
    assert_eq!(scene.due_nodes(), ["a", "b"]);
    assert!(!scene.work_on("a"), "the request is all that is written");
    assert!(scene.index.objects.gpu_nodes.get("a").unwrap().spec.release);
    for name in ["b", "c", "d"] {
        assert!(scene.work_on(name));
        scene.report(name, Agent::PutsInForce);
        scene.work_on(name);
    }
    labelled(&mut scene, "a", None);
    assert!(!scene.work_on("a"), "the end of the release is written first");
    assert!(scene.work_on("a"), "then it is its turn");
    assert!(
        scene.index.objects.gpu_nodes.get("a").unwrap().step.is_some(),
        "as one that worked before"
    );
}

#[test]
fn node_that_is_released_at_its_turn_keeps_it() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    assert!(scene.work_on("a"));
    let step = scene.index.objects.gpu_nodes.get("a").unwrap().step.clone();
    for label in [Some(("gpunode.dev/release", "true")), None] {
        labelled(&mut scene, "a", label);
        assert!(!scene.work_on("a"));
        let gpu_node = scene.index.objects.gpu_nodes.get("a").unwrap();
        assert_eq!((gpu_node.spec.release, &gpu_node.step), (label.is_some(), &step));
        assert!(!scene.work_on("b"), "one at a time");
    }
    scene.report("a", Agent::PutsInForce);
    scene.work_on("a");
    assert!(scene.work_on("b"));
}
