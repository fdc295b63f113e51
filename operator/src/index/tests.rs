use super::*;
use crate::index::{
    cache::{DeletedObject, WatchUpdate},
    daemonsets::ALWAYS,
    effects::QueuedKey,
    watched_policy::{UnreadablePolicy, WatchedPolicy},
};
use gpunode_crds::{GpuNode, GpuNodeSpec, Reason};
use gpunode_plan::{AgentImages, DISCOVERY_NAME, GpuNodeChange, HostPaths, MPS_NAME, Taint};
use jiff::SignedDuration;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetStatus},
        core::v1::Node,
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use serde_json::json;
use std::sync::Arc;

mod absences;
mod dra;
mod figures;
mod previews;
mod removals;
mod rollouts;
mod scale;
mod sweeps;
mod taints;

/// An index, and the effects of the last change.
struct Scene {
    index: ClusterIndex,
    effects: Effects,
    version: u64,
}

impl Scene {
    /// An index of a leader that has synced with an empty cluster.
    fn synced() -> Self {
        let mut scene = Self::not_synced();
        scene.list(IndexMessage::Policies, vec![]);
        scene.list(IndexMessage::Nodes, vec![]);
        scene.list(IndexMessage::GpuNodes, vec![]);
        scene.list(IndexMessage::DaemonSets, vec![]);
        scene.lead();
        scene
    }

    /// An index of a standby without any list.
    fn not_synced() -> Self {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        Self {
            index: ClusterIndex::new(pods, true),
            effects: Effects::default(),
            version: 0,
        }
    }

    fn go<R>(&mut self, work: impl FnOnce(&mut ClusterIndex, Timestamp, &mut Effects) -> R) -> R {
        self.effects = Effects::default();
        work(&mut self.index, Timestamp::UNIX_EPOCH, &mut self.effects)
    }

    fn apply(&mut self, message: IndexMessage) {
        self.apply_at(Timestamp::UNIX_EPOCH, message);
    }

    /// Applies a message, and makes all plans that are due then.
    fn apply_at(&mut self, now: Timestamp, message: IndexMessage) {
        self.go(|index, _, effects| index.apply(message, now, effects));
        self.settle(now);
    }

    /// Begins to lead, and makes all plans that are due then.
    fn lead(&mut self) {
        self.go(ClusterIndex::lead);
        self.settle(Timestamp::UNIX_EPOCH);
    }

    /// Makes all plans that are due. Keys of nodes stay queued where there is a write or a permit.
    fn settle(&mut self, now: Timestamp) {
        loop {
            let queued = std::mem::take(&mut self.effects.queued);
            let is_due = |queued: &QueuedKey| match &queued.key {
                WorkKey::Node(name) => queued.at.is_none() && self.index.is_plan_due(name),
                WorkKey::Sweep | WorkKey::Previews => queued.at.is_none_or(|at| at <= now),
                _ => false,
            };
            let (due, others): (Vec<_>, Vec<_>) = queued.into_iter().partition(is_due);
            self.effects.queued = others;
            if due.is_empty() {
                return;
            }
            for QueuedKey { key, class, .. } in due {
                let WorkKey::Node(name) = &key else {
                    assert_eq!(self.index.planned_write(&key, now, &mut self.effects), None);
                    continue;
                };
                if !self.index.is_plan_due(name) {
                    continue;
                }
                if self.index.objects.nodes.get(name).is_none() {
                    assert_eq!(self.index.planned_write(&key, now, &mut self.effects), None);
                    continue;
                }
                let plan = self.index.plan(name, now, &mut self.effects);
                self.index.advance_rollouts(&mut self.effects);
                let rollout = self.index.outcomes.rollout_of(name);
                let is_permitted = rollout.is_some_and(|(_, rollout)| rollout.is_granted(name));
                let is_permitted = is_permitted || !self.index.outcomes.taint_permits(name).is_empty();
                if plan.is_some_and(|plan| plan.has_work() || is_permitted) {
                    self.effects.queue_as(class, key);
                }
            }
        }
    }

    fn list<T>(&mut self, message: fn(WatchUpdate<T>) -> IndexMessage, objects: Vec<T>) {
        self.list_at(Timestamp::UNIX_EPOCH, message, objects);
    }

    /// A whole list; the effects are those of all its parts.
    fn list_at<T>(&mut self, now: Timestamp, message: fn(WatchUpdate<T>) -> IndexMessage, objects: Vec<T>) {
        self.go(|index, _, effects| {
            for update in IndexMessage::list(message, objects) {
                index.apply(update, now, effects);
            }
        });
        self.settle(now);
    }

    /// The API server accepts a request of a write.
    fn written(&mut self, object: WrittenObject) {
        self.apply(IndexMessage::Written(object));
    }

