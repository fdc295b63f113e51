//! Turns in a rollout.

use super::*;
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};
use std::collections::BTreeMap;

mod mig;
mod requests;

const NODES: [&str; 4] = ["a", "b", "c", "d"];

pub fn spec(pass: bool, rollout: &str) -> String {
    format!("{{nodeSelector: {{}}, devicePlugin: {{passDeviceSpecs: {pass}}}, rollout: {rollout}}}")
}

/// Reaction of an agent to its configuration.
#[derive(Clone, Copy, PartialEq)]
pub enum Agent {
    PutsInForce,
    Rejects,
}

impl Scene {
    /// Four nodes that have applied their first configuration.
    pub fn governed(rollout: &str) -> Self {
        let mut scene = Self::synced();
        scene.set_policy("p", &spec(false, rollout));
        for name in NODES {
            let version = scene.next_version();
            let facts = NodeFacts::of(
                &serde_json::from_value::<Node>(json!({
                    "metadata": {"name": name, "uid": name, "resourceVersion": version},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }))
                .unwrap(),
            );
            scene.apply(IndexMessage::Nodes(WatchUpdate::applied(facts)));
            assert!(scene.work_on(name), "a first configuration waits for no other node");
            scene.report(name, Agent::PutsInForce);
        }
        assert_eq!(scene.index.node_counts()[0].1.ready, 4);
        scene
    }

    /// The write of a node is carried out. Returns true if it gives the node a configuration.
    pub fn work_on(&mut self, name: &str) -> bool {
        let Some(work) = self.node_write(name) else {
            return false;
        };
        let is_given = self.write_gpu_node(name, work.gpu_node);
        if let Some(patch) = &work.patch {
            self.patch_node(name, patch);
        }
        self.finished(node(name), WriteResult::Accepted);
        is_given
    }

    fn write_gpu_node(&mut self, name: &str, change: GpuNodeChange) -> bool {
        let is_given = change.gives_configuration();
        let known = self.index.objects.gpu_nodes.get(name).map(|known| (**known).clone());
        let (mut gpu_node, write) = match (change, known) {
            (GpuNodeChange::Create(gpu_node), _) => (GpuNodeFacts::of(*gpu_node), WriteKind::Create),
            (GpuNodeChange::Configure { config, step, .. }, Some(mut gpu_node)) => {
                Arc::make_mut(&mut gpu_node.spec).config = config;
                (gpu_node.step, gpu_node.change) = (step, None);
                (gpu_node, WriteKind::Update)
            }
            (GpuNodeChange::Step { step, change, .. }, Some(mut gpu_node)) => {
                (gpu_node.step, gpu_node.change) = (step, change);
                (gpu_node, WriteKind::Update)
            }
            (
                GpuNodeChange::Requests {
                    release,
                    served_by_dra,
                    recovered,
                    ..
                },
                Some(mut gpu_node),
            ) => {
                let spec = Arc::make_mut(&mut gpu_node.spec);
                (spec.release, spec.served_by_dra, spec.recovered) = (release, served_by_dra, recovered);
                (gpu_node, WriteKind::Update)
            }
            _ => return false,
        };
        gpu_node.resource_version = self.next_version();
        self.written(WrittenObject::GpuNode(Box::new(gpu_node), write));
        is_given
    }

