//! Plans of all nodes after an edit, and on a new leader.

use super::*;
use gpunode_plan::{PackedMap, TaintKey};

const COUNT: usize = 100;

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap()
}

fn name(index: usize) -> String {
    format!("n-{index:03}")
}

fn sweep_key() -> WorkKey {
    WorkKey::Sweep
}

impl Scene {
    /// A leader of nodes that a policy matches and nobody wrote.
    fn fleet(spec: &str) -> Self {
        let mut scene = Self::synced();
        for index in 0..COUNT {
            scene.set_node(&name(index), &json!({"pool": "a"}));
        }
        scene.set_policy("p", spec);
        scene
    }

    /// Applies a message and makes no plan. The sweep begins with an edit.
    fn receive(&mut self, message: IndexMessage) {
        self.go(|index, now, effects| {
            index.apply(message, now, effects);
            if index.sweep.has_new_edits() {
                index.begin_edits(now, effects);
            }
        });
    }

    fn receive_list<T>(&mut self, message: fn(WatchUpdate<T>) -> IndexMessage, objects: Vec<T>) {
        for update in IndexMessage::list(message, objects) {
            self.receive(update);
        }
    }

    fn edit(&mut self, spec: &str) {
        let policy = self.policy("p", spec);
        self.receive(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    }

    fn planned_at(&mut self, key: &WorkKey, now: Timestamp) -> Option<PlannedWrite> {
        self.go(|index, _, effects| index.planned_write(key, now, effects))
    }

    fn counts(&self) -> NodeCounts {
        self.index.node_counts()[0].1
    }

    /// Takes the next slice of the sweep and plans its nodes. Returns their names.
    fn plan_slice(&mut self) -> Vec<String> {
        assert_eq!(self.planned_at(&sweep_key(), at(0)), None);
        let slice: Vec<_> = self.due_nodes().into_iter().map(str::to_owned).collect();
        for name in &slice {
            self.node_write(name);
        }
        slice
    }
}

#[test]
fn edit_queues_nodes_a_slice_at_a_time_and_plans_none() {
    let mut scene = Scene::fleet(LABEL);
    scene.edit("{nodeSelector: {matchLabels: {pool: a}}, labels: {x: z}}");
    assert!(scene.queued().contains(&&sweep_key()) && scene.due_nodes().is_empty());
    let mut all = Vec::new();
    loop {
        assert_eq!(scene.planned_at(&sweep_key(), at(0)), None);
        let slice: Vec<_> = scene.due_nodes().into_iter().map(str::to_owned).collect();
        if slice.is_empty() {
            break;
        }
        assert!(slice.len() < COUNT / 2, "{}", slice.len());
        assert!(scene.queued().contains(&&sweep_key()));
        all.extend(slice);
    }
    assert_eq!(all, (0..COUNT).map(name).collect::<Vec<_>>());
}

#[test]
fn edits_that_come_together_touch_no_node_before_the_sweep_begins_with_all_of_them() {
    let mut scene = Scene::fleet(LABEL);
    for edit in 0..30 {
        let policy = scene.policy("p", &numbered(edit));
        scene.go(|index, now, effects| {
            index.apply(
                IndexMessage::Policies(WatchUpdate::applied(policy.into())),
                now,
                effects,
            );
        });
        assert_eq!(
            (scene.index.sweep.waiting(), scene.queued().contains(&&sweep_key())),
            (0, true)
        );
    }
    assert_eq!(scene.planned_at(&sweep_key(), at(0)), None);
    assert!(
        scene.due_nodes().is_empty() && scene.queued().contains(&&sweep_key()),
        "a turn of its own"
    );
    assert_eq!(scene.index.sweep.waiting(), COUNT);
    let mut planned = Vec::new();
    while scene.index.sweep.waiting() > 0 {
        planned.extend(scene.plan_slice());
    }
    assert_eq!(planned, (0..COUNT).map(name).collect::<Vec<_>>(), "each once");
}

#[test]
fn no_rollout_goes_on_between_an_edit_and_its_sweep() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.edit(&rollouts::spec(true, "{maxUnavailable: 1}"));
    for name in ["d", "c", "b"] {
        scene.node_write(name);
    }
    // A permit for the first node is due with its plan.
    edit_other_without_sweep(&mut scene, "{nodeSelector: {}, labels: {x: y}}");
    for name in ["a", "b", "c", "d"] {
        assert!(!scene.work_on(name), "{name}");
    }
    assert_eq!(scene.planned_at(&sweep_key(), at(0)), None);
    for name in ["d", "c", "b"] {
        assert!(!scene.work_on(name), "{name}");
    }
    assert!(scene.work_on("a"), "every node is planned with the edits");
}