    /// A write ends.
    fn finished(&mut self, key: WorkKey, result: WriteResult) {
        self.apply(IndexMessage::Finished(FinishedWrite { key, result }));
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
        self.apply(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    }

    fn delete_policy(&mut self, name: &str) {
        let policy = self.policy(name, "{nodeSelector: {}}");
        self.apply(IndexMessage::Policies(WatchUpdate::Deleted(deleted(&policy))));
    }

    fn facts(&mut self, name: &str, labels: &serde_json::Value) -> NodeFacts {
        let version = self.next_version();
        let metadata = json!({"name": name, "uid": name, "labels": labels, "resourceVersion": version});
        NodeFacts::of(&serde_json::from_value::<Node>(json!({ "metadata": metadata })).unwrap())
    }

    fn set_node(&mut self, name: &str, labels: &serde_json::Value) {
        let facts = self.facts(name, labels);
        self.apply(IndexMessage::Nodes(WatchUpdate::applied(facts)));
    }

    fn node_write(&mut self, name: &str) -> Option<NodeWrite> {
        self.go(|index, now, effects| index.node_write(name, now, effects))
    }

    /// Carries out the write of a node as the API server would.
    fn write_node(&mut self, name: &str) {
        let write = self.node_write(name).expect("there is something to write");
        self.patch_node(name, &write.patch.expect("the node is patched"));
    }

    fn patch_node(&mut self, name: &str, patch: &json_patch::Patch) {
        let facts = self.index.objects.nodes.get(name).unwrap().clone();
        let mut node =
            json!({"metadata": {"name": name, "uid": name, "labels": facts.labels.to_map(), "annotations": {}}});
        node["status"]["conditions"] = json!([{"type": "Ready", "status": if facts.ready { "True" } else { "False" }}]);
        if let Some(owned) = facts.owned.as_deref() {
            node["metadata"]["annotations"]["gpunode.dev/owned"] = json!(owned);
        }
        let taint = |taint: &Taint| json!({"key": taint.id.key, "effect": taint.id.effect, "value": taint.value});
        let taints: Vec<_> = facts.taints.iter().map(taint).collect();
        node["spec"] = json!({ "taints": taints });
        node["metadata"]["resourceVersion"] = json!(facts.resource_version);
        json_patch::patch(&mut node, patch).unwrap();
        node["metadata"]["resourceVersion"] = json!(self.next_version());
        let facts = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
        self.written(WrittenObject::Node(Box::new(facts)));
    }

    fn write_status(&mut self, name: &str) {
        let sent = self.index.policy_status_write(name, Timestamp::UNIX_EPOCH);
        let sent = Box::new(sent.expect("the status differs"));
        let mut policy = (*sent.policy).clone();
        policy.status = Some(sent.status.clone());
        policy.metadata.resource_version = Some(self.next_version());
        let returned = Box::new(policy);
        self.written(WrittenObject::PolicyStatus { returned, sent });
    }

    fn write_daemonset(&mut self, name: &str, edit: impl FnOnce(&mut DaemonSet)) {
        let (sent, kind) = match self.index.daemonset_write(name) {
            Some(DaemonSetWrite::Create(daemonset)) => (daemonset, WriteKind::Create),
            Some(DaemonSetWrite::Replace(daemonset)) => (daemonset, WriteKind::Update),
            other => panic!("{other:?}"),
        };
        let mut daemonset = (*sent).clone();
        daemonset.metadata.resource_version = Some(self.next_version());
        edit(&mut daemonset);
        let returned = Box::new(daemonset);
        self.written(WrittenObject::DaemonSet { returned, kind, sent });
    }

    /// Nodes that are due now.
    fn due_nodes(&self) -> Vec<&str> {
        let due = self.effects.queued.iter().filter(|queued| queued.at.is_none());
        let names: BTreeSet<&str> = due
            .filter(|queued| matches!(queued.key, WorkKey::Node(_)))
            .map(|queued| queued.key.name())
            .collect();
        names.into_iter().collect()
    }

    fn queued(&self) -> Vec<&WorkKey> {
        let mut keys: Vec<_> = self.effects.queued.iter().map(|queued| &queued.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

fn deleted(object: &impl Versioned) -> DeletedObject {
    DeletedObject {
        name: object.name().to_owned(),
        version: object.version().to_owned(),
    }
}

fn node(name: &str) -> WorkKey {
    WorkKey::Node(name.to_owned())
}

/// Gives a `GpuNode` a status.
fn set_status(gpu_node: &mut GpuNodeFacts, status: serde_json::Value) {
    let mut reported = GpuNode::new("n", GpuNodeSpec::default());
    reported.status = Some(serde_json::from_value(status).unwrap());
    let reported = GpuNodeFacts::of(reported);
    (gpu_node.conditions, gpu_node.status) = (reported.conditions, reported.status);
    (gpu_node.finished_step, gpu_node.finished_change) = (reported.finished_step, reported.finished_change);
}

fn status(name: &str) -> WorkKey {
    WorkKey::PolicyStatus(name.to_owned())
}

const LABEL: &str = "{nodeSelector: {matchLabels: {pool: a}}, labels: {x: y}}";
const PLUGIN: &str = "{nodeSelector: {matchLabels: {pool: a}}, devicePlugin: {}}";

#[test]
fn nothing_is_planned_before_every_cache_has_synced() {
    let mut scene = Scene::not_synced();
    let owned = scene.facts("a", &json!({"x": "y"}));
    let owned = NodeFacts {
        owned: Some(r#"{"version":1,"labels":{"x":"y"}}"#.into()),
        annotated: true,
        ..owned
    };
    scene.list(IndexMessage::Nodes, vec![owned]);
    scene.list(IndexMessage::GpuNodes, vec![]);
    scene.list(IndexMessage::DaemonSets, vec![]);
    assert!(
        !scene.index.has_synced() && scene.queued().is_empty(),
        "{:?}",
        scene.effects
    );
    scene.list(IndexMessage::Policies, vec![]);
    assert!(
        scene.queued().is_empty(),
        "a standby plans nothing: {:?}",
        scene.effects
    );
    scene.lead();
    assert_eq!(scene.due_nodes(), ["a"], "no policy wants the label on the node");
}

#[test]
fn change_of_a_node_queues_that_node_and_its_policies_alone() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_policy("q", "{nodeSelector: {matchLabels: {pool: b}}, labels: {x: y}}");
    scene.set_node("other", &json!({"pool": "b"}));
    scene.set_node("n", &json!({"pool": "a"}));
    assert_eq!(scene.queued(), [&node("n"), &status("p")]);
}

#[test]
fn heartbeat_queues_nothing() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.set_node("n", &json!({"pool": "a"}));
    assert!(scene.queued().is_empty(), "{:?}", scene.effects);
}

#[test]
fn status_follows_the_node_until_nothing_is_left_to_write() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.write_status("p");
    scene.write_node("n");
    assert_eq!(scene.queued(), [&status("p")]);
    scene.write_status("p");
    assert_eq!(
        scene.index.node_counts()[0].1,
        NodeCounts {
            matched: 1,
            ready: 1,
            ..NodeCounts::default()
        }
    );
    for name in ALWAYS {
        assert!(
            matches!(scene.index.daemonset_write(name), Some(DaemonSetWrite::Create(_))),
            "{name}"
        );
        scene.write_daemonset(name, |_| {});
    }
    scene.lead();
    let expected = ALWAYS.map(|name| WorkKey::DaemonSet(name.to_owned()));
    assert!(
        expected.iter().all(|key| scene.queued().contains(&key)),
        "{:?}",
        scene.effects
    );
    for key in scene
        .effects
        .queued
        .iter()
        .map(|queued| queued.key.clone())
        .collect::<Vec<_>>()
    {
        let is_settled = match &key {
            WorkKey::Node(name) => scene.node_write(name).is_none(),
            WorkKey::DaemonSet(name) => scene.index.daemonset_write(name).is_none(),
            WorkKey::PolicyStatus(name) => scene.index.policy_status_write(name, Timestamp::now()).is_none(),
            WorkKey::Removal(_) | WorkKey::Sweep | WorkKey::Previews => false,
        };
        assert!(is_settled, "{key:?}");
    }
}

#[test]
fn deleted_policy_queues_the_nodes_that_carry_its_keys() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.set_node("other", &json!({}));
    scene.write_node("n");
    scene.delete_policy("p");
    assert!(
        scene.queued().contains(&&node("n")) && !scene.queued().contains(&&node("other")),
        "{:?}",
        scene.effects
    );
    scene.write_node("n");
    assert_eq!(scene.node_write("n"), None);
    assert!(scene.index.policy_status_write("p", Timestamp::now()).is_none());
}

#[test]
fn node_that_cannot_be_written_counts_as_failed_until_it_can() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    let refused = || WriteResult::Refused("denied".to_owned());
    scene.finished(node("n"), refused());
    assert_eq!(scene.queued(), [&status("p")]);
    let failures = scene
        .index
        .policy_status_write("p", Timestamp::now())
        .unwrap()
        .status
        .failures;
    assert_eq!(
        (failures[0].reason.as_str(), failures[0].message.as_str()),
        ("WriteFailed", "denied")
    );
    scene.finished(node("n"), refused());
    assert!(scene.queued().is_empty());
    scene.finished(node("n"), WriteResult::Accepted);
    assert_eq!(scene.index.node_counts()[0].1.updating, 1);
}