    /// The agent of a node reports about its configuration.
    pub fn report(&mut self, name: &str, agent: Agent) {
        let mut gpu_node = (**self.index.objects.gpu_nodes.get(name).unwrap()).clone();
        let given = gpu_node.spec.config.as_ref().unwrap().hash.clone();
        let before = gpu_node.finished_step.map(Time);
        let begun = gpu_node.step.as_ref().map(|step| step.started_at.clone());
        let (in_force, finished, rejected) = match agent {
            Agent::PutsInForce => (json!(given), begun.or(before), json!(null)),
            Agent::Rejects => (json!("before"), before, json!({"hash": given, "message": "no"})),
        };
        let status = json!({
            "agent": {"pod": "x", "podUid": "x", "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
            "configHash": in_force, "finishedStep": finished, "rejectedConfig": rejected,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Registered", "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:00Z"}],
        });
        set_status(&mut gpu_node, status);
        gpu_node.resource_version = self.next_version();
        self.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
    }

    /// A node in a future version.
    pub fn known(&self, name: &str) -> NodeFacts {
        NodeFacts {
            resource_version: "999999".to_owned(),
            ..(**self.index.objects.nodes.get(name).unwrap()).clone()
        }
    }

    fn ready(&self) -> String {
        let status = self
            .index
            .policy_status_write("p", Timestamp::UNIX_EPOCH)
            .expect("the status differs")
            .status;
        let condition = gpunode_crds::ConditionType::Ready.find(&status.conditions).unwrap();
        format!("{} {}: {}", condition.status, condition.reason, condition.message)
    }
}

#[test]
fn nodes_change_one_after_the_other_in_the_order_of_their_names() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    for (index, name) in NODES.into_iter().enumerate() {
        assert_eq!(scene.due_nodes(), [name]);
        assert!(
            NODES
                .iter()
                .filter(|other| **other != name)
                .all(|other| !scene.work_on(other)),
            "before {name}"
        );
        assert!(scene.work_on(name));
        let have = if index == 1 { "has" } else { "have" };
        let words = format!("False NodesUpdating: {index} of 4 nodes {have} the new configuration; {name} is changing");
        assert_eq!(scene.ready(), words);
        scene.report(name, Agent::PutsInForce);
        let woken: Vec<String> = scene.due_nodes().into_iter().map(str::to_owned).collect();
        let before = scene.index.objects.gpu_nodes.get(name).cloned();
        assert!(!scene.work_on(name), "the end of its turn gives no configuration");
        let after = scene.index.objects.gpu_nodes.get(name).cloned();
        assert_eq!(after, before, "its agent has ended its turn");
        scene.effects.queued = woken
            .iter()
            .filter(|it| *it != name)
            .map(|it| QueuedKey {
                key: node(it),
                class: WorkClass::Ordinary,
                at: None,
            })
            .collect();
    }
    assert_eq!(scene.index.node_counts()[0].1.ready, 4);
}

#[test]
fn node_that_breaks_after_its_step_stops_no_rollout() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.work_on("a"));
    scene.report("a", Agent::PutsInForce);
    scene.report("a", Agent::Rejects);
    assert!(scene.work_on("b"), "{}", scene.ready());
}

#[test]
fn rollout_stops_at_the_node_that_rejects_and_resumes_with_another_spec() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.work_on("a"));
    scene.report("a", Agent::PutsInForce);
    assert!(scene.work_on("b"));
    scene.report("b", Agent::Rejects);
    assert_eq!(scene.due_nodes(), ["b"], "its failure is recorded");
    assert!(NODES.iter().all(|name| !scene.work_on(name)));
    assert_eq!(scene.due_nodes(), [""; 0]);
    assert!(scene.ready().starts_with(
        "False RolloutStopped: stopped: node b failed: ConfigurationRejected: no; no other node changes until the policy's \
         spec changes; 1 of 4"
    ));

    scene.set_policy("p", &spec(false, "{}"));
    assert_eq!(
        scene.due_nodes(),
        ["a", "b"],
        "b failed before and waits for no other node; c and d never changed"
    );
    assert!(scene.work_on("b") && scene.work_on("a"));
    scene.report("b", Agent::PutsInForce);
    scene.report("a", Agent::PutsInForce);
    assert_eq!(scene.index.node_counts()[0].1.ready, 4);
}

#[test]
fn stop_outlasts_the_label_ignore_on_the_node_that_failed() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.work_on("a"));
    scene.report("a", Agent::Rejects);
    assert!(!scene.work_on("a"));
    let labels = BTreeMap::from([("gpunode.dev/ignore", "")]);
    let ignored = NodeFacts {
        labels: (&labels).into(),
        ..scene.known("a")
    };
    scene.apply(IndexMessage::Nodes(WatchUpdate::applied(ignored)));
    scene.lead();
    assert!(NODES.iter().all(|name| !scene.work_on(name)));
    assert!(
        scene.ready().starts_with("False RolloutStopped: stopped: node a"),
        "{}",
        scene.ready()
    );
    assert_eq!(scene.index.node_counts()[0].1.matched, 3);
}

