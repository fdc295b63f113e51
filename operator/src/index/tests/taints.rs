//! Taints that evict pods reach a part of the nodes at a time.

use super::*;
use gpunode_plan::NodeDrain;

const NODES: [&str; 3] = ["a", "b", "c"];
const EVICTING: &str =
    "{nodeSelector: {}, taints: [{key: k, effect: NoExecute}], rollout: {maxUnavailable: 1, progressDeadline: 5m}}";

impl Scene {
    /// Three nodes that are Ready, and then the policy.
    fn evicting() -> Self {
        let mut scene = Self::synced();
        for name in NODES {
            let version = scene.next_version();
            let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": version},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let facts = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
            scene.apply(IndexMessage::Nodes(WatchUpdate::applied(facts)));
        }
        scene.set_policy("p", EVICTING);
        scene
    }

    fn drain_of(&self, name: &str) -> NodeDrain {
        self.index.drain(name).expect("pods are evicted").taints.clone()
    }

    fn ready_message(&self) -> String {
        let status = self.index.policy_status_write("p", Timestamp::UNIX_EPOCH);
        let status = status.expect("the status differs").status;
        ConditionType::Ready.find(&status.conditions).unwrap().message.clone()
    }
}

#[test]
fn new_taint_reaches_the_next_node_when_no_pod_is_left_on_the_one_before() {
    let mut scene = Scene::evicting();
    assert_eq!(scene.ready_message(), "NoExecute taints: 0 of 3 nodes are done");
    for (index, name) in NODES.into_iter().enumerate() {
        assert_eq!(scene.due_nodes(), [name]);
        for other in NODES.into_iter().skip(index + 1) {
            assert_eq!(scene.node_write(other), None, "it is the turn of {name}");
        }
        scene.write_node(name);
        assert_eq!(scene.effects.drains, [name]);
        assert!(scene.due_nodes().is_empty(), "{:?}", scene.effects);
        if index == 0 {
            let message = "NoExecute taints: 0 of 3 nodes are done; pods leave a";
            assert_eq!(scene.ready_message(), message);
        }
        let drain = scene.drain_of(name);
        let node = name.to_owned();
        scene.apply(IndexMessage::Drained { node, drain });
        assert!(scene.index.drain(name).is_none());
    }
    assert!(scene.due_nodes().is_empty());
    assert_eq!(scene.ready_message(), "in force on 3 of 3 matched nodes");
}

#[test]
fn next_node_gets_its_turn_at_the_deadline_although_pods_stay() {
    let mut scene = Scene::evicting();
    scene.write_node("a");
    let at = |second| Timestamp::from_second(second).unwrap();
    scene.go(|index, _, effects| index.node_write("a", at(299), effects));
    assert!(scene.due_nodes().is_empty());
    assert!(scene.effects.queued.contains(&QueuedKey {
        key: node("a"),
        class: WorkClass::Ordinary,
        at: Some(at(300))
    }));
    scene.go(|index, _, effects| index.node_write("a", at(300), effects));
    assert_eq!(scene.due_nodes(), ["b"]);
    assert!(scene.index.drain("a").is_none());
}

#[test]
fn node_that_refuses_the_taint_lets_the_others_go_first() {
    let mut scene = Scene::evicting();
    assert!(scene.node_write("a").is_some());
    scene.finished(node("a"), WriteResult::Refused("no".to_owned()));
    assert_eq!(scene.due_nodes(), ["b"]);
    assert_eq!(scene.node_write("a"), None);
}

#[test]
fn new_leader_goes_on_where_the_one_before_was() {
    let mut scene = Scene::evicting();
    scene.write_node("a");
    scene.lead();
    assert_eq!(
        (scene.effects.drains.clone(), scene.due_nodes()),
        (vec!["a".to_owned()], vec![])
    );
    // So does a process that has just started.
    let facts: Vec<_> = NODES
        .iter()
        .map(|name| (**scene.index.objects.nodes.get(name).unwrap()).clone())
        .collect();
    let mut other = Scene::not_synced();
    let policy = other.policy("p", EVICTING);
    other.list(IndexMessage::Policies, vec![policy.into()]);
    other.list(IndexMessage::Nodes, facts);
    other.list(IndexMessage::GpuNodes, vec![]);
    other.list(IndexMessage::DaemonSets, vec![]);
    other.lead();
    assert_eq!(
        (other.effects.drains.clone(), other.due_nodes()),
        (vec!["a".to_owned()], vec![])
    );
}

#[test]
fn node_that_goes_makes_room_for_the_next() {
    let mut scene = Scene::evicting();
    scene.write_node("a");
    let gone = scene.facts("a", &json!({}));
    scene.apply(IndexMessage::Nodes(WatchUpdate::Deleted(deleted(&gone))));
    assert_eq!(scene.due_nodes(), ["b"]);
    assert!(scene.index.drain("a").is_none());
}