#[test]
fn node_that_is_made_again_within_one_turn_has_no_refusal_of_the_old_one() {
    for is_late in [false, true] {
        let mut scene = Scene::synced();
        scene.set_policy("p", LABEL);
        scene.set_node("n", &json!({"pool": "a"}));
        assert!(scene.node_write("n").is_some());
        let refused = || WriteResult::Refused("denied".to_owned());
        if !is_late {
            scene.finished(node("n"), refused());
            assert_eq!(scene.index.node_counts()[0].1.failed, 1);
        }
        let facts = scene.facts("n", &json!({"pool": "a"}));
        let facts = NodeFacts {
            uid: "another".to_owned(),
            ..facts
        };
        let deletion = WatchUpdate::Deleted(deleted(&facts));
        scene.go(|index, now, effects| {
            for update in [deletion, WatchUpdate::applied(facts)] {
                index.apply(IndexMessage::Nodes(update), now, effects);
            }
        });
        assert_eq!(scene.effects.forgotten, [node("n")]);
        assert_eq!(scene.index.node_counts()[0].1.matched, 0, "nobody planned the new one");
        scene.settle(Timestamp::UNIX_EPOCH);
        if is_late {
            scene.finished(node("n"), refused());
        }
        let counts = scene.index.node_counts()[0].1;
        assert_eq!((counts.updating, counts.failed), (1, 0), "late: {is_late}");
        assert!(scene.node_write("n").is_some());
        scene.finished(node("n"), refused());
        assert_eq!(scene.index.node_counts()[0].1.failed, 1);
    }
}

