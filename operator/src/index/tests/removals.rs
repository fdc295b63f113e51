//! Removals of what policies wrote that are gone.

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::sync::atomic::Ordering;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn name(index: usize) -> String {
    format!("n-{index:02}")
}

impl Scene {
    /// A policy that is in force on so many nodes.
    fn in_force(nodes: usize, spec: &str) -> Self {
        let mut scene = Self::synced();
        scene.set_policy("p", spec);
        for index in 0..nodes {
            scene.set_node(&name(index), &json!({"pool": "a"}));
            scene.write_node(&name(index));
        }
        scene
    }

    fn removal_at(&mut self, second: i64) -> Vec<String> {
        let key = WorkKey::Removal("p".to_owned());
        let write = self.go(|index, _, effects| index.planned_write(&key, at(second), effects));
        assert_eq!(write, None);
        self.settle(at(second));
        self.due_nodes().into_iter().map(str::to_owned).collect()
    }

    fn queued_removal(&self) -> Option<Timestamp> {
        let mut removals = self
            .effects
            .queued
            .iter()
            .filter(|queued| matches!(queued.key, WorkKey::Removal(_)));
        removals.next().and_then(|queued| queued.at)
    }

    fn events(&self) -> Vec<(&str, &str)> {
        let events = self.effects.events.iter();
        events
            .map(|event| (event.reason.as_str(), event.message.as_str()))
            .collect()
    }
}

#[test]
fn removal_from_many_nodes_reaches_ten_in_a_second_and_ends_when_the_policy_is_back() {
    let mut scene = Scene::in_force(30, LABEL);
    scene.delete_policy("p");
    assert!(scene.due_nodes().is_empty(), "{:?}", scene.effects);
    assert_eq!((scene.queued_removal(), scene.index.removal_nodes()), (Some(at(0)), 30));
    assert_eq!(scene.removal_at(0), (0..10).map(name).collect::<Vec<_>>());
    assert_eq!(scene.events().first().map(|(reason, _)| *reason), Some("RemovalPaced"));
    assert_eq!((scene.queued_removal(), scene.index.removal_nodes()), (Some(at(1)), 20));
    assert!(scene.node_write(&name(9)).is_some() && scene.node_write(&name(10)).is_none());
    assert_eq!(scene.removal_at(1), (10..20).map(name).collect::<Vec<_>>());
    assert!(scene.events().is_empty(), "it is told once");

    scene.set_policy("p", LABEL);
    assert_eq!(scene.index.removal_nodes(), 0);
    assert!(scene.removal_at(2).is_empty());
    assert_eq!(scene.node_write(&name(25)), None, "it has everything");
}

#[test]
fn policy_that_returns_as_a_preview_during_its_removal_keeps_nothing_and_shows_what_it_would_add() {
    let mut scene = Scene::in_force(30, LABEL);
    scene.delete_policy("p");
    for node in scene.removal_at(0) {
        scene.write_node(&node);
    }
    assert_eq!(scene.index.removal_nodes(), 20);

    scene.set_policy(
        "p",
        "{mode: Preview, nodeSelector: {matchLabels: {pool: a}}, labels: {x: y}}",
    );
    assert_eq!(scene.index.removal_nodes(), 0, "the policy is there");
    assert_eq!(
        scene.due_nodes(),
        (10..30).map(name).collect::<Vec<_>>(),
        "none keeps what the policy wrote"
    );
    for index in 10..30 {
        scene.write_node(&name(index));
        assert!(scene.due_nodes().is_empty());
    }
    assert!(scene.removal_at(1).is_empty() && scene.queued_removal().is_none());
    for index in 0..30 {
        let labels = scene.index.objects.nodes.get(&name(index)).unwrap().labels.to_map();
        assert_eq!(labels.get("x"), None, "{index}");
        assert_eq!(scene.node_write(&name(index)), None, "{index}");
    }
    // One more pass, for the nodes that changed.
    scene.go(|index, _, effects| index.planned_write(&WorkKey::Previews, at(600), effects));
    scene.settle(at(600));
    assert_eq!(scene.index.node_counts()[0].1.updating, 30);
}

