use super::*;
use crate::index::{
    cache::Gone,
    daemonsets::ALWAYS,
    work::{DaemonSetWork, NodeWork},
};
use gpunode_crds::Reason;
use gpunode_plan::{DISCOVERY_NAME, GpuNodeChange, MPS_NAME};
use k8s_openapi::api::{apps::v1::DaemonSetStatus, core::v1::Node};
use serde_json::json;

mod figures;

/// An index, and what followed from the last change.
struct Scene {
    index: Index,
    effects: Effects,
    version: u64,
}

impl Scene {
    /// An index that knows that there is nothing.
    fn warm() -> Self {
        let mut scene = Self::cold();
        scene.go(|index, now, effects| index.take_policies(Change::All(vec![]), now, effects));
        scene.go(|index, now, effects| index.take_nodes(Change::All(vec![]), now, effects));
        scene.go(|index, now, effects| index.take_gpu_nodes(Change::All(vec![]), now, effects));
        scene.go(|index, now, effects| index.take_daemonsets(Change::All(vec![]), now, effects));
        scene
    }

    fn cold() -> Self {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
        };
        Self {
            index: Index::new(pods, true),
            effects: Effects::default(),
            version: 0,
        }
    }

    fn go<R>(&mut self, work: impl FnOnce(&mut Index, Timestamp, &mut Effects) -> R) -> R {
        self.effects = Effects::default();
        work(&mut self.index, Timestamp::UNIX_EPOCH, &mut self.effects)
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn policy(&mut self, name: &str, spec: &str) -> GpuNodePolicy {
        let mut policy = GpuNodePolicy::new(name, serde_yaml::from_str(spec).unwrap());
        policy.metadata.uid = Some("u".to_owned());
        policy.metadata.resource_version = Some(self.next_version());
        policy
    }

    fn set_policy(&mut self, name: &str, spec: &str) {
        let policy = self.policy(name, spec);
        self.go(|index, now, effects| index.take_policies(Change::Set(policy), now, effects));
    }

    fn delete_policy(&mut self, name: &str) {
        let policy = self.policy(name, "{nodeSelector: {}}");
        self.go(|index, now, effects| index.take_policies(Change::Gone(Gone::of(&policy)), now, effects));
    }

    fn facts(&mut self, name: &str, labels: &serde_json::Value) -> NodeFacts {
        let version = self.next_version();
        let metadata = json!({"name": name, "uid": name, "labels": labels, "resourceVersion": version});
        NodeFacts::of(&serde_json::from_value::<Node>(json!({ "metadata": metadata })).unwrap())
    }

    fn set_node(&mut self, name: &str, labels: &serde_json::Value) {
        let facts = self.facts(name, labels);
        self.go(|index, now, effects| index.take_nodes(Change::Set(facts), now, effects));
    }

    fn node_work(&mut self, name: &str) -> Option<NodeWork> {
        self.go(|index, now, effects| index.node_work(name, now, effects))
    }

    /// Carries out the work for a node as the API server would.
    fn write_node(&mut self, name: &str) {
        let work = self.node_work(name).expect("there is something to write");
        self.patch_node(name, &work.patch.expect("the node is patched"));
    }

    fn patch_node(&mut self, name: &str, patch: &json_patch::Patch) {
        let facts = self.index.nodes.get(name).unwrap().clone();
        let mut node =
            json!({"metadata": {"name": name, "uid": name, "labels": facts.labels.to_map(), "annotations": {}}});
        node["status"]["conditions"] = json!([{"type": "Ready", "status": if facts.ready { "True" } else { "False" }}]);
        if let Some(owned) = &facts.owned {
            node["metadata"]["annotations"]["gpunode.dev/owned"] = json!(owned);
        }
        node["metadata"]["resourceVersion"] = json!(facts.resource_version);
        json_patch::patch(&mut node, patch).unwrap();
        node["metadata"]["resourceVersion"] = json!(self.next_version());
        let facts = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
        self.go(|index, now, effects| index.update_node(facts, now, effects));
    }

    fn write_status(&mut self, name: &str) {
        let work = self
            .index
            .status_work(name, Timestamp::UNIX_EPOCH)
            .expect("the status differs");
        let mut policy = (*work.policy).clone();
        policy.status = Some(work.status);
        policy.metadata.resource_version = Some(self.next_version());
        self.go(|index, now, effects| index.update_policy(policy, now, effects));
    }

    fn write_daemonset(&mut self, name: &str, edit: impl FnOnce(&mut DaemonSet)) {
        let (written, write) = match self.index.daemonset_work(name) {
            Some(DaemonSetWork::Create(daemonset)) => (*daemonset, Write::Create),
            Some(DaemonSetWork::Replace(daemonset)) => (*daemonset, Write::Change),
            other => panic!("{other:?}"),
        };
        let mut daemonset = written.clone();
        daemonset.metadata.resource_version = Some(self.next_version());
        edit(&mut daemonset);
        self.go(|index, now, effects| index.update_daemonset(daemonset, write, &written, now, effects));
    }

    fn woken(&self) -> Vec<&Key> {
        let mut keys: Vec<_> = self.effects.wakes.iter().map(|wake| &wake.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

fn node(name: &str) -> Key {
    Key::Node(name.to_owned())
}

fn status(name: &str) -> Key {
    Key::Status(name.to_owned())
}

const LABEL: &str = "{nodeSelector: {matchLabels: {pool: a}}, labels: {x: y}}";
const PLUGIN: &str = "{nodeSelector: {matchLabels: {pool: a}}, devicePlugin: {}}";

#[test]
fn nothing_is_planned_before_every_cache_is_warm() {
    let mut scene = Scene::cold();
    let owned = scene.facts("a", &json!({"x": "y"}));
    let owned = NodeFacts {
        owned: Some(r#"{"version":1,"labels":{"x":"y"}}"#.to_owned()),
        annotated: true,
        ..owned
    };
    scene.go(|index, now, effects| index.take_nodes(Change::All(vec![owned]), now, effects));
    scene.go(|index, now, effects| index.take_gpu_nodes(Change::All(vec![]), now, effects));
    scene.go(|index, now, effects| index.take_daemonsets(Change::All(vec![]), now, effects));
    assert!(
        !scene.index.is_warm() && scene.woken().is_empty(),
        "{:?}",
        scene.effects
    );
    scene.go(|index, now, effects| index.take_policies(Change::All(vec![]), now, effects));
    assert_eq!(scene.woken(), [&node("a")], "no policy wants what is on the node");
}

#[test]
fn change_of_a_node_touches_that_node_and_its_policies_alone() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_policy("q", "{nodeSelector: {matchLabels: {pool: b}}, labels: {x: y}}");
    scene.set_node("other", &json!({"pool": "b"}));
    scene.set_node("n", &json!({"pool": "a"}));
    assert_eq!(scene.woken(), [&node("n"), &status("p")]);
}

#[test]
fn heartbeat_wakes_nothing() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.set_node("n", &json!({"pool": "a"}));
    assert!(scene.woken().is_empty(), "{:?}", scene.effects);
}

#[test]
fn status_follows_the_node_until_nothing_is_left_to_write() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.write_status("p");
    scene.write_node("n");
    assert_eq!(scene.woken(), [&status("p")]);
    scene.write_status("p");
    assert_eq!(
        scene.index.counts()[0].1,
        NodeCounts {
            matched: 1,
            ready: 1,
            ..NodeCounts::default()
        }
    );
    for name in ALWAYS {
        assert!(
            matches!(scene.index.daemonset_work(name), Some(DaemonSetWork::Create(_))),
            "{name}"
        );
        scene.write_daemonset(name, |_| {});
    }
    scene.go(Index::wake_everything);
    let expected = ALWAYS.map(|name| Key::DaemonSet(name.to_owned()));
    assert!(
        expected.iter().all(|key| scene.woken().contains(&key)),
        "{:?}",
        scene.effects
    );
    for key in scene
        .effects
        .wakes
        .iter()
        .map(|wake| wake.key.clone())
        .collect::<Vec<_>>()
    {
        let is_settled = match &key {
            Key::Node(name) => scene.node_work(name).is_none(),
            Key::DaemonSet(name) => scene.index.daemonset_work(name).is_none(),
            Key::Status(name) => scene.index.status_work(name, Timestamp::now()).is_none(),
        };
        assert!(is_settled, "{key:?}");
    }
}

#[test]
fn deleted_policy_wakes_the_nodes_that_it_left_something_on() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.set_node("other", &json!({}));
    scene.write_node("n");
    scene.delete_policy("p");
    assert!(
        scene.woken().contains(&&node("n")) && !scene.woken().contains(&&node("other")),
        "{:?}",
        scene.effects
    );
    scene.write_node("n");
    assert_eq!(scene.node_work("n"), None);
    assert!(scene.index.status_work("p", Timestamp::now()).is_none());
}