#[test]
fn turn_in_a_rollout_costs_one_plan() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    assert_eq!(scene.due_nodes(), ["a"]);
    let plans = |scene: &Scene| scene.index.objects.plans.load(std::sync::atomic::Ordering::Relaxed);
    let before = plans(&scene);
    let gives_configuration = |write: NodeWrite| write.gpu_node.gives_configuration();
    for _ in 0..2 {
        assert!(scene.node_write("a").is_some_and(gives_configuration));
    }
    assert_eq!(plans(&scene) - before, 2, "as many as turns");
    assert_eq!(scene.index.node_counts()[0].1.updating, 4);
}

#[test]
fn permit_of_a_node_that_changed_is_used_after_another_plan_alone() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    assert_eq!(scene.due_nodes(), ["a"]);
    let down = NodeFacts {
        ready: false,
        ..scene.known("a")
    };
    scene.go(|index, now, effects| index.apply(IndexMessage::Nodes(WatchUpdate::applied(down)), now, effects));
    let write = scene.node_write("a");
    assert!(write.is_none_or(|write| !write.gpu_node.gives_configuration()));
    assert_eq!(scene.due_nodes(), ["b"]);
}

#[test]
fn larger_budget_queues_the_next_nodes() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.work_on("a"));
    scene.set_policy("p", &spec(true, "{maxUnavailable: 75%}"));
    assert_eq!(scene.due_nodes(), ["b", "c"]);
}

#[test]
fn refused_write_delays_no_other_node() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.node_write("a").is_some());
    assert!(scene.node_write("b").is_none(), "a may have been written");
    scene.finished(node("a"), WriteResult::Refused("denied".to_owned()));
    assert_eq!(scene.due_nodes(), ["b"]);
    assert_eq!(scene.index.node_counts()[0].1.failed, 1);
    for name in ["b", "c", "d"] {
        assert!(!scene.work_on("a") && scene.work_on(name), "{name}");
        assert_eq!(scene.index.node_counts()[0].1.failed, 1, "the refusal is not forgotten");
        scene.report(name, Agent::PutsInForce);
        scene.work_on(name);
    }
    assert!(scene.work_on("a"));
}

#[test]
fn new_leader_goes_on_where_the_old_one_was() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    scene.lead();
    assert_eq!(
        scene.due_nodes(),
        ["a"],
        "the turns that a standby granted are not lost"
    );
    assert!(scene.work_on("a"));
    scene.lead();
    assert_eq!(scene.due_nodes(), [""; 0]);
}

#[test]
fn deleted_node_gives_its_turn_to_the_next() {
    let mut scene = Scene::governed("{}");
    scene.set_policy("p", &spec(true, "{}"));
    assert!(scene.work_on("a"));
    let gone = scene.facts("a", &json!({}));
    scene.apply(IndexMessage::Nodes(WatchUpdate::Deleted(deleted(&gone))));
    assert_eq!(scene.due_nodes(), ["b"]);
}

/// Sets the live DaemonSet of the policy, with new pods on `updated` of its four nodes.
fn replaced(scene: &mut Scene, updated: i32) {
    let mut live = (**scene.index.daemonsets.live(&policy_daemonset_name("p")).unwrap()).clone();
    live.metadata.resource_version = Some(scene.next_version());
    live.status = Some(DaemonSetStatus {
        desired_number_scheduled: 4,
        current_number_scheduled: 4,
        updated_number_scheduled: Some(updated),
        ..DaemonSetStatus::default()
    });
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(live)));
}

#[test]
fn nodes_that_go_down_while_agents_are_replaced_delay_no_other_node() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    let name = policy_daemonset_name("p");
    scene.write_daemonset(&name, |_| {});
    for (updated, node, surge) in [(4, "a", None), (3, "b", Some(3)), (3, "c", Some(4))] {
        replaced(&mut scene, updated);
        let down = NodeFacts {
            ready: false,
            resource_version: scene.next_version(),
            ..scene.known(node)
        };
        scene.apply(IndexMessage::Nodes(WatchUpdate::applied(down)));
        let written = match scene.index.daemonset_write(&name) {
            Some(DaemonSetWrite::Replace(daemonset)) => {
                assert!(scene.queued().contains(&&WorkKey::DaemonSet(name.clone())));
                let strategy = daemonset.spec.unwrap().update_strategy.unwrap().rolling_update.unwrap();
                Some(strategy.max_surge.unwrap())
            }
            None => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(written, surge.map(IntOrString::Int), "{updated} replaced, {node} down");
    }
}