#[test]
fn removal_from_few_nodes_is_not_paced() {
    let mut scene = Scene::in_force(20, LABEL);
    scene.delete_policy("p");
    assert_eq!((scene.due_nodes().len(), scene.queued_removal()), (20, None));
    assert_eq!(scene.index.removal_nodes(), 0);
}

#[test]
fn policy_that_is_missing_from_a_list_has_a_minute_to_come_back() {
    let mut scene = Scene::in_force(2, PLUGIN);
    let daemonset = policy_daemonset_name("p");
    scene.write_daemonset(&daemonset, |_| {});
    for second in [0, 100] {
        scene.list_at(at(second), IndexMessage::Policies, vec![]);
        let [(reason, message)] = scene.events()[..] else {
            panic!("{:?}", scene.events())
        };
        assert_eq!(reason, "PolicyMissing");
        assert!(
            message.contains("what it wrote on 2 nodes, stay for a minute"),
            "{message}"
        );
        assert_eq!(scene.queued_removal(), Some(at(second + 60)));
        assert!(scene.removal_at(second + 59).is_empty());
        let write = scene.go(|index, _, effects| index.node_write("n-00", at(second + 59), effects));
        assert!(write.is_none_or(|write| write.patch.is_none()));
        assert_eq!(scene.index.daemonset_write(&daemonset), None);
        if second == 0 {
            scene.set_policy("p", PLUGIN);
            assert_eq!(scene.index.removal_nodes(), 0);
        }
    }
    assert_eq!(scene.removal_at(160), ["n-00", "n-01"]);
    assert!(scene.queued().contains(&&WorkKey::DaemonSet(daemonset.clone())));
    let write = scene.index.daemonset_write(&daemonset);
    assert!(matches!(write, Some(DaemonSetWrite::Delete { .. })), "{write:?}");
}

