//! Approvals of MIG changes, as turns in the rollout of their policy.

use super::*;

const LAYOUT: &str = "{nodeSelector: {}, rollout: {maxUnavailable: 1}, \
     devicePlugin: {mig: {strategy: Mixed, layout: [{preset: all-balanced}]}}}";

impl Scene {
    /// Four nodes that have their layout in force, and GPUs that are free to change.
    fn free_to_change() -> Self {
        let mut scene = Self::governed("{maxUnavailable: 4}");
        scene.set_policy("p", LAYOUT);
        for name in NODES {
            assert!(scene.work_on(name), "{name}");
            scene.report(name, Agent::PutsInForce);
        }
        for name in NODES {
            scene.report_mig(name, "AwaitingApproval", false);
        }
        scene
    }

    /// The agent of a node reports the phase of its GPU, and the end of the change.
    fn report_mig(&mut self, name: &str, phase: &str, is_finished: bool) {
        let gpu_node = self.index.objects.gpu_nodes.get(name).unwrap();
        let before = gpu_node.finished_change.map(Time);
        let change = gpu_node.change.as_ref().map(|change| change.since.clone());
        let status = json!({
            "agent": {"pod": "x", "podUid": "x", "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
            "configHash": gpu_node.spec.config.as_ref().unwrap().hash, "finishedStep": gpu_node.finished_step.map(Time),
            "finishedChange": if is_finished { change } else { before },
            "gpus": [{"index": 0, "uuid": "GPU-0", "product": "A100", "memoryMiB": 1,
                "mig": {"wanted": "1g.5gb:7", "observed": "off", "phase": phase, "message": "m"}}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Registered", "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:00Z"}],
        });
        let mut gpu_node = (**gpu_node).clone();
        set_status(&mut gpu_node, status);
        gpu_node.resource_version = self.next_version();
        self.apply(IndexMessage::GpuNodes(WatchUpdate::applied(gpu_node)));
    }

    /// Nodes with an approval that is under way.
    fn approved(&self) -> Vec<&'static str> {
        let gpu_nodes = &self.index.objects.gpu_nodes;
        let is_approved = |name: &str| gpu_nodes.get(name).unwrap().unfinished_approval().is_some();
        NODES.into_iter().filter(|name| is_approved(name)).collect()
    }

    /// Works on every node, some times over.
    fn work_on_all(&mut self) {
        for name in NODES.into_iter().cycle().take(3 * NODES.len()) {
            assert!(!self.work_on(name), "no configuration changes");
        }
    }

    /// The process that leads next, with what the API server has.
    fn next_leader(&self) -> Self {
        let mut next = Self::not_synced();
        next.version = self.version;
        let objects = &self.index.objects;
        let policies = objects.policies.iter().map(|it| (**it).clone().into());
        next.list(IndexMessage::Policies, policies.collect());
        next.list(
            IndexMessage::Nodes,
            objects.nodes.iter().map(|it| (**it).clone()).collect(),
        );
        let gpu_nodes = objects.gpu_nodes.iter().map(|it| (**it).clone());
        next.list(IndexMessage::GpuNodes, gpu_nodes.collect());
        next.list(IndexMessage::DaemonSets, vec![]);
        next.lead();
        next
    }
}

#[test]
fn one_node_after_the_other_gets_its_approval() {
    let mut scene = Scene::free_to_change();
    for name in NODES {
        scene.work_on_all();
        assert_eq!(scene.approved(), [name]);
        for phase in ["Applying", "Applied"] {
            scene.report_mig(name, phase, false);
            scene.work_on_all();
            assert_eq!(scene.approved(), [name], "{phase}");
        }
        let before = scene.index.objects.gpu_nodes.get(name).unwrap().change.clone();
        scene.report_mig(name, "Applied", true);
        assert!(!scene.work_on(name));
        let after = scene.index.objects.gpu_nodes.get(name).unwrap().change.clone();
        assert_eq!(after, before, "its end needs no write");
    }
    scene.work_on_all();
    assert_eq!(scene.approved(), [""; 0]);
    assert_eq!(scene.index.node_counts()[0].1.ready, 4);
}

#[test]
fn leader_that_comes_before_or_after_the_write_grants_no_second_approval() {
    let mut scene = Scene::free_to_change();
    assert!(scene.node_write("a").is_some(), "a permit that is used and not written");
    let mut next = scene.next_leader();
    next.work_on_all();
    assert_eq!(next.approved(), ["a"]);
    let mut third = next.next_leader();
    third.work_on_all();
    assert_eq!(third.approved(), ["a"]);
    third.report_mig("a", "Applied", true);
    let mut last = third.next_leader();
    last.work_on_all();
    assert_eq!(last.approved(), ["b"]);
}

#[test]
fn approval_that_the_api_server_refuses_lets_others_go_first() {
    let mut scene = Scene::free_to_change();
    assert!(scene.node_write("a").is_some());
    scene.finished(node("a"), WriteResult::Refused("no".to_owned()));
    assert_eq!(scene.due_nodes(), ["b"]);
    assert!(!scene.work_on("b"));
    assert_eq!(scene.approved(), ["b"]);
}

#[test]
fn change_that_fails_is_approved_on_no_further_node() {
    let mut scene = Scene::free_to_change();
    assert!(!scene.work_on("a"));
    for phase in ["Failed", "Applying", "Failed"] {
        scene.report_mig("a", phase, false);
        scene.work_on_all();
        assert_eq!(scene.approved(), ["a"], "{phase}");
    }
    assert!(
        scene
            .ready()
            .starts_with("False RolloutStopped: stopped: node a failed: MigFailed: GPU 0: m; "),
        "{}",
        scene.ready()
    );
    let mut next = scene.next_leader();
    next.report_mig("a", "Applying", false);
    next.work_on_all();
    assert_eq!(next.approved(), ["a"], "the stop outlasts the operator");
    next.report_mig("a", "Applied", true);
    next.work_on_all();
    assert_eq!(next.approved(), ["b"]);
}

#[test]
fn node_that_waits_for_pods_holds_no_other_up() {
    let mut scene = Scene::free_to_change();
    for name in ["a", "b"] {
        scene.report_mig(name, "Waiting", false);
    }
    scene.work_on_all();
    assert_eq!(scene.approved(), ["c"]);
}

#[test]
fn progress_with_a_layout_is_not_urgent_and_a_fault_is() {
    let class = |scene: &Scene, after: GpuNodeFacts| {
        let before = scene.index.objects.gpu_nodes.get("a").cloned();
        gpu_node_class(&ObjectDelta {
            name: "a".to_owned(),
            before,
            after: Some(Arc::new(after)),
        })
    };
    let with = |scene: &Scene, gpu: serde_json::Value| {
        let mut after = (**scene.index.objects.gpu_nodes.get("a").unwrap()).clone();
        let agent = json!({"pod": "x", "podUid": "x", "mode": "DevicePlugin", "version": "1", "configVersions": [1]});
        set_status(&mut after, json!({"agent": agent, "gpus": [gpu]}));
        after
    };
    let gpu = |more: serde_json::Value| {
        let mut gpu = json!({"index": 0, "uuid": "GPU-0", "product": "A100", "memoryMiB": 1});
        gpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gpu
    };
    let mig = json!({"wanted": "1g.5gb:7", "observed": "1g.5gb:7", "phase": "Applied"});
    let device = json!({"uuid": "MIG-1", "profile": "1g.5gb", "gpuInstance": 1, "computeInstance": 0, "memoryMiB": 1});
    let divided = gpu(json!({"mig": mig, "migDevices": [device]}));
    let fault = gpu(json!({"mig": mig, "health": {"state": "Unhealthy"}}));
    let mut scene = Scene::free_to_change();
    let applied = gpu(json!({"mig": mig}));
    assert_eq!(class(&scene, with(&scene, applied.clone())), WorkClass::Ordinary);
    assert_eq!(
        class(&scene, with(&scene, divided.clone())),
        WorkClass::Urgent,
        "nobody approved it"
    );
    scene.work_on_all();
    assert_eq!(class(&scene, with(&scene, divided)), WorkClass::Ordinary);
    assert_eq!(class(&scene, with(&scene, fault)), WorkClass::Urgent);
}