#[test]
fn conflict_is_an_event_when_it_comes_and_when_it_goes_but_not_for_a_new_leader() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a", "x": "mine"}));
    let told: Vec<_> = scene
        .effects
        .events
        .iter()
        .map(|event| (event.reason.as_str(), event.is_warning))
        .collect();
    assert_eq!(told, [(Reason::KeyOwnedByAnother.as_str(), true)]);
    scene.lead();
    assert!(scene.effects.events.is_empty());
    scene.set_node("n", &json!({"pool": "a"}));
    let told: Vec<_> = scene
        .effects
        .events
        .iter()
        .map(|event| (event.reason.as_str(), event.is_warning))
        .collect();
    assert_eq!(told, [(Reason::NoConflict.as_str(), false)]);
}

#[test]
fn deleted_node_is_not_counted() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    let gone = scene.facts("n", &json!({}));
    scene.apply(IndexMessage::Nodes(WatchUpdate::Deleted(deleted(&gone))));
    assert_eq!(
        (scene.queued(), scene.index.node_counts()[0].1.matched),
        (vec![&status("p")], 0)
    );
}

#[test]
fn daemonset_comes_with_the_device_plugin_is_repaired_and_goes_with_it() {
    let mut scene = Scene::synced();
    scene.set_policy("p", PLUGIN);
    let name = policy_daemonset_name("p");
    scene.write_daemonset(&name, |_| {});
    assert!(scene.index.daemonset_write(&name).is_none());
    let mut edited = {
        let ClusterIndex {
            daemonsets,
            objects,
            outcomes,
            ..
        } = &scene.index;
        let desired = daemonsets.desired(&name, objects.set(), outcomes);
        desired.unwrap()
    };
    edited.metadata.resource_version = Some(scene.next_version());
    edited.spec.as_mut().unwrap().min_ready_seconds = Some(5);
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(edited)));
    assert_eq!(scene.queued(), [&WorkKey::DaemonSet(name.clone()), &status("p")]);
    scene.write_daemonset(&name, |_| {});
    scene.set_policy("p", LABEL);
    assert!(matches!(
        scene.index.daemonset_write(&name),
        Some(DaemonSetWrite::Delete { .. })
    ));
}

#[test]
fn status_reports_a_refused_daemonset_and_agents_that_are_never_replaced() {
    let mut scene = Scene::synced();
    scene.set_policy("p", PLUGIN);
    let name = policy_daemonset_name("p");
    let told = |scene: &Scene, seconds| {
        let now = Timestamp::from_second(seconds).unwrap();
        let status = scene.index.policy_status_write("p", now).unwrap().status;
        (
            status.conditions[0].reason.clone(),
            status.conditions[0].message.clone(),
        )
    };
    let refused = WriteResult::Refused("create daemonset: no".to_owned());
    scene.finished(WorkKey::DaemonSet(name.clone()), refused);
    assert_eq!(scene.queued(), [&status("p")]);
    assert_eq!(
        told(&scene, 0),
        ("WriteFailed".to_owned(), "create daemonset: no".to_owned())
    );
    scene.finished(WorkKey::DaemonSet(name.clone()), WriteResult::Accepted);
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
        scene.apply_at(now, IndexMessage::DaemonSets(WatchUpdate::applied(counted.clone())));
        scene.go(|index, _, effects| index.queue_at_deadline("p", now, effects));
        scene
            .effects
            .queued
            .iter()
            .find_map(|queued| queued.at)
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
        "neither is one that leaves again"
    );
    assert_eq!(told(&scene, 619).0, "NoMatchingNodes");
    assert_eq!(told(&scene, 620).0, "RolloutStopped");
    assert_eq!(report(&mut scene, 630, (2, 2)), None);
    assert_eq!(told(&scene, 9999).0, "NoMatchingNodes");
}

#[test]
fn deleted_daemonset_comes_back_once_its_controller_has_forgotten_the_old_one() {
    let mut scene = Scene::synced();
    scene.write_daemonset(DISCOVERY_NAME, |_| {});
    let live = (**scene.index.daemonsets.live(DISCOVERY_NAME).unwrap()).clone();
    let deleted_at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(100);
    scene.apply_at(
        deleted_at,
        IndexMessage::DaemonSets(WatchUpdate::Deleted(deleted(&live))),
    );
    let key = WorkKey::DaemonSet(DISCOVERY_NAME.to_owned());
    let mut write_at = |milliseconds| {
        let now = deleted_at + SignedDuration::from_millis(milliseconds);
        let write = scene.go(|index, _, effects| index.planned_write(&key, now, effects));
        (
            write.is_some(),
            scene.effects.queued.iter().find_map(|queued| queued.at),
        )
    };
    let due = deleted_at + SignedDuration::from_secs(3);
    assert_eq!(write_at(0), (false, Some(due)));
    assert_eq!(write_at(2_999), (false, Some(due)));
    assert_eq!(write_at(3_000), (true, None));
}