#[test]
fn policy_that_is_missing_from_the_first_list_has_a_minute_to_come_back() {
    let mut scene = Scene::not_synced();
    let owned = NodeFacts {
        owned: Some(r#"{"version":1,"labels":{"x":"y"},"policies":["p"]}"#.into()),
        annotated: true,
        ..scene.facts("a", &json!({"x": "y"}))
    };
    scene.list(IndexMessage::Nodes, vec![owned]);
    scene.list(IndexMessage::GpuNodes, vec![]);
    scene.list(IndexMessage::DaemonSets, vec![]);
    scene.list(IndexMessage::Policies, vec![]);
    assert!(scene.due_nodes().is_empty(), "{:?}", scene.effects);
    scene.lead();
    assert!(scene.queued().contains(&&WorkKey::Removal("p".to_owned())));
    assert_eq!(scene.events().first().map(|(reason, _)| *reason), Some("PolicyMissing"));
    assert!(scene.due_nodes().is_empty(), "{:?}", scene.effects);
    assert!(scene.removal_at(59).is_empty());
    assert_eq!(scene.removal_at(60), ["a"]);
}

#[test]
fn policy_that_somebody_deletes_and_that_still_exists_is_not_missing() {
    let mut scene = Scene::in_force(2, LABEL);
    let mut policy = scene.policy("p", LABEL);
    policy.metadata.deletion_timestamp = Some(Time(at(0)));
    scene.apply(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    assert_eq!(scene.due_nodes().len(), 2);
    assert!(scene.events().is_empty());
}

#[test]
fn node_that_is_left_as_it_is_begins_no_removal_again_and_again() {
    let mut scene = Scene::in_force(1, LABEL);
    scene.delete_policy("p");
    scene.set_policy("q", "{nodeSelector: {}, labels: {other: works}}");
    assert!(scene.events().is_empty() && scene.queued_removal().is_none());
    assert_eq!(scene.index.removal_nodes(), 0);
}

#[test]
fn what_another_policy_wants_waits_for_no_removal() {
    let mut scene = Scene::in_force(21, LABEL);
    scene.set_policy("q", "{priority: -1, nodeSelector: {}, labels: {x: z}}");
    scene.delete_policy("p");
    assert_eq!(scene.due_nodes().len(), 21);
    scene.write_node("n-20");
    let labels = scene.index.objects.nodes.get("n-20").unwrap().labels.to_map();
    assert_eq!(labels.get("x").map(String::as_str), Some("z"));
}

#[test]
fn agents_of_a_deleted_policy_go_with_its_labels_and_the_daemonset_goes_last() {
    let mut scene = Scene::in_force(30, PLUGIN);
    let daemonset = policy_daemonset_name("p");
    scene.write_daemonset(&daemonset, |_| {});
    let label = gpunode_crds::policy_label("p");
    let has_agent = |scene: &Scene, node: &str| {
        let labels = scene.index.objects.nodes.get(node).unwrap().labels.to_map();
        labels.contains_key(&label)
    };
    scene.delete_policy("p");
    for second in 0..3 {
        assert_eq!(scene.index.daemonset_write(&daemonset), None, "second {second}");
        for node in scene.removal_at(second) {
            assert!(has_agent(&scene, &node));
            scene.write_node(&node);
            assert!(!has_agent(&scene, &node));
        }
    }
    let write = scene.index.daemonset_write(&daemonset);
    assert!(matches!(write, Some(DaemonSetWrite::Delete { .. })), "{write:?}");
}

#[test]
fn daemonset_whose_policy_is_gone_has_a_minute_and_one_of_somebody_else_stays() {
    let mut scene = Scene::in_force(0, PLUGIN);
    let (ours, foreign) = (policy_daemonset_name("p"), policy_daemonset_name("q"));
    scene.write_daemonset(&ours, |_| {});
    let known = (**scene.index.daemonsets.live(&ours).unwrap()).clone();
    let mut other = known.clone();
    other.metadata.name = Some(foreign.clone());

    let mut restarted = Scene::not_synced();
    restarted.list(IndexMessage::Policies, vec![]);
    restarted.list(IndexMessage::Nodes, vec![]);
    restarted.list(IndexMessage::GpuNodes, vec![]);
    restarted.list(IndexMessage::DaemonSets, vec![known.clone(), other]);
    restarted.lead();
    assert_eq!(
        restarted.events().first().map(|(reason, _)| *reason),
        Some("PolicyMissing")
    );
    // After a restore of etcd the DaemonSet may come before its policy.
    let mut restored = Scene::synced();
    restored.apply(IndexMessage::DaemonSets(WatchUpdate::applied(known)));
    assert_eq!(restored.queued_removal(), Some(at(60)));
    for mut scene in [restarted, restored] {
        assert_eq!(scene.index.daemonset_write(&ours), None);
        assert!(scene.removal_at(60).is_empty());
        assert!(scene.queued().contains(&&WorkKey::DaemonSet(ours.clone())));
        let write = scene.index.daemonset_write(&ours);
        assert!(matches!(write, Some(DaemonSetWrite::Delete { .. })), "{write:?}");
        assert_eq!(scene.index.daemonset_write(&foreign), None);
    }
}

#[test]
fn nodes_that_a_restore_of_etcd_lists_before_their_policy_have_a_minute() {
    let daemonset = policy_daemonset_name("p");
    for (knows_deletion, order) in [(false, "n"), (false, "dn"), (true, "n"), (true, "dn"), (true, "nd")] {
        let mut scene = Scene::synced();
        scene.set_policy("p", PLUGIN);
        scene.set_node("n", &json!({"pool": "a"}));
        scene.write_node("n");
        scene.write_daemonset(&daemonset, |_| {});
        let facts = (**scene.index.objects.nodes.get("n").unwrap()).clone();
        let agents = (**scene.index.daemonsets.live(&daemonset).unwrap()).clone();
        if knows_deletion {
            scene.delete_policy("p");
            scene.write_node("n");
            scene.apply(IndexMessage::DaemonSets(WatchUpdate::Deleted(deleted(&agents))));
        } else {
            scene = Scene::synced();
        }
        for kind in order.chars() {
            if kind == 'n' {
                scene.list(IndexMessage::Nodes, vec![facts.clone()]);
            } else {
                scene.list(IndexMessage::DaemonSets, vec![agents.clone()]);
            }
            assert_eq!(
                scene.index.daemonset_write(&daemonset),
                None,
                "{knows_deletion} {order}"
            );
        }
        assert_eq!(patch_at(&mut scene, 59), None, "{knows_deletion} {order}");
        assert_eq!(scene.removal_at(60), ["n"], "{knows_deletion} {order}");
    }
}

#[test]
fn what_another_policy_wants_waits_while_a_missing_policy_may_come_back() {
    let base = "{nodeSelector: {}, labels: {x: z}, devicePlugin: {passDeviceSpecs: true}}";
    let mut scene = Scene::synced();
    scene.set_policy("p", "{priority: 1, nodeSelector: {}, labels: {x: y}, devicePlugin: {}}");
    scene.set_node("n", &json!({}));
    let write = scene.node_write("n").unwrap();
    let GpuNodeChange::Create(mut gpu_node) = write.gpu_node else {
        panic!()
    };
    gpu_node.metadata.resource_version = Some(scene.next_version());
    let created = Box::new(GpuNodeFacts::of(*gpu_node));
    scene.written(WrittenObject::GpuNode(created, WriteKind::Create));
    scene.patch_node("n", &write.patch.unwrap());
    scene.set_policy("base", base);
    assert_eq!(patch_at(&mut scene, 0), None);

    let listed = scene.policy("base", base);
    scene.list(IndexMessage::Policies, vec![listed.into()]);
    assert_eq!(patch_at(&mut scene, 59), None, "label, agent and record stay");
    let recheck = QueuedKey {
        key: node("n"),
        class: WorkClass::Ordinary,
        at: Some(at(60)),
    };
    assert!(scene.effects.queued.contains(&recheck), "{:?}", scene.effects);
    let patch = patch_at(&mut scene, 60).unwrap();
    assert!(patch.contains(r#""path":"/metadata/labels/x","value":"z""#), "{patch}");
}

#[test]
fn page_of_a_list_is_searched_for_missing_policies_by_its_changed_nodes_alone() {
    let mut scene = Scene::synced();
    scene.set_policy("p", "{nodeSelector: {}, labels: {x: y}}");
    for index in 0..20 {
        let name = format!("n-{index}");
        scene.set_node(&name, &json!({}));
        scene.write_node(&name);
    }
    let page = scene.index.objects.nodes.iter().map(|node| (**node).clone());
    let mut page: Vec<NodeFacts> = page.take(5).collect();
    page[3].owned = Some(r#"{"version":1,"labels":{"x":"y"},"policies":["gone"]}"#.into());
    page[3].resource_version = scene.next_version();
    let changed = page[3].name.clone();
    scene.apply(IndexMessage::Nodes(WatchUpdate::ListStarted));
    let before = scene.index.objects.records.load(Ordering::Relaxed);
    scene.apply(IndexMessage::Nodes(WatchUpdate::ListPage(page)));
    assert_eq!(scene.index.objects.records.load(Ordering::Relaxed), before + 1);
    assert_eq!(scene.index.objects.removals.policies(), ["gone"]);
    assert_eq!(
        scene.index.objects.removals.departing(&changed),
        BTreeSet::from(["gone".to_owned()])
    );
}