#[test]
fn node_that_cannot_be_written_counts_as_failed_until_it_can() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    let written = |scene: &mut Scene, refusal: Option<&str>| {
        let refusal = refusal.map(str::to_owned);
        scene.go(|index, now, effects| index.node_written("n", refusal, now, effects));
    };
    written(&mut scene, Some("denied"));
    assert_eq!(scene.woken(), [&status("p")]);
    let failures = scene.index.status_work("p", Timestamp::now()).unwrap().status.failures;
    assert_eq!(
        (failures[0].reason.as_str(), failures[0].message.as_str()),
        ("WriteFailed", "denied")
    );
    written(&mut scene, Some("denied"));
    assert!(scene.woken().is_empty());
    written(&mut scene, None);
    assert_eq!(scene.index.counts()[0].1.updating, 1);
}

#[test]
fn conflict_is_told_when_it_comes_and_when_it_goes_but_not_by_a_new_leader() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a", "x": "mine"}));
    let told: Vec<_> = scene
        .effects
        .notices
        .iter()
        .map(|notice| (notice.reason.as_str(), notice.is_warning))
        .collect();
    assert_eq!(told, [(Reason::KeyOwnedByAnother.as_str(), true)]);
    scene.go(Index::wake_everything);
    assert!(scene.effects.notices.is_empty());
    scene.set_node("n", &json!({"pool": "a"}));
    let told: Vec<_> = scene
        .effects
        .notices
        .iter()
        .map(|notice| (notice.reason.as_str(), notice.is_warning))
        .collect();
    assert_eq!(told, [(Reason::NoConflict.as_str(), false)]);
}

