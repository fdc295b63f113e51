//! Plans of small clusters.

use super::*;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

fn policy(name: &str, spec: &serde_json::Value) -> GpuNodePolicy {
    let object = json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
    });
    serde_json::from_value(object).expect("a policy")
}

fn node(name: &str, labels: &serde_json::Value) -> Node {
    let metadata = json!({"name": name, "uid": name, "resourceVersion": "1", "labels": labels});
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}))
        .expect("a node")
}

fn plan(cluster: &ClusterSnapshot, applied: &[GpuNodePolicy]) -> ClusterPlan {
    let applied = applied
        .iter()
        .map(|policy| (policy.name_any(), policy.clone()))
        .collect();
    ClusterPlan::of(cluster, &applied, &BTreeSet::new(), Timestamp::UNIX_EPOCH).expect("a plan")
}

/// A cluster once its policies are in force.
fn carried_out(mut cluster: ClusterSnapshot) -> ClusterSnapshot {
    let policies = cluster.policy_set(&cluster.policies);
    let mut gpu_nodes: BTreeMap<_, _> = cluster.gpu_nodes.drain(..).map(|of| (of.name_any(), of)).collect();
    for node in &mut cluster.nodes {
        let simulated = SimulatedNode::of(node.clone(), gpu_nodes.remove(&node.name_any()), &policies);
        let simulated = simulated.carried_out(&policies, Timestamp::UNIX_EPOCH).expect("a plan");
        *node = simulated.node().clone();
        cluster.gpu_nodes.extend(simulated.gpu_node().cloned());
    }
    cluster
}

/// Two GPUs, one of them held.
fn gpu_node(name: &str) -> GpuNode {
    let gpu = |index: u32| {
        json!({"index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-T4", "memoryMiB": 15360,
            "computeCapability": "7.5"})
    };
    let holder = json!({"namespace": "ml", "pod": "train", "container": "c", "resource": "nvidia.com/gpu", "device": "GPU-1", "count": 1});
    let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {},
        "status": {"gpus": [gpu(0), gpu(1)], "holders": [holder]}});
    serde_json::from_value(object).expect("a GpuNode")
}

/// Two nodes of a pool, one of them with a foreign label, and two of others; a policy in force on the pool.
pub fn sample() -> ClusterPlan {
    let cluster = ClusterSnapshot {
        policies: vec![policy(
            "pool",
            &json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"team": "x", "old": "1"},
                "taints": [{"key": "dedicated", "effect": "NoSchedule"}], "devicePlugin": {}}),
        )],
        gpu_nodes: vec![gpu_node("n1")],
        nodes: vec![
            node("n2", &json!({"pool": "a", "accelerator": "theirs"})),
            node("n1", &json!({"pool": "a"})),
            node("n3", &json!({"pool": "b"})),
            node("n4", &json!({"pool": "d"})),
        ],
        unreadable: vec![UnreadableObject {
            kind: "GpuNode".to_owned(),
            name: "n3".to_owned(),
            message: "its status cannot be read: bad time".to_owned(),
        }],
        ..ClusterSnapshot::default()
    };
    let applied = policy(
        "pool",
        &json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"team": "y", "accelerator": "v100"},
            "taints": [{"key": "dedicated", "value": "v100", "effect": "NoExecute"}],
            "devicePlugin": {"passDeviceSpecs": true, "resources": [
                {"name": "nvidia.com/gpu", "sharing": {"strategy": "TimeSlicing", "replicas": 4}},
                {"name": "example.com/rest"}]},
            "image": "agent:2"}),
    );
    let other = policy(
        "other",
        &json!({"nodeSelector": {"matchLabels": {"pool": "c"}}, "labels": {"a": "b"}, "mode": "Preview"}),
    );
    let more = policy(
        "more",
        &json!({"nodeSelector": {"matchLabels": {"pool": "d"}}, "devicePlugin": {}}),
    );
    plan(&carried_out(cluster), &[applied, other, more])
}