#[test]
fn agents_that_do_not_know_a_new_field_are_replaced_at_the_pace_of_the_policy() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    let name = policy_daemonset_name("p");
    scene.write_daemonset(&name, |_| {});
    for node in NODES {
        let mut gpu_node = (**scene.index.objects.gpu_nodes.get(node).unwrap()).clone();
        let status = Arc::make_mut(gpu_node.status.as_mut().unwrap());
        status.agent.as_mut().unwrap().config_fields = vec!["another".to_owned()];
        gpu_node.resource_version = scene.next_version();
        scene.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
    }
    scene.set_policy("p", &spec(true, "{maxUnavailable: 1}"));
    assert!(NODES.iter().all(|node| !scene.work_on(node)), "no agent can read it");
    replaced(&mut scene, 0);
    assert_eq!(scene.index.daemonset_write(&name), None, "one agent at a time");
    scene.go(|index, now, effects| index.queue_at_deadline("p", now, effects));
    let deadline = scene.effects.queued.iter().find_map(|queued| queued.at);
    assert_eq!(deadline.map(Timestamp::as_second), Some(600));
}

fn set_ready(scene: &mut Scene, node: &str, ready: bool, now: i64) {
    let facts = NodeFacts {
        ready,
        resource_version: scene.next_version(),
        ..scene.known(node)
    };
    let now = Timestamp::from_second(now).unwrap();
    scene.apply_at(now, IndexMessage::Nodes(WatchUpdate::applied(facts)));
}

#[test]
fn node_that_comes_back_has_the_whole_deadline_to_replace_its_agent() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.write_daemonset(&policy_daemonset_name("p"), |_| {});
    let deadline = |scene: &mut Scene| {
        scene.go(|index, now, effects| index.queue_at_deadline("p", now, effects));
        scene
            .effects
            .queued
            .iter()
            .find_map(|queued| queued.at)
            .map(Timestamp::as_second)
    };
    replaced(&mut scene, 3);
    assert_eq!(deadline(&mut scene), Some(600));
    for ready in [false, true] {
        set_ready(&mut scene, "b", ready, 100);
    }
    assert_eq!(deadline(&mut scene), Some(700), "the rollout waited for it alone");
    replaced(&mut scene, 2);
    for ready in [false, true] {
        set_ready(&mut scene, "b", ready, 200);
    }
    assert_eq!(
        deadline(&mut scene),
        Some(700),
        "a node that is down for a moment is no progress"
    );
    replaced(&mut scene, 3);
    set_ready(&mut scene, "a", false, 500);
    assert_eq!(deadline(&mut scene), None, "the rollout does not wait for it");
    set_ready(&mut scene, "a", true, 5000);
    assert_eq!(deadline(&mut scene), Some(5600));
}

#[test]
fn write_that_the_watch_brings_first_does_not_count_as_rewritten_by_others() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    let name = policy_daemonset_name("p");
    scene.write_daemonset(&name, |_| {});
    replaced(&mut scene, 4);
    set_ready(&mut scene, "a", false, 1);
    scene.set_policy(
        "p",
        "{nodeSelector: {}, image: 'image:another', devicePlugin: {}, rollout: {maxUnavailable: 1}}",
    );
    let Some(DaemonSetWrite::Replace(sent)) = scene.index.daemonset_write(&name) else {
        panic!("another image")
    };
    let mut returned = (*sent).clone();
    returned.metadata.resource_version = Some(scene.next_version());
    returned.metadata.generation = Some(2);
    scene.apply(IndexMessage::DaemonSets(WatchUpdate::applied(returned.clone())));
    let (returned, kind) = (Box::new(returned), WriteKind::Update);
    scene.written(WrittenObject::DaemonSet { returned, kind, sent });
    let Some(DaemonSetWrite::Replace(more)) = scene.index.daemonset_write(&name) else {
        panic!("one more may stand by")
    };
    let strategy = more.spec.unwrap().update_strategy.unwrap().rolling_update.unwrap();
    assert_eq!(strategy.max_surge, Some(IntOrString::Int(2)));
}