#[test]
fn node_that_is_gone_is_not_counted() {
    let mut scene = Scene::warm();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    let gone = scene.facts("n", &json!({}));
    scene.go(|index, now, effects| index.take_nodes(Change::Gone(Gone::of(&gone)), now, effects));
    assert_eq!(
        (scene.woken(), scene.index.counts()[0].1.matched),
        (vec![&status("p")], 0)
    );
}

#[test]
fn daemonset_comes_with_the_device_plugin_is_repaired_and_goes_with_it() {
    let mut scene = Scene::warm();
    scene.set_policy("p", PLUGIN);
    let name = policy_daemonset_name("p");
    scene.write_daemonset(&name, |_| {});
    assert_eq!(scene.index.daemonset_work(&name), None);
    let mut edited = {
        let Index {
            daemonsets,
            set,
            policies,
            outcomes,
            ..
        } = &scene.index;
        daemonsets.desired(&name, set, policies, outcomes).unwrap()
    };
    edited.metadata.resource_version = Some(scene.next_version());
    edited.spec.as_mut().unwrap().min_ready_seconds = Some(5);
    scene.go(|index, now, effects| index.take_daemonsets(Change::Set(edited), now, effects));
    assert_eq!(scene.woken(), [&Key::DaemonSet(name.clone()), &status("p")]);
    scene.write_daemonset(&name, |_| {});
    scene.set_policy("p", LABEL);
    assert!(matches!(
        scene.index.daemonset_work(&name),
        Some(DaemonSetWork::Delete { .. })
    ));
}