#[test]
fn daemonset_of_the_mps_daemons_needs_no_policy_and_comes_back() {
    let mut scene = Scene::synced();
    scene.write_daemonset(MPS_NAME, |_| {});
    scene.set_policy("p", PLUGIN);
    scene.delete_policy("p");
    assert_eq!(scene.index.daemonset_write(MPS_NAME), None);
    let live = (**scene.index.daemonsets.live(MPS_NAME).unwrap()).clone();
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::Deleted(deleted(&live))));
    assert_eq!(scene.queued(), [&WorkKey::DaemonSet(MPS_NAME.to_owned())]);
    assert!(matches!(
        scene.index.daemonset_write(MPS_NAME),
        Some(DaemonSetWrite::Create(_))
    ));
}

#[test]
fn conditions_are_those_last_written_and_go_with_the_policy() {
    let mut scene = Scene::synced();
    scene.set_policy("p", "{nodeSelector: {}}");
    assert_eq!(scene.index.conditions(9), []);
    scene.write_status("p");
    let conditions = scene.index.conditions(9);
    assert_eq!(
        (conditions.len(), &conditions[0]),
        (6, &("p".to_owned(), ConditionType::Ready, true))
    );
    assert_eq!(scene.index.conditions(0), []);
    scene.delete_policy("p");
    assert_eq!(scene.index.conditions(9), []);
}

#[test]
fn daemonset_that_something_else_rewrites_is_not_written_again_and_again() {
    let mut scene = Scene::synced();
    let insist = |daemonset: &mut DaemonSet| daemonset.spec.as_mut().unwrap().min_ready_seconds = Some(5);
    scene.write_daemonset(DISCOVERY_NAME, insist);
    assert_eq!(scene.index.daemonset_write(DISCOVERY_NAME), None);
    let mut counted = (**scene.index.daemonsets.live(DISCOVERY_NAME).unwrap()).clone();
    counted.metadata.resource_version = Some(scene.next_version());
    counted.status = Some(DaemonSetStatus {
        number_ready: 1,
        ..DaemonSetStatus::default()
    });
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(counted.clone())));
    assert_eq!(
        scene.index.daemonset_write(DISCOVERY_NAME),
        None,
        "a new status is no reason to try again"
    );
    counted.metadata.resource_version = Some(scene.next_version());
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::Deleted(deleted(&counted))));
    scene.write_daemonset(DISCOVERY_NAME, |_| {});
    let name = policy_daemonset_name("p");
    scene.set_policy("p", PLUGIN);
    scene.write_daemonset(&name, insist);
    assert!(scene.index.daemonset_write(&name).is_none());
    scene.set_policy("p", "{nodeSelector: {}, image: 'image:another', devicePlugin: {}}");
    assert!(matches!(
        scene.index.daemonset_write(&name),
        Some(DaemonSetWrite::Replace(_))
    ));
}

#[test]
fn policy_in_mode_preview_changes_nothing_and_sends_no_event() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({"pool": "a", "x": "mine"}));
    scene.set_policy(
        "p",
        "{mode: Preview, nodeSelector: {}, labels: {x: y}, devicePlugin: {}}",
    );
    assert!(scene.effects.events.is_empty() && !scene.queued().contains(&&node("n")));
    assert_eq!(scene.index.daemonset_write(&policy_daemonset_name("p")), None);
    assert_eq!(
        scene
            .index
            .policy_status_write("p", Timestamp::now())
            .unwrap()
            .status
            .preview
            .len(),
        1
    );
}

#[test]
fn governed_node_gets_its_configuration_once() {
    let mut scene = Scene::synced();
    scene.set_policy("p", PLUGIN);
    scene.set_node("n", &json!({"pool": "a"}));
    let Some(GpuNodeChange::Create(mut gpu_node)) = scene.node_write("n").map(|work| work.gpu_node) else {
        panic!()
    };
    gpu_node.metadata.resource_version = Some(scene.next_version());
    let created = Box::new(GpuNodeFacts::of(*gpu_node));
    scene.written(WrittenObject::GpuNode(created, WriteKind::Create));
    assert_eq!(scene.node_write("n").unwrap().gpu_node, GpuNodeChange::None);
}