#[test]
fn node_is_planned_once_and_the_expected_result_of_its_write_is_counted_without_a_plan() {
    let mut scene = Scene::synced();
    scene.set_policy("p", LABEL);
    let facts = scene.facts("n", &json!({"pool": "a"}));
    scene.receive(IndexMessage::Nodes(WatchUpdate::applied(facts)));
    assert_eq!(scene.queued(), [&node("n")], "nothing is planned or counted yet");
    let write = scene.node_write("n").unwrap();
    assert_eq!(scene.counts().updating, 1);
    assert!(!scene.index.is_plan_due("n"));
    let (mut other, patch) = (scene.facts("n", &json!({})), write.patch.unwrap());
    scene.patch_node("n", &patch);
    assert_eq!((scene.counts().ready, scene.queued()), (1, vec![&status("p")]));

    // Another result than expected needs a plan.
    scene.set_policy("p", "{nodeSelector: {matchLabels: {pool: a}}, labels: {x: z}}");
    assert!(scene.node_write("n").is_some());
    other.resource_version = scene.next_version();
    scene.receive(IndexMessage::Written(WrittenObject::Node(Box::new(other))));
    assert!(scene.index.is_plan_due("n"));
    assert_eq!(scene.queued(), [&node("n")]);
}

#[test]
fn status_of_an_edited_policy_waits_for_the_sweep_or_a_second_and_is_never_ready_too_early() {
    let mut scene = Scene::synced();
    for index in 0..2 {
        scene.set_node(&name(index), &json!({"pool": "a"}));
    }
    scene.set_policy("p", LABEL);
    for index in 0..2 {
        scene.write_node(&name(index));
    }
    scene.write_status("p");
    assert_eq!(scene.counts().ready, 2);
    scene.edit("{nodeSelector: {matchLabels: {pool: a}}, labels: {x: z}}");
    assert_eq!(
        (scene.counts().ready, scene.counts().updating),
        (0, 2),
        "nobody knows yet"
    );
    assert_eq!(scene.planned_at(&status("p"), at(0)), None);
    let again = scene.effects.queued.iter().find(|queued| queued.key == status("p"));
    assert_eq!(again.and_then(|queued| queued.at), Some(at(1000)));
    let Some(PlannedWrite::PolicyStatus(write)) = scene.planned_at(&status("p"), at(1000)) else {
        panic!("a second is over")
    };
    assert_eq!(
        write.status.nodes.map(|nodes| nodes.matched),
        Some(2),
        "nobody is missing"
    );

    // A policy that matches no node planned so far could seem to be Ready.
    let policy = scene.policy("q", "{nodeSelector: {matchLabels: {pool: none}}, labels: {y: z}}");
    scene.receive(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    assert_eq!(scene.planned_at(&status("q"), at(2000)), None);
    for index in 0..2 {
        scene.node_write(&name(index));
    }
    assert!(scene.queued().contains(&&status("q")), "{:?}", scene.effects);
    assert!(scene.planned_at(&status("q"), at(2000)).is_some());
}

#[test]
fn new_leader_keeps_each_status_until_every_node_is_planned() {
    let mut scene = Scene::fleet(LABEL);
    scene.go(ClusterIndex::lead);
    assert!(!scene.queued().contains(&&status("p")));
    scene.node_write("n-000");
    assert_eq!(scene.planned_at(&status("p"), at(9_999)), None);
    for index in 1..COUNT {
        scene.node_write(&name(index));
    }
    assert!(scene.queued().contains(&&status("p")), "{:?}", scene.effects);
    assert!(scene.planned_at(&status("p"), at(9_999)).is_some());
}

/// A spec of the policy that no edit before had.
fn numbered(edit: usize) -> String {
    format!("{{nodeSelector: {{matchLabels: {{pool: a}}}}, labels: {{x: y-{edit}}}}}")
}

#[test]
fn edits_faster_than_a_sweep_reach_every_node() {
    let mut scene = Scene::fleet(LABEL);
    let mut reached = BTreeSet::new();
    for edit in 0..4 {
        scene.edit(&numbered(edit));
        reached.extend(scene.plan_slice());
    }
    assert_eq!(reached.len(), COUNT, "one round reaches all");
    let again = scene.plan_slice();
    assert_eq!(
        again.first(),
        Some(&name(28)),
        "those that missed an edit are next, by name"
    );
}

#[test]
fn new_leader_publishes_statuses_although_edits_never_stop() {
    let mut scene = Scene::fleet(LABEL);
    scene.set_policy("other", "{nodeSelector: {matchLabels: {pool: b}}, labels: {y: z}}");
    scene.go(ClusterIndex::lead);
    for edit in 0..4 {
        for policy in ["p", "other"] {
            assert_eq!(scene.planned_at(&status(policy), at(9_999)), None, "round {edit}");
        }
        scene.edit(&numbered(edit));
        assert!(!scene.queued().contains(&&status("other")));
        assert_eq!(scene.planned_at(&sweep_key(), at(0)), None);
        let nodes: Vec<_> = scene.due_nodes().into_iter().map(str::to_owned).collect();
        for name in nodes {
            scene.node_write(&name);
            if scene.index.sweep.is_first() {
                continue;
            }
            assert_eq!(edit, 3, "every node is planned");
            for policy in ["p", "other"] {
                assert!(scene.queued().contains(&&status(policy)), "{:?}", scene.effects);
            }
            break;
        }
    }
    assert!(scene.index.sweep.waiting() > 0, "edits never stop");
    for policy in ["p", "other"] {
        let write = scene.planned_at(&status(policy), at(9_999));
        let Some(PlannedWrite::PolicyStatus(write)) = write else {
            panic!("{policy}: {write:?}")
        };
        let ready = ConditionType::Ready.find(&write.status.conditions).unwrap();
        assert_eq!(ready.status == "True", policy == "other", "{ready:?}");
    }
}

#[test]
fn standby_plans_nothing() {
    let mut scene = Scene::not_synced();
    let policy = scene.policy("p", LABEL);
    let facts = scene.facts("n", &json!({"pool": "a"}));
    scene.receive_list(IndexMessage::Policies, vec![policy.into()]);
    scene.receive_list(IndexMessage::Nodes, vec![facts]);
    scene.receive_list(IndexMessage::GpuNodes, vec![]);
    scene.receive_list(IndexMessage::DaemonSets, vec![]);
    let facts = scene.facts("n", &json!({"pool": "a", "other": "label"}));
    scene.receive(IndexMessage::Nodes(WatchUpdate::applied(facts)));
    assert!(scene.index.has_synced() && scene.due_nodes().is_empty());
    assert_eq!(scene.counts().matched, 0);
    scene.lead();
    assert_eq!(scene.counts().matched, 1);
    assert_eq!(scene.due_nodes(), ["n"]);
}

#[test]
fn rollout_of_an_edited_policy_grants_nothing_before_every_node_is_planned() {
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.edit(&rollouts::spec(true, "{maxUnavailable: 1}"));
    for name in ["d", "c", "b"] {
        assert_eq!(scene.node_write(name).map(|write| write.gpu_node), None, "{name}");
        assert!(scene.due_nodes().is_empty(), "the first by name is not planned yet");
    }
    assert!(
        scene
            .node_write("a")
            .is_some_and(|write| write.gpu_node.gives_configuration())
    );
    for name in ["b", "c", "d"] {
        assert_eq!(scene.node_write(name), None, "one at a time");
    }
}

/// Sets another policy and makes no plan; the sweep begins in its own turn.
fn edit_other_without_sweep(scene: &mut Scene, spec: &str) {
    let policy = scene.policy("q", spec);
    let message = IndexMessage::Policies(WatchUpdate::applied(policy.into()));
    scene.go(|index, now, effects| index.apply(message, now, effects));
}

/// Sets another policy and makes no plan.
fn edit_other(scene: &mut Scene, spec: &str) {
    let policy = scene.policy("q", spec);
    scene.receive(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
}

#[test]
fn rollout_goes_on_although_edits_that_change_none_of_its_stages_never_stop() {
    let elsewhere = |edit: usize| {
        format!("{{nodeSelector: {{matchLabels: {{pool: none}}}}, devicePlugin: {{}}, labels: {{x: y-{edit}}}}}")
    };
    let labels_alone = |edit: usize| format!("{{nodeSelector: {{}}, labels: {{x: y-{edit}}}}}");
    for spec in [&elsewhere as &dyn Fn(usize) -> String, &labels_alone] {
        let mut scene = Scene::governed("{maxUnavailable: 1}");
        scene.edit(&rollouts::spec(true, "{maxUnavailable: 1}"));
        for name in ["d", "c", "b"] {
            scene.node_write(name);
        }
        for (edit, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            edit_other(&mut scene, &spec(edit));
            assert_eq!(scene.index.sweep.waiting(), 4, "every node misses the edit");
            assert!(scene.work_on(name), "{name}: {}", spec(edit));
            scene.report(name, rollouts::Agent::PutsInForce);
            assert!(scene.index.sweep.waiting() > 0, "{name}: edits never stop");
        }
    }
}

#[test]
fn rollout_waits_for_its_nodes_that_an_edit_could_give_to_another_policy() {
    let lower = rollouts::spec(true, "{}").replacen('{', "{priority: -1, ", 1);
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    scene.edit(&rollouts::spec(true, "{maxUnavailable: 1}"));
    for name in ["d", "c", "b"] {
        scene.node_write(name);
    }
    edit_other(&mut scene, &lower);
    for name in ["a", "b", "c"] {
        assert!(!scene.work_on(name), "{name}");
        assert!(scene.index.sweep.holds_rollouts("p") && !scene.index.sweep.awaits_plans("p"));
    }
    scene.node_write("d");
    assert!(scene.due_nodes().contains(&"a"), "{:?}", scene.effects);
    assert!(scene.work_on("a"));
}

#[test]
fn nodes_that_move_between_two_policies_during_a_sweep_count_once_and_where_their_last_plan_says() {
    let select = |pool: &str, value: &str| {
        format!("{{nodeSelector: {{matchLabels: {{pool: {pool}}}}}, labels: {{x: {value}}}}}")
    };
    let mut scene = Scene::synced();
    for name in ["a", "b", "c", "d"] {
        scene.set_node(name, &json!({"pool": "a"}));
    }
    scene.set_policy("p", &select("a", "y"));
    scene.set_policy("q", &select("b", "z"));
    for name in ["a", "b", "c", "d"] {
        scene.write_node(name);
    }
    let matched = |scene: &Scene| {
        let counts: BTreeMap<_, _> = scene.index.node_counts().into_iter().collect();
        (counts["p"].matched, counts["q"].matched)
    };
    let edit = |scene: &mut Scene, name: &str, spec: &str| {
        let policy = scene.policy(name, spec);
        scene.receive(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    };
    assert_eq!(matched(&scene), (4, 0));

    edit(&mut scene, "p", &select("b", "y"));
    for name in ["a", "b"] {
        assert!(scene.node_write(name).is_some(), "its label goes");
    }
    assert_eq!(matched(&scene), (2, 0));
    edit(&mut scene, "q", &select("a", "z"));
    for (name, counts) in [("c", (1, 1)), ("d", (0, 2)), ("a", (0, 3)), ("b", (0, 4))] {
        assert!(scene.node_write(name).is_some(), "{name}");
        assert_eq!(matched(&scene), counts, "{name}");
    }
    assert_eq!(scene.index.sweep.waiting(), 0);
    for name in ["a", "b", "c", "d"] {
        scene.write_node(name);
        assert_eq!(scene.index.objects.nodes.get(name).unwrap().labels.get("x"), Some("z"));
    }
    let counts: BTreeMap<_, _> = scene.index.node_counts().into_iter().collect();
    assert_eq!((counts["q"].ready, counts["q"].updating), (4, 0));
}

#[test]
fn node_that_moves_to_another_policy_and_back_during_a_sweep_keeps_its_configuration() {
    let other = |priority: i32| {
        let spec = rollouts::spec(true, "{maxUnavailable: 1}");
        spec.replacen('{', &format!("{{priority: {priority}, "), 1)
    };
    let mut scene = Scene::governed("{maxUnavailable: 1}");
    let gives = |scene: &mut Scene, name: &str| {
        let write = scene.node_write(name);
        write.is_some_and(|write| write.gpu_node.gives_configuration())
    };
    for (priority, planned) in [(1, ["a", "b"]), (-1, ["c", "d"])] {
        let policy = scene.policy("q", &other(priority));
        scene.receive(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
        for name in planned {
            assert!(!gives(&mut scene, name), "{name} at priority {priority}");
        }
        assert!(scene.index.sweep.holds_rollouts("p"), "others are not planned yet");
    }
    for name in ["a", "b", "c", "d"] {
        assert!(!gives(&mut scene, name), "{name}");
    }
    assert!(!scene.index.sweep.holds_rollouts("p"));
    let counts: BTreeMap<_, _> = scene.index.node_counts().into_iter().collect();
    assert_eq!((counts["p"].ready, counts["p"].matched), (4, 4));
    let mut rollouts = scene.index.outcomes.rollouts("q").into_iter().flatten();
    assert!(rollouts.all(|rollout| rollout.progress().is_none()), "nobody waits");
}

impl Scene {
    /// Class in which the last change queued node `a`.
    fn class_of_a(&self) -> Option<WorkClass> {
        let queued = self.effects.queued.iter().find(|queued| queued.key == node("a"));
        queued.map(|queued| queued.class)
    }
}

#[test]
fn what_people_wait_for_on_a_node_is_urgent_and_labels_are_not() {
    let mut scene = Scene::governed("{}");
    let mut facts = scene.known("a");
    let mut class_after = |edit: &dyn Fn(&mut NodeFacts)| {
        edit(&mut facts);
        facts.resource_version = scene.next_version();
        scene.receive(IndexMessage::Nodes(WatchUpdate::applied(facts.clone())));
        scene.class_of_a()
    };
    let taint = |key: &str| Taint {
        id: TaintKey {
            key: key.to_owned(),
            effect: "NoSchedule".to_owned(),
        },
        value: String::new(),
    };
    let allocate = |node: &mut NodeFacts, count: u64| {
        node.allocatable = Arc::new(BTreeMap::from([("nvidia.com/gpu".to_owned(), count)]));
    };
    let labels = |node: &mut NodeFacts, more: &[(&str, &str)]| {
        let mut labels = node.labels.to_map();
        labels.extend(more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        node.labels = PackedMap::from(&labels);
    };
    let (urgent, ordinary) = (Some(WorkClass::Urgent), Some(WorkClass::Ordinary));
    assert_eq!(
        class_after(&|node| labels(node, &[("example.com/pool", "a")])),
        ordinary
    );
    assert_eq!(class_after(&|node| allocate(node, 3)), ordinary);
    assert_eq!(
        class_after(&|node| labels(node, &[("gpunode.dev/release", "true")])),
        urgent
    );
    assert_eq!(
        class_after(&|node| node.recovered = Some("1970-01-01T00:00:00Z".to_owned())),
        urgent
    );
    assert_eq!(class_after(&|node| node.ready = !node.ready), urgent);
    assert_eq!(class_after(&|node| node.boot = "another".to_owned()), urgent);
    assert_eq!(
        class_after(&|node| node.taints = vec![taint(gpunode_crds::NOT_READY_TAINT)]),
        urgent
    );
    assert_eq!(
        class_after(&|node| allocate(node, 4)),
        urgent,
        "the startup taint may end"
    );
    assert_eq!(class_after(&|node| node.uid = "another".to_owned()), urgent);
    let deleted = deleted(&scene.known("a"));
    scene.receive(IndexMessage::Nodes(WatchUpdate::Deleted(deleted)));
    assert_eq!(scene.class_of_a(), urgent);
}

#[test]
fn labels_of_a_list_that_begins_again_are_ordinary() {
    let mut scene = Scene::fleet(LABEL);
    let nodes = scene.index.objects.nodes.iter().map(|node| (**node).clone());
    let mut nodes: Vec<NodeFacts> = nodes.collect();
    for node in &mut nodes {
        node.labels = PackedMap::from(&BTreeMap::from([("pool".to_owned(), "b".to_owned())]));
        node.resource_version = scene.next_version();
    }
    scene.go(|index, now, effects| {
        for update in IndexMessage::list(IndexMessage::Nodes, nodes) {
            index.apply(update, now, effects);
        }
    });
    let queued = scene.effects.queued.iter();
    let classes: Vec<_> = queued
        .filter(|queued| matches!(queued.key, WorkKey::Node(_)))
        .map(|queued| queued.class)
        .collect();
    assert_eq!(classes, [WorkClass::Ordinary; COUNT]);
}

#[test]
fn health_is_urgent_and_the_progress_of_agents_is_not() {
    let mut scene = Scene::governed("{}");
    let mut gpu_node = (**scene.index.objects.gpu_nodes.get("a").unwrap()).clone();
    let mut receive = |scene: &mut Scene, edit: &dyn Fn(&mut GpuNodeStatus)| {
        edit(Arc::make_mut(gpu_node.status.as_mut().unwrap()));
        gpu_node.resource_version = scene.next_version();
        scene.receive(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node.clone())));
    };
    receive(&mut scene, &|status| status.config_hash = Some("another".to_owned()));
    assert_eq!(scene.class_of_a(), Some(WorkClass::Ordinary));
    receive(&mut scene, &|status| {
        status.gpus.push(gpunode_crds::GpuDevice::default());
    });
    assert_eq!(scene.class_of_a(), Some(WorkClass::Urgent));
}

#[test]
fn recheck_is_urgent_for_a_health_taint_alone() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let plan = |recheck, urgent_recheck| NodePlan {
        recheck: Some(at(recheck)),
        urgent_recheck,
        ..NodePlan::default()
    };
    let queued = |plan: &NodePlan| {
        let mut effects = Effects::default();
        effects.recheck("a", plan);
        let queued = effects.queued.into_iter();
        queued.map(|queued| (queued.class, queued.at)).collect::<Vec<_>>()
    };
    let (ordinary, urgent) = (WorkClass::Ordinary, WorkClass::Urgent);
    assert_eq!(queued(&plan(5, None)), [(ordinary, Some(at(5)))]);
    assert_eq!(queued(&plan(5, Some(at(5)))), [(urgent, Some(at(5)))]);
    let both = [(ordinary, Some(at(5))), (urgent, Some(at(9)))];
    assert_eq!(queued(&plan(5, Some(at(9)))), both);
    assert_eq!(queued(&NodePlan::default()), []);
}