#[test]
fn status_tells_of_a_daemonset_that_is_refused_and_of_agents_that_never_take_over() {
    let mut scene = Scene::warm();
    scene.set_policy("p", PLUGIN);
    let name = policy_daemonset_name("p");
    let told = |scene: &Scene, seconds| {
        let now = Timestamp::from_second(seconds).unwrap();
        let status = scene.index.status_work("p", now).unwrap().status;
        (
            status.conditions[0].reason.clone(),
            status.conditions[0].message.clone(),
        )
    };
    scene.go(|index, _, effects| index.daemonset_written(&name, Some("create daemonset: no"), effects));
    assert_eq!(scene.woken(), [&status("p")]);
    assert_eq!(
        told(&scene, 0),
        ("WriteFailed".to_owned(), "create daemonset: no".to_owned())
    );
    scene.go(|index, _, effects| index.daemonset_written(&name, None, effects));
    scene.write_daemonset(&name, |_| {});
    let mut counted = (**scene.index.daemonsets.live(&name).unwrap()).clone();
    let mut report = |scene: &mut Scene, second, (current, updated)| {
        counted.metadata.resource_version = Some(scene.next_version());
        counted.status = Some(DaemonSetStatus {
            desired_number_scheduled: 3,
            current_number_scheduled: current,
            updated_number_scheduled: Some(updated),
            ..DaemonSetStatus::default()
        });
        let now = Timestamp::from_second(second).unwrap();
        scene.go(|index, _, effects| index.take_daemonsets(Change::Set(counted.clone()), now, effects));
        scene.go(|index, _, effects| index.wake_when_late("p", now, effects));
        scene
            .effects
            .wakes
            .iter()
            .find_map(|wake| wake.at)
            .map(Timestamp::as_second)
    };
    assert_eq!(
        report(&mut scene, 0, (1, 1)),
        None,
        "a node without a pod has none to replace"
    );
    assert_eq!(report(&mut scene, 10, (2, 0)), Some(610));
    assert_eq!(report(&mut scene, 20, (2, 1)), Some(620));
    assert_eq!(
        report(&mut scene, 30, (3, 1)),
        Some(620),
        "a node that joins is no progress"
    );
    assert_eq!(
        report(&mut scene, 40, (2, 1)),
        Some(620),
        "and one that leaves again neither"
    );
    assert_eq!(told(&scene, 619).0, "NoMatchingNodes");
    assert_eq!(told(&scene, 620).0, "RolloutStopped");
    assert_eq!(report(&mut scene, 630, (2, 2)), None);
    assert_eq!(told(&scene, 9999).0, "NoMatchingNodes");
}

#[test]
fn daemonset_of_the_mps_daemons_needs_no_policy_and_comes_back() {
    let mut scene = Scene::warm();
    scene.write_daemonset(MPS_NAME, |_| {});
    scene.set_policy("p", PLUGIN);
    scene.delete_policy("p");
    assert_eq!(scene.index.daemonset_work(MPS_NAME), None);
    let live = (**scene.index.daemonsets.live(MPS_NAME).unwrap()).clone();
    scene.go(|index, now, effects| index.take_daemonsets(Change::Gone(Gone::of(&live)), now, effects));
    assert_eq!(scene.woken(), [&Key::DaemonSet(MPS_NAME.to_owned())]);
    assert!(matches!(
        scene.index.daemonset_work(MPS_NAME),
        Some(DaemonSetWork::Create(_))
    ));
}

#[test]
fn conditions_are_those_that_are_written_and_go_with_the_policy() {
    let mut scene = Scene::warm();
    scene.set_policy("p", "{nodeSelector: {}}");
    assert_eq!(scene.index.conditions(9), []);
    scene.write_status("p");
    let conditions = scene.index.conditions(9);
    assert_eq!(
        (conditions.len(), &conditions[0]),
        (5, &("p".to_owned(), ConditionType::Ready, true))
    );
    assert_eq!(scene.index.conditions(0), []);
    scene.delete_policy("p");
    assert_eq!(scene.index.conditions(9), []);
}

#[test]
fn daemonset_that_something_else_rewrites_is_not_written_for_ever() {
    let mut scene = Scene::warm();
    let insist = |daemonset: &mut DaemonSet| daemonset.spec.as_mut().unwrap().min_ready_seconds = Some(5);
    scene.write_daemonset(DISCOVERY_NAME, insist);
    assert_eq!(scene.index.daemonset_work(DISCOVERY_NAME), None);
    let mut counted = (**scene.index.daemonsets.live(DISCOVERY_NAME).unwrap()).clone();
    counted.metadata.resource_version = Some(scene.next_version());
    counted.status = Some(DaemonSetStatus {
        number_ready: 1,
        ..DaemonSetStatus::default()
    });
    scene.go(|index, now, effects| index.take_daemonsets(Change::Set(counted.clone()), now, effects));
    assert_eq!(
        scene.index.daemonset_work(DISCOVERY_NAME),
        None,
        "a new status is no new chance"
    );
    counted.metadata.resource_version = Some(scene.next_version());
    scene.go(|index, now, effects| index.take_daemonsets(Change::Gone(Gone::of(&counted)), now, effects));
    scene.write_daemonset(DISCOVERY_NAME, |_| {});
    let name = policy_daemonset_name("p");
    scene.set_policy("p", PLUGIN);
    scene.write_daemonset(&name, insist);
    assert_eq!(scene.index.daemonset_work(&name), None);
    scene.set_policy("p", "{nodeSelector: {}, image: another, devicePlugin: {}}");
    assert!(matches!(
        scene.index.daemonset_work(&name),
        Some(DaemonSetWork::Replace(_))
    ));
}