#[test]
fn node_whose_gpus_change_is_planned_again_and_an_event_says_why_it_leaves_a_policy() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    scene.set_policy(
        "p",
        "{gpuSelector: {products: [Tesla-T4], minCount: 2}, labels: {x: y}}",
    );
    assert_eq!(scene.node_write("n"), None);
    for (count, matches) in [(2, true), (1, false)] {
        let version = scene.next_version();
        let gpu = |index: i32| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-T4", "memoryMiB": 15360});
        let gpus: Vec<_> = (0..count).map(gpu).collect();
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "resourceVersion": version}, "spec": {}, "status": {"gpus": gpus}});
        let gpu_node = GpuNodeFacts::of(serde_json::from_value(gpu_node).unwrap());
        scene.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
        assert!(scene.queued().contains(&&node("n")));
        let told: Vec<_> = scene
            .effects
            .events
            .iter()
            .map(|it| (it.reason.as_str(), it.message.as_str()))
            .collect();
        let missing = "n: gpuSelector wants 2 such GPUs, node has 1 among 1 in its GpuNode";
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
fn daemonset_of_a_paused_policy_stays() {
    let mut scene = Scene::synced();
    let name = policy_daemonset_name("p");
    scene.set_policy("p", "{mode: Paused, nodeSelector: {}, devicePlugin: {}}");
    assert_eq!(scene.index.daemonset_write(&name), None, "none is created");
    scene.set_policy("p", "{nodeSelector: {}, devicePlugin: {}}");
    scene.write_daemonset(&name, |_| {});
    scene.set_policy("p", "{mode: Paused, nodeSelector: {}, devicePlugin: {}, image: other}");
    assert!(scene.index.daemonset_write(&name).is_none());
    scene.delete_policy("p");
    assert!(matches!(
        scene.index.daemonset_write(&name),
        Some(DaemonSetWrite::Delete { .. })
    ));
}

/// A policy of which only the identity can be read.
fn unreadable(scene: &mut Scene, name: &str) -> WatchedPolicy {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some("u".to_owned()),
        generation: Some(2),
        resource_version: Some(scene.next_version()),
        ..ObjectMeta::default()
    };
    let error = "mode: unknown variant `Later`".to_owned();
    WatchedPolicy::Unreadable(Box::new(UnreadablePolicy {
        metadata,
        error,
        status: None,
    }))
}

#[test]
fn policy_that_cannot_be_read_keeps_what_it_wrote_and_holds_up_no_other() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    scene.set_policy("new", "{nodeSelector: {}, labels: {x: y}, devicePlugin: {}}");
    scene.write_node("n");
    scene.write_daemonset(&policy_daemonset_name("new"), |_| ());
    let labels = |scene: &Scene| scene.index.objects.nodes.get("n").unwrap().labels.to_map();
    let before = labels(&scene);
    assert_eq!(before.get("x").map(String::as_str), Some("y"));

    // A replica that starts lists it among the others.
    let policy = unreadable(&mut scene, "new");
    scene.list(IndexMessage::Policies, vec![policy]);
    assert_eq!(scene.effects.events.len(), 1, "the policy is reported once");
    assert_eq!(scene.effects.events[0].reason, "Unreadable");
    assert_eq!(scene.node_write("n"), None);
    assert_eq!(scene.index.daemonset_write(&policy_daemonset_name("new")), None);

    scene.set_policy("other", "{nodeSelector: {}, labels: {other: works}}");
    scene.write_node("n");
    let after = labels(&scene);
    assert_eq!(after.get("other").map(String::as_str), Some("works"));
    assert!(
        before.iter().all(|(key, value)| after.get(key) == Some(value)),
        "{after:?}"
    );
    scene.delete_policy("other");
    assert_eq!(scene.index.unreadable_policies(), 1);

    // It goes.
    scene.delete_policy("new");
    assert_eq!(scene.index.unreadable_policies(), 0);
    scene.write_node("n");
    assert_eq!(labels(&scene), BTreeMap::new());
    let write = scene.index.daemonset_write(&policy_daemonset_name("new"));
    assert!(matches!(write, Some(DaemonSetWrite::Delete { .. })), "{write:?}");
}

#[test]
fn policy_that_cannot_be_read_goes_only_with_a_whole_list() {
    let mut scene = Scene::synced();
    let policy = unreadable(&mut scene, "p");
    scene.list(IndexMessage::Policies, vec![policy.clone()]);
    scene.apply(IndexMessage::Policies(WatchUpdate::ListStarted));
    scene.apply(IndexMessage::Policies(WatchUpdate::ListPage(vec![])));
    assert_eq!(scene.index.unreadable_policies(), 1);
    scene.list(IndexMessage::Policies, vec![policy]);
    assert_eq!(scene.index.unreadable_policies(), 1, "a list that begins again");
    scene.list(IndexMessage::Policies, vec![]);
    assert_eq!(scene.index.unreadable_policies(), 0);
}

#[test]
fn nothing_is_planned_before_every_list_is_whole() {
    let mut scene = Scene::not_synced();
    let policy = scene.policy("p", "{nodeSelector: {}, labels: {x: y}}");
    scene.list(IndexMessage::Policies, vec![policy.into()]);
    scene.list(IndexMessage::GpuNodes, vec![]);
    scene.list(IndexMessage::DaemonSets, vec![]);
    let facts = scene.facts("n", &json!({}));
    let key = WorkKey::Node("n".to_owned());
    let is_queued = |scene: &Scene| scene.effects.queued.iter().any(|queued| queued.key == key);
    for update in [WatchUpdate::ListStarted, WatchUpdate::ListPage(vec![facts])] {
        scene.apply(IndexMessage::Nodes(update));
        assert!(!scene.index.has_synced() && !is_queued(&scene));
    }
    scene.apply(IndexMessage::Nodes(WatchUpdate::ListCompleted(None)));
    assert!(scene.index.has_synced());
    scene.lead();
    assert!(is_queued(&scene));
}