#[test]
fn applying_what_is_there_changes_nothing() {
    let same = policy(
        "same",
        &json!({"nodeSelector": {}, "labels": {"a": "b"}, "devicePlugin": {}}),
    );
    let cluster = ClusterSnapshot {
        policies: vec![same.clone()],
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let plan = plan(&cluster, &[same]);
    assert_eq!((plan.nodes.len(), plan.unchanged), (0, 1));
    assert_eq!(plan.policies[0].action, ChangeAction::None);
    assert_eq!(plan.policies[0].matched, 1);
}

#[test]
fn a_new_policy_adds_and_a_foreign_value_stays() {
    let cluster = ClusterSnapshot {
        nodes: vec![node("n", &json!({"a": "theirs"}))],
        ..ClusterSnapshot::default()
    };
    let plan = plan(
        &cluster,
        &[policy(
            "new",
            &json!({"nodeSelector": {}, "labels": {"a": "b", "c": "d"}}),
        )],
    );
    let [node] = plan.nodes.as_slice() else {
        panic!("{plan:?}")
    };
    let added = PlannedChange {
        action: ChangeAction::Add,
        what: ChangeSubject::Label,
        key: Some("c".into()),
        from: None,
        to: Some("d".into()),
    };
    assert_eq!(node.changes, [added]);
    assert_eq!(node.obstacles.len(), 1, "{:?}", node.obstacles);
}

#[test]
fn what_a_deleted_policy_gave_goes_and_what_runs_on_it_notices() {
    let old = policy(
        "old",
        &json!({"nodeSelector": {}, "labels": {"a": "b"}, "devicePlugin": {}}),
    );
    let other = policy("other", &json!({"nodeSelector": {}, "labels": {"c": "d"}}));
    let nodes = vec![node("n", &json!({}))];
    let policies = vec![old, other];
    let cluster = carried_out(ClusterSnapshot {
        policies,
        nodes,
        gpu_nodes: vec![gpu_node("n")],
        ..ClusterSnapshot::default()
    });
    let deleted = BTreeSet::from(["old".to_owned()]);
    let plan = ClusterPlan::of(&cluster, &BTreeMap::new(), &deleted, Timestamp::UNIX_EPOCH).expect("a plan");
    let [
        PlannedPolicy {
            action: ChangeAction::Remove,
            matched: 1,
            ..
        },
    ] = plan.policies.as_slice()
    else {
        panic!("{plan:?}")
    };
    let text =
        anstream::adapter::strip_str(&crate::plan::text::plan(&plan, crate::output::TextWidth::UNLIMITED)).to_string();
    for line in [
        "- label a=b",
        "- governed by old",
        "the device plugin is removed while pod ml/train",
        "policy old: deleted; matched 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("label c"), "the other policy stays: {text}");
    assert!(plan.is_disruptive());
}

#[test]
fn a_policy_in_mode_preview_is_planned_as_if_in_force() {
    let cluster = ClusterSnapshot {
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let preview = policy(
        "new",
        &json!({"nodeSelector": {}, "labels": {"c": "d"}, "mode": "Preview"}),
    );
    let plan = plan(&cluster, &[preview]);
    assert!(plan.policies[0].preview);
    assert_eq!(plan.nodes[0].changes.len(), 1);
}

#[test]
fn the_label_of_the_mps_daemons_comes_with_a_resource_that_needs_them() {
    let mps = json!({"resources": [{"name": "a.b/c", "sharing": {"strategy": "Mps", "replicas": 10}}]});
    let cluster = ClusterSnapshot {
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let plan = plan(
        &cluster,
        &[policy("new", &json!({"nodeSelector": {}, "devicePlugin": mps}))],
    );
    let changes = &plan.nodes[0].changes;
    assert!(
        changes
            .iter()
            .any(|change| change.key.as_deref() == Some("gpunode.dev/mps")),
        "{changes:?}"
    );
    let text =
        anstream::adapter::strip_str(&crate::plan::text::plan(&plan, crate::output::TextWidth::UNLIMITED)).to_string();
    assert!(text.contains("+ resource a.b/c: 10 shares per GPU (Mps)"), "{text}");
    assert!(!text.contains("gpunode.dev/mps"), "{text}");
}

#[test]
fn an_operator_without_fact_labels_is_planned_without_them() {
    let policy = policy("new", &json!({"nodeSelector": {}, "labels": {"a": "b"}}));
    let removed = |operator| {
        let mut node = node("n", &json!({"nvidia.com/gpu.count": "2"}));
        let record = r#"{"version":1,"labels":{"nvidia.com/gpu.count":"2"}}"#;
        node.metadata.annotations = Some([("gpunode.dev/owned".to_owned(), record.to_owned())].into());
        let cluster = ClusterSnapshot {
            nodes: vec![node],
            gpu_nodes: vec![gpu_node("n")],
            operator: Some(operator),
            ..ClusterSnapshot::default()
        };
        let policies = cluster.policy_set([]);
        let before = SimulatedNode::of(cluster.nodes[0].clone(), Some(cluster.gpu_nodes[0].clone()), &policies);
        let before = before.carried_out(&policies, Timestamp::UNIX_EPOCH).expect("a plan");
        assert_eq!(plan(&cluster, std::slice::from_ref(&policy)).nodes[0].changes.len(), 1);
        !before
            .entries
            .contains_key(&(ChangeSubject::Label, "nvidia.com/gpu.count".to_owned()))
    };
    let operator = |args: &[&str]| crate::snapshot::operator::tests::operator(&json!({"args": args}));
    assert!(removed(operator(&["--gpu-labels=false"])));
    assert!(!removed(operator(&[])));
}

#[test]
fn policies_that_would_disagree_are_an_obstacle() {
    let there = policy("one", &json!({"nodeSelector": {}, "labels": {"a": "1"}}));
    let cluster = ClusterSnapshot {
        policies: vec![there],
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let plan = plan(
        &cluster,
        &[policy("two", &json!({"nodeSelector": {}, "labels": {"a": "2"}}))],
    );
    assert!(plan.nodes[0].changes.is_empty());
    assert!(
        plan.nodes[0].obstacles[0].contains("equal priority"),
        "{:?}",
        plan.nodes[0].obstacles
    );
}

#[test]
fn a_dra_driver_of_the_same_gpus_is_an_obstacle_for_a_device_plugin_alone() {
    let mut served = gpu_node("n");
    served.spec.served_by_dra = true;
    let cluster = ClusterSnapshot {
        nodes: vec![node("n", &json!({}))],
        gpu_nodes: vec![served],
        ..ClusterSnapshot::default()
    };
    let obstacles = |spec| plan(&cluster, &[policy("p", &spec)]).nodes[0].obstacles.clone();
    assert_eq!(
        obstacles(json!({"nodeSelector": {}, "devicePlugin": {}})),
        [gpunode_crds::SERVED_BY_DRA]
    );
    assert_eq!(obstacles(json!({"nodeSelector": {}, "labels": {"a": "1"}})), [""; 0]);
}

#[test]
fn a_node_that_would_stay_as_it_is_has_no_changes() {
    let config = |replicas: i32| {
        let sharing = json!({"strategy": "TimeSlicing", "replicas": replicas});
        json!({"nodeSelector": {}, "devicePlugin": {"resources": [{"name": "nvidia.com/gpu", "sharing": sharing}]}})
    };
    let cluster = ClusterSnapshot {
        policies: vec![policy("one", &config(2))],
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let plan = plan(&cluster, &[policy("two", &config(4))]);
    assert!(plan.nodes[0].changes.is_empty(), "{:?}", plan.nodes[0].changes);
    assert!(
        plan.nodes[0].obstacles[0].contains("disagree about devicePlugin"),
        "{:?}",
        plan.nodes[0].obstacles
    );
}

fn shared(replicas: i32, mode: &str) -> GpuNodePolicy {
    let sharing = json!({"strategy": "TimeSlicing", "replicas": replicas});
    let plugin = json!({"resources": [{"name": "nvidia.com/gpu", "sharing": sharing}]});
    policy(
        "pool",
        &json!({"nodeSelector": {}, "mode": mode, "devicePlugin": plugin}),
    )
}

/// A node on which a policy is in force, in a cluster that has another one of the same name.
fn overtaken(by: GpuNodePolicy, in_force: GpuNodePolicy) -> ClusterSnapshot {
    let nodes = vec![node("n", &json!({}))];
    let cluster = ClusterSnapshot {
        policies: vec![in_force],
        gpu_nodes: vec![gpu_node("n")],
        nodes,
        ..ClusterSnapshot::default()
    };
    ClusterSnapshot {
        policies: vec![by],
        ..carried_out(cluster)
    }
}

#[test]
fn a_node_behind_a_stopped_rollout_changes_from_what_it_has() {
    let cluster = overtaken(shared(4, "Enforce"), shared(2, "Enforce"));
    let to_eight = plan(&cluster, &[shared(8, "Enforce")]);
    let resource = to_eight.nodes[0]
        .changes
        .iter()
        .find(|change| change.what == ChangeSubject::Resource)
        .expect("a resource");
    assert_eq!(resource.from.as_deref(), Some("2 replicas per GPU (TimeSlicing)"));
    let back = plan(&cluster, &[shared(2, "Enforce")]);
    assert_eq!((back.nodes.len(), back.is_disruptive()), (0, false), "{:?}", back.nodes);
}

#[test]
fn a_policy_that_pauses_counts_the_nodes_that_it_governs() {
    let policies = |mode| shared(2, mode);
    let plan = plan(
        &overtaken(policies("Enforce"), policies("Enforce")),
        &[policies("Paused")],
    );
    assert_eq!(plan.policies[0].matched, 1);
    assert!(
        plan.nodes.iter().all(|node| node.changes.is_empty()),
        "{:?}",
        plan.nodes
    );
}

#[test]
fn what_will_be_there_only_for_a_while_is_a_note_and_no_change() {
    let cluster = ClusterSnapshot {
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    };
    let starting = policy(
        "new",
        &json!({"nodeSelector": {}, "startupTaint": {}, "devicePlugin": {}}),
    );
    let planned = plan(&cluster, &[starting]);
    let [node] = planned.nodes.as_slice() else {
        panic!("{planned:?}")
    };
    assert!(
        node.changes.iter().all(|change| change.what != ChangeSubject::Taint),
        "{:?}",
        node.changes
    );
    let told = "taint gpunode.dev/not-ready:NoSchedule is set only until the promised resources are allocatable";
    assert!(node.notes.iter().any(|note| note == told), "{:?}", node.notes);
    assert!(!planned.is_disruptive());
}

#[test]
fn policy_with_an_image_that_the_operator_does_not_allow_is_refused_in_its_words() {
    let spec = |image: &str, replicas: u32| {
        let sharing = json!({"strategy": "TimeSlicing", "replicas": replicas});
        let plugin = json!({"resources": [{"name": "nvidia.com/gpu", "sharing": sharing}]});
        policy(
            "p",
            &json!({"nodeSelector": {}, "devicePlugin": plugin, "image": image}),
        )
    };
    let env = json!([{"name": "AGENT_IMAGE", "value": "example.com/agent:1"}]);
    let cluster = carried_out(ClusterSnapshot {
        policies: vec![spec("example.com/agent:1", 2)],
        nodes: vec![node("n", &json!({}))],
        operator: Some(crate::snapshot::operator::tests::operator(&json!({"env": env}))),
        ..ClusterSnapshot::default()
    });
    let refused = plan(&cluster, &[spec("other.example/agent:1", 4)]);
    assert!(refused.nodes.is_empty(), "the node keeps what it has: {refused:?}");
    let text = anstream::adapter::strip_str(&crate::plan::text::plan(&refused, crate::output::TextWidth::UNLIMITED))
        .to_string();
    let words = "! refused by the operator: spec.image: other.example/agent:1 is not allowed; use an image of example.com/agent, or let \
                 an administrator add its repository to AGENT_IMAGES of the operator";
    assert!(text.contains(words), "{text}");
    assert!(refused.is_disruptive());
    let allowed = plan(&cluster, &[spec("example.com/agent:2", 4)]);
    assert!(allowed.policies[0].refusal.is_none() && !allowed.nodes.is_empty());
}

#[test]
fn node_of_a_policy_that_cannot_be_read_keeps_its_configuration() {
    let plugin = |name: &str, priority: i32| {
        policy(
            name,
            &json!({"nodeSelector": {}, "priority": priority, "devicePlugin": {}}),
        )
    };
    let mut cluster = carried_out(ClusterSnapshot {
        policies: vec![plugin("newer", 0)],
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    });
    cluster.policies.clear();
    cluster.unreadable.push(UnreadableObject {
        kind: "GpuNodePolicy".to_owned(),
        name: "newer".to_owned(),
        message: "it cannot be read: unknown variant".to_owned(),
    });
    let plan = plan(&cluster, &[plugin("another", 10)]);
    assert!(plan.nodes.is_empty(), "{:?}", plan.nodes);
}

/// A cluster with a policy in force on one node.
fn with_policy(spec: &serde_json::Value, gpu_node: GpuNode) -> ClusterSnapshot {
    carried_out(ClusterSnapshot {
        policies: vec![policy("p", spec)],
        gpu_nodes: vec![gpu_node],
        nodes: vec![node("n", &json!({}))],
        ..ClusterSnapshot::default()
    })
}

/// Plans another spec of the policy. Returns the pods that drains evict, the disruptions, and true where the plan is disruptive.
fn drained(cluster: &ClusterSnapshot, spec: &serde_json::Value) -> (Vec<String>, Vec<String>, bool) {
    let plan = plan(cluster, &[policy("p", spec)]);
    let is_disruptive = plan.is_disruptive();
    let (mut pods, mut disruptions) = (Vec::new(), Vec::new());
    for node in plan.nodes {
        pods.extend(node.drained);
        disruptions.extend(node.disruptions);
    }
    (pods, disruptions, is_disruptive)
}

fn with_drain(drain: &serde_json::Value, plugin: &serde_json::Value) -> serde_json::Value {
    json!({"nodeSelector": {}, "drain": drain, "devicePlugin": plugin})
}

#[test]
fn pods_that_a_policy_evicts_for_a_change_are_told_from_those_that_it_waits_for() {
    let spec = |drain: &str, plugin: &serde_json::Value| with_drain(&json!({"policy": drain}), plugin);
    let cluster = with_policy(&spec("Wait", &json!({})), gpu_node("n"));
    let shared =
        json!({"resources": [{"name": "nvidia.com/gpu", "sharing": {"strategy": "TimeSlicing", "replicas": 2}}]});
    let (pods, disruptions, is_disruptive) = drained(&cluster, &spec("Evict", &shared));
    assert_eq!((pods, is_disruptive), (vec!["ml/train".to_owned()], true));
    assert_eq!(
        disruptions,
        [
            "GPU 1 stays unchanged until pod ml/train ends",
            "drain evicts pod ml/train at the turn of the node, within PodDisruptionBudgets and drain.timeout",
        ]
    );
    assert_eq!(drained(&cluster, &spec("Wait", &shared)).0, [""; 0]);
    let same_devices = spec("Evict", &json!({"passDeviceSpecs": true}));
    assert_eq!(drained(&cluster, &same_devices), (vec![], vec![], false));
}

#[test]
fn pods_on_mig_instances_that_go_are_a_disruption_only_where_they_are_evicted() {
    let device = |instance: u32| {
        json!({"uuid": format!("MIG-{instance}"), "profile": "1g.10gb", "gpuInstance": instance, "computeInstance": 0,
            "memoryMiB": 9728})
    };
    let mut divided = gpu_node("n");
    let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "NVIDIA-A100-SXM4-80GB", "memoryMiB": 81920,
        "computeCapability": "8.0", "migMode": "Enabled", "migDevices": [device(0), device(1)]});
    let holder = json!({"namespace": "ml", "pod": "train", "container": "c", "resource": "nvidia.com/mig-1g.10gb",
        "device": "MIG-1", "count": 1});
    divided.status = serde_json::from_value(json!({"gpus": [gpu], "holders": [holder]})).expect("a status");
    let plugin = |layout: &serde_json::Value| json!({"mig": {"strategy": "Mixed", "layout": layout}});
    let cluster = with_policy(
        &json!({"nodeSelector": {}, "devicePlugin": plugin(&json!([]))}),
        divided,
    );
    let layout = plugin(&json!([{"instances": {"7g.80gb": 1}}]));
    let evict = json!({"policy": "Evict"});
    assert_eq!(
        drained(&cluster, &with_drain(&json!({"policy": "Wait"}), &layout)),
        (vec![], vec![], false)
    );
    let (pods, disruptions, is_disruptive) = drained(&cluster, &with_drain(&evict, &layout));
    assert_eq!(
        (pods.as_slice(), is_disruptive),
        (["ml/train".to_owned()].as_slice(), true)
    );
    assert_eq!(
        disruptions,
        ["drain evicts pod ml/train at the turn of the node, within PodDisruptionBudgets and drain.timeout"]
    );
    let stays = plugin(&json!([{"instances": {"1g.10gb": 3}}]));
    assert_eq!(drained(&cluster, &with_drain(&evict, &stays)), (vec![], vec![], false));
}

#[test]
fn pods_that_a_change_waits_for_already_are_evicted_once_the_policy_says_so() {
    let waiting = |switches: bool| {
        let mut gpu_node = gpu_node("n");
        let waiting =
            json!([{"device": "GPU-1", "message": "waits", "pods": ["ml/train", "ml/other"], "switches": switches}]);
        gpu_node.status.as_mut().expect("a status").waiting = serde_json::from_value(waiting).expect("devices");
        gpu_node
    };
    let (wait, evict) = (json!({"policy": "Wait"}), json!({"policy": "Evict"}));
    let spec = |drain: &serde_json::Value| with_drain(drain, &json!({}));
    let pods = vec!["ml/other".to_owned(), "ml/train".to_owned()];
    let nothing = (vec![], vec![], false);
    let cluster = with_policy(&spec(&wait), waiting(true));
    let evicted = drained(&cluster, &spec(&evict));
    assert_eq!((evicted.0, evicted.2), (pods.clone(), true));
    assert_eq!(
        evicted.1,
        [
            "drain evicts 2 pods at the turn of the node, within PodDisruptionBudgets and drain.timeout: ml/other, ml/train"
        ]
    );
    let text = plan(&cluster, &[policy("p", &spec(&evict))]);
    let text =
        anstream::adapter::strip_str(&crate::plan::text::plan(&text, crate::output::TextWidth::UNLIMITED)).to_string();
    assert!(
        text.contains("1 node would change, 0 would not; running pods disrupted on 1 node"),
        "{text}"
    );
    // Together with a configuration that changes nothing of the device.
    let other = with_drain(&evict, &json!({"passDeviceSpecs": true}));
    assert_eq!(drained(&cluster, &other).0, pods);
    assert_eq!(drained(&cluster, &spec(&wait)), nothing);
    let paused = json!({"mode": "Paused", "nodeSelector": {}, "drain": evict, "devicePlugin": {}});
    let (evicted, disruptions, _) = drained(&cluster, &paused);
    assert_eq!(
        (evicted, disruptions),
        (vec![], vec![]),
        "nobody is evicted while the policy is paused"
    );
    let draining = with_policy(&spec(&evict), waiting(true));
    let longer = json!({"policy": "Evict", "timeout": "1h"});
    assert_eq!(
        drained(&draining, &spec(&longer)),
        nothing,
        "they are evicted without this change"
    );
    let foreign = with_policy(&spec(&wait), waiting(false));
    assert_eq!(
        drained(&foreign, &spec(&evict)),
        nothing,
        "no drain hastens this device"
    );
    for (phase, reason, count) in [
        ("Waiting", None, 2),
        ("Blocked", Some("DrainTimedOut"), 2),
        ("Blocked", Some("DoesNotFit"), 0),
        ("Blocked", Some("Unhealthy"), 0),
        ("RebootRequired", None, 0),
    ] {
        let mut gpu_node = waiting(true);
        let mig = json!({"wanted": "off", "observed": "{}", "phase": phase, "reason": reason});
        gpu_node.status.as_mut().expect("a status").gpus[1].mig = serde_json::from_value(mig).expect("progress");
        let (pods, ..) = drained(&with_policy(&spec(&wait), gpu_node), &spec(&evict));
        assert_eq!(
            pods.len(),
            count,
            "{phase} {reason:?}: a drain that frees no GPU evicts nobody"
        );
    }
}

#[test]
fn monitors_that_keep_a_gpu_open_are_evicted_once_the_policy_names_them() {
    let blocked = |reason: &str| {
        let mut gpu_node = gpu_node("n");
        let mig = json!({"wanted": "off", "observed": "{}", "phase": "Blocked", "reason": reason});
        gpu_node.status.as_mut().expect("a status").gpus[0].mig = serde_json::from_value(mig).expect("progress");
        gpu_node
    };
    let monitors = json!([{"namespace": "gpu-operator", "podSelector": {"matchLabels": {"app": "nvidia-dcgm"}}}]);
    let bare = with_drain(&json!({"policy": "Evict"}), &json!({}));
    let naming = with_drain(&json!({"policy": "Evict", "evict": monitors}), &json!({}));
    let cluster = with_policy(&bare, blocked("InUse"));
    let words = "drain evicts pods that drain.evict names: GPU 0 is Blocked (InUse)";
    assert_eq!(drained(&cluster, &naming), (vec![], vec![words.to_owned()], true));
    assert_eq!(drained(&cluster, &bare), (vec![], vec![], false));
    let pending = with_policy(&bare, blocked("ModePending"));
    assert_eq!(drained(&pending, &naming), (vec![], vec![], false));
    let there = with_policy(&naming, blocked("InUse"));
    assert_eq!(drained(&there, &naming), (vec![], vec![], false));
}

fn divided(preset: &str) -> GpuNodePolicy {
    let mig = json!({"strategy": "Mixed", "layout": [{"preset": preset}]});
    policy("divided", &json!({"nodeSelector": {}, "devicePlugin": {"mig": mig}}))
}

fn obstacles_of(node: &str, cluster: &ClusterSnapshot, applied: &GpuNodePolicy) -> Vec<String> {
    let plan = plan(cluster, std::slice::from_ref(applied));
    let mut nodes = plan.nodes.into_iter();
    nodes
        .find(|planned| planned.name == node)
        .map_or_else(Vec::new, |planned| planned.obstacles)
}

#[test]
fn what_keeps_a_configuration_from_a_node_is_told_in_the_operators_words() {
    let with_agent = |name: &str, versions: &[i32], fields: &[&str]| {
        let mut gpu_node = gpu_node(name);
        let agent = json!({"pod": "a", "podUid": "a", "mode": "DevicePlugin", "version": "1", "configVersions": versions,
            "configFields": fields});
        gpu_node.status.get_or_insert_default().agent = serde_json::from_value(agent).expect("an agent");
        gpu_node
    };
    let managed = json!({"nvidia.com/mig.config.state": "success"});
    let cluster = ClusterSnapshot {
        nodes: vec![
            node("managed", &managed),
            node("new", &managed),
            node("older", &json!({})),
            node("old", &json!({})),
            node("other", &json!({})),
        ],
        gpu_nodes: vec![
            with_agent("managed", &[1], &[]),
            with_agent("older", &[1], &["resources"]),
            with_agent("old", &[7], &[]),
        ],
        ..ClusterSnapshot::default()
    };
    let applied = divided("all-balanced");
    let told = |node: &str| obstacles_of(node, &cluster, &applied);
    let managed = "NVIDIA's mig-manager changes MIG on the node, as label nvidia.com/mig.config.state says";
    for (node, start) in [
        ("managed", managed),
        ("new", managed),
        ("older", "the agent does not know mig"),
    ] {
        let obstacles = told(node);
        assert_eq!(obstacles.len(), 1, "{node}: {obstacles:?}");
        assert!(obstacles[0].starts_with(start), "{node}: {obstacles:?}");
    }
    assert_eq!(
        told("old"),
        ["the agent reads configuration versions [7], not 1; give it the image that came with the operator"]
    );
    assert_eq!(told("other"), [""; 0]);
    let planned = plan(&cluster, std::slice::from_ref(&applied));
    let governed = planned.nodes.iter().filter(|node| {
        let mut subjects = node.changes.iter().map(|change| change.what);
        subjects.any(|subject| subject == ChangeSubject::Governing)
    });
    let governed: Vec<&str> = governed.map(|node| node.name.as_str()).collect();
    assert_eq!(
        governed,
        ["other"],
        "a node that keeps its configuration keeps its policy"
    );
    assert!(plan(&cluster, std::slice::from_ref(&applied)).is_disruptive());
    let without_layout = policy("p", &json!({"nodeSelector": {}, "devicePlugin": {}}));
    assert_eq!(obstacles_of("managed", &cluster, &without_layout), [""; 0]);
}

#[test]
fn obstacle_that_is_there_today_is_told_for_another_configuration_alone() {
    let cluster = ClusterSnapshot {
        policies: vec![divided("all-balanced")],
        nodes: vec![node("n", &json!({"nvidia.com/mig.config.state": "success"}))],
        ..ClusterSnapshot::default()
    };
    assert_eq!(obstacles_of("n", &cluster, &divided("all-balanced")), [""; 0]);
    assert_eq!(obstacles_of("n", &cluster, &divided("all-enabled")).len(), 1);
}