#[test]
fn policy_in_mode_preview_changes_nothing_and_tells_nobody() {
    let mut scene = Scene::warm();
    scene.set_node("n", &json!({"pool": "a", "x": "mine"}));
    scene.set_policy(
        "p",
        "{mode: Preview, nodeSelector: {}, labels: {x: y}, devicePlugin: {}}",
    );
    assert!(scene.effects.notices.is_empty() && !scene.woken().contains(&&node("n")));
    assert_eq!(scene.index.daemonset_work(&policy_daemonset_name("p")), None);
    assert_eq!(
        scene
            .index
            .status_work("p", Timestamp::now())
            .unwrap()
            .status
            .preview
            .len(),
        1
    );
}

#[test]
fn governed_node_gets_its_configuration_once() {
    let mut scene = Scene::warm();
    scene.set_policy("p", PLUGIN);
    scene.set_node("n", &json!({"pool": "a"}));
    let Some(GpuNodeChange::Create(mut gpu_node)) = scene.node_work("n").map(|work| work.gpu_node) else {
        panic!()
    };
    gpu_node.metadata.resource_version = Some(scene.next_version());
    scene.go(|index, now, effects| index.update_gpu_node(*gpu_node, Write::Create, now, effects));
    assert_eq!(scene.node_work("n").unwrap().gpu_node, GpuNodeChange::None);
}

#[test]
fn node_whose_gpus_change_is_planned_again_and_people_hear_why_it_leaves_a_policy() {
    let mut scene = Scene::warm();
    scene.set_node("n", &json!({}));
    scene.set_policy(
        "p",
        "{gpuSelector: {products: [Tesla-T4], minCount: 2}, labels: {x: y}}",
    );
    assert_eq!(scene.node_work("n"), None);
    for (count, matches) in [(2, true), (1, false)] {
        let version = scene.next_version();
        let gpu = |index: i32| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-T4", "memoryMiB": 15360});
        let gpus: Vec<_> = (0..count).map(gpu).collect();
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "resourceVersion": version}, "spec": {}, "status": {"gpus": gpus}});
        let gpu_node: GpuNode = serde_json::from_value(gpu_node).unwrap();
        scene.go(|index, now, effects| index.take_gpu_nodes(Change::Set(gpu_node), now, effects));
        assert!(scene.woken().contains(&&node("n")));
        let told: Vec<_> = scene
            .effects
            .notices
            .iter()
            .map(|it| (it.reason.as_str(), it.message.as_str()))
            .collect();
        let missing = "n: gpuSelector asks for 2 such GPUs, the node has 1 among 1 in the status of its GpuNode";
        assert_eq!(
            told,
            if matches {
                vec![]
            } else {
                vec![("GpusMissing", missing)]
            }
        );
    }
}

#[test]
fn daemonset_of_a_paused_policy_stays_as_it_is() {
    let mut scene = Scene::warm();
    let name = policy_daemonset_name("p");
    scene.set_policy("p", "{mode: Paused, nodeSelector: {}, devicePlugin: {}}");
    assert_eq!(scene.index.daemonset_work(&name), None, "none comes");
    scene.set_policy("p", "{nodeSelector: {}, devicePlugin: {}}");
    scene.write_daemonset(&name, |_| {});
    scene.set_policy("p", "{mode: Paused, nodeSelector: {}, devicePlugin: {}, image: other}");
    assert_eq!(scene.index.daemonset_work(&name), None);
    scene.delete_policy("p");
    assert!(matches!(
        scene.index.daemonset_work(&name),
        Some(DaemonSetWork::Delete { .. })
    ));
}

mod rollouts;