#[test]
fn policy_that_can_be_read_again_is_in_force_again() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    let policy = unreadable(&mut scene, "p");
    scene.apply(IndexMessage::Policies(WatchUpdate::applied(policy)));
    let status = |scene: &mut Scene| {
        let key = WorkKey::PolicyStatus("p".to_owned());
        scene.go(|index, now, effects| index.planned_write(&key, now, effects))
    };
    let Some(PlannedWrite::UnreadableStatus(write)) = status(&mut scene) else {
        panic!()
    };
    let ready = ConditionType::Ready.find(&write.status.conditions).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "Unreadable"));
    assert!(ready.message.contains("`Later`"), "{}", ready.message);

    // Its own status comes back by the watch and changes nothing.
    let WatchedPolicy::Unreadable(policy) = unreadable(&mut scene, "p") else {
        panic!()
    };
    let written = UnreadablePolicy {
        status: Some(write.status),
        ..*policy
    };
    let update = WatchUpdate::applied(WatchedPolicy::Unreadable(Box::new(written)));
    scene.apply(IndexMessage::Policies(update));
    assert!(scene.effects.events.is_empty());
    assert!(status(&mut scene).is_none());

    scene.set_policy("p", "{nodeSelector: {}, labels: {x: y}}");
    assert_eq!(scene.index.unreadable_policies(), 0);
    scene.write_node("n");
    assert!(matches!(status(&mut scene), Some(PlannedWrite::PolicyStatus(_))));
}

#[test]
fn daemonset_keeps_its_image_while_its_policy_has_one_that_is_not_allowed() {
    let mut scene = Scene::synced();
    let spec =
        |image: &str| format!("{{nodeSelector: {{matchLabels: {{pool: a}}}}, devicePlugin: {{}}, image: '{image}'}}");
    let name = policy_daemonset_name("p");
    scene.set_policy("p", &spec("image:1"));
    scene.write_daemonset(&name, |_| {});
    scene.set_policy("p", &spec("evil/image:1"));
    assert!(scene.index.daemonset_write(&name).is_none());
    let status = scene
        .index
        .policy_status_write("p", Timestamp::UNIX_EPOCH)
        .unwrap()
        .status;
    let stalled = ConditionType::Stalled.find(&status.conditions).unwrap();
    assert_eq!(
        (stalled.status.as_str(), stalled.reason.as_str()),
        ("True", "InvalidSpec")
    );
    assert!(
        stalled.message.contains("evil/image:1 is not allowed"),
        "{}",
        stalled.message
    );
    scene.set_policy("p", &spec("image:2"));
    assert!(matches!(
        scene.index.daemonset_write(&name),
        Some(DaemonSetWrite::Replace(_))
    ));
}

#[test]
fn daemonset_that_stays_loses_the_owner_that_an_earlier_version_wrote() {
    let name = policy_daemonset_name("p");
    for spec in [
        Some("{mode: Paused, nodeSelector: {}, devicePlugin: {}}"),
        Some("{nodeSelector: {}, devicePlugin: {}, image: 'evil/image:1'}"),
        None,
    ] {
        let mut scene = Scene::synced();
        scene.set_policy("p", PLUGIN);
        scene.write_daemonset(&name, |_| {});
        let policy = match spec {
            Some(spec) => scene.policy("p", spec).into(),
            None => unreadable(&mut scene, "p"),
        };
        scene.apply(IndexMessage::Policies(WatchUpdate::applied(policy)));
        assert_eq!(scene.index.daemonset_write(&name), None, "{spec:?}");
        let mut owned = (**scene.index.daemonsets.live(&name).unwrap()).clone();
        owned.metadata.resource_version = Some(scene.next_version());
        owned.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "gpunode.dev/v1alpha1".to_owned(),
            kind: "GpuNodePolicy".to_owned(),
            name: "p".to_owned(),
            ..OwnerReference::default()
        }]);
        scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(owned.clone())));
        scene.write_daemonset(&name, |written| {
            assert_eq!(written.metadata.owner_references, None, "{spec:?}");
            assert_eq!(written.spec, owned.spec, "{spec:?}");
        });
        assert_eq!(scene.index.daemonset_write(&name), None, "{spec:?}");
    }
}

#[test]
fn upgrade_of_discovery_counts_the_nodes_that_are_down_on_top() {
    let mut scene = Scene::synced();
    let max_unavailable = |scene: &Scene| {
        let write = scene.index.daemonset_write(DISCOVERY_NAME);
        let Some(DaemonSetWrite::Replace(daemonset)) = write else {
            return None;
        };
        let update = daemonset.spec?.update_strategy?.rolling_update?;
        update.max_unavailable
    };
    let mut live = None;
    scene.write_daemonset(DISCOVERY_NAME, |daemonset| live = Some(daemonset.clone()));
    // At rest a node that goes down changes nothing. `Scene::set_node` has no condition, so the node is not Ready.
    let linux = json!({"kubernetes.io/os": "linux"});
    scene.set_node("down", &linux);
    assert_eq!(max_unavailable(&scene), None);
    let mut outdated = live.unwrap();
    outdated.metadata.resource_version = Some(scene.next_version());
    outdated.status = Some(DaemonSetStatus {
        current_number_scheduled: 30,
        desired_number_scheduled: 30,
        updated_number_scheduled: Some(20),
        ..DaemonSetStatus::default()
    });
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(outdated)));
    assert_eq!(max_unavailable(&scene), Some(IntOrString::Int(4)));
    assert_eq!(scene.index.outdated_discovery(), 10);
    scene.set_node("down-too", &linux);
    assert!(scene.queued().contains(&&WorkKey::DaemonSet(DISCOVERY_NAME.to_owned())));
    assert_eq!(max_unavailable(&scene), Some(IntOrString::Int(5)));
    // None of these nodes has discovery.
    for (key, value) in [
        ("gpunode.dev/governed", "true"),
        ("kubernetes.io/os", "windows"),
        ("type", "virtual-kubelet"),
        ("eks.amazonaws.com/compute-type", "fargate"),
    ] {
        let mut labels = linux.clone();
        labels[key] = json!(value);
        scene.set_node(key, &labels);
        assert_eq!(max_unavailable(&scene), Some(IntOrString::Int(5)), "{key}");
    }
}

/// Returns the text of the patch of a node at a second.
fn patch_at(scene: &mut Scene, second: i64) -> Option<String> {
    let now = Timestamp::from_second(second).unwrap();
    let write = scene.go(|index, _, effects| index.node_write("n", now, effects));
    write.and_then(|write| serde_json::to_string(&write.patch?).ok())
}

fn relabel_at(scene: &mut Scene, second: i64, labels: &serde_json::Value) {
    let owned = scene.index.objects.nodes.get("n").unwrap().owned.clone();
    let facts = NodeFacts {
        owned,
        annotated: true,
        ..scene.facts("n", labels)
    };
    let now = Timestamp::from_second(second).unwrap();
    scene.apply_at(now, IndexMessage::Nodes(WatchUpdate::applied(facts)));
}

#[test]
fn label_that_flaps_writes_nothing_and_one_that_stays_away_is_waited_for_half_a_minute() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.write_node("n");
    relabel_at(&mut scene, 100, &json!({"x": "y"}));
    assert_eq!((patch_at(&mut scene, 100), patch_at(&mut scene, 104)), (None, None));
    assert_eq!(
        scene.index.node_counts()[0].1.ready,
        1,
        "the status does not flap either"
    );
    relabel_at(&mut scene, 102, &json!({"pool": "a", "x": "y"}));
    assert_eq!(patch_at(&mut scene, 200), None);
    relabel_at(&mut scene, 200, &json!({"x": "y"}));
    let noted = patch_at(&mut scene, 205).unwrap();
    assert!(
        noted.contains("deselected") && !noted.contains("/metadata/labels"),
        "{noted}"
    );
    let gone = patch_at(&mut scene, 230).unwrap();
    assert!(gone.contains(r#""remove","path":"/metadata/labels/x""#), "{gone}");
}

#[test]
fn clock_that_goes_back_stretches_no_grace() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.write_node("n");
    relabel_at(&mut scene, 3600, &json!({"x": "y"}));
    assert_eq!(patch_at(&mut scene, 0), None);
    let gone = patch_at(&mut scene, 30).unwrap();
    assert!(gone.contains(r#""remove","path":"/metadata/labels/x""#), "{gone}");
}

#[test]
fn edit_and_deletion_of_a_policy_have_no_grace_and_a_restart_grants_it_where_the_spec_is_known() {
    let elsewhere = "{nodeSelector: {matchLabels: {pool: b}}, labels: {x: y}}";
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    scene.set_node("n", &json!({"pool": "a"}));
    scene.write_node("n");
    let owned = scene.index.objects.nodes.get("n").unwrap().owned.clone();
    scene.set_policy("p", elsewhere);
    for _ in 0..2 {
        assert!(patch_at(&mut scene, 1).unwrap().contains("remove"));
    }
    for (observed, is_kept) in [(Some(1), true), (Some(0), false), (None, false)] {
        let mut scene = Scene::not_synced();
        let mut policy = scene.policy("p", elsewhere);
        policy.metadata.generation = Some(1);
        policy.status = Some(gpunode_crds::GpuNodePolicyStatus {
            observed_generation: observed,
            ..Default::default()
        });
        let facts = scene.facts("n", &json!({"x": "y"}));
        let facts = NodeFacts {
            owned: owned.clone(),
            annotated: true,
            ..facts
        };
        scene.list(IndexMessage::Nodes, vec![facts]);
        scene.list(IndexMessage::GpuNodes, vec![]);
        scene.list(IndexMessage::DaemonSets, vec![]);
        scene.list(IndexMessage::Policies, vec![WatchedPolicy::Readable(Box::new(policy))]);
        scene.lead();
        assert_eq!(patch_at(&mut scene, 1).is_none(), is_kept, "{observed:?}");
    }
}
