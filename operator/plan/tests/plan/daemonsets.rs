//! The DaemonSets and the repair of edited ones.

use crate::world::policy;
use gpunode_plan::{
    AgentImages, AgentPodSettings, HostPaths, PolicySet, ReplacedNodes, daemonset_has_drifted, desired_discovery,
    desired_for_policy, desired_mps, outdated_agents, policy_of_daemonset, repaired_daemonset,
};
use k8s_openapi::{api::apps::v1::DaemonSet, apimachinery::pkg::util::intstr::IntOrString};
use serde_json::{Value, json};

type Edit = fn(&mut Value);

fn pods() -> AgentPodSettings {
    AgentPodSettings {
        namespace: "gpunode-system".to_owned(),
        image: "example.com/agent:1".to_owned(),
        allowed: AgentImages::of_agent("example.com/agent:1"),
        paths: HostPaths::default(),
    }
}

fn of_policy(spec: &str) -> Option<DaemonSet> {
    surging(spec, IntOrString::String("10%".to_owned()))
}

fn surging(spec: &str, surge: IntOrString) -> Option<DaemonSet> {
    let policy = policy("v100", spec);
    let policies = PolicySet::new([&policy]);
    desired_for_policy(&pods(), policies.get("v100").unwrap(), surge)
}

fn edited(daemonset: &DaemonSet, edit: impl FnOnce(&mut Value)) -> DaemonSet {
    let mut value = serde_json::to_value(daemonset).unwrap();
    edit(&mut value);
    serde_json::from_value(value).unwrap()
}

/// Returns an owner of this kind, as earlier versions wrote one for the policy.
fn owners(kind: &str) -> Value {
    json!([{"apiVersion": "gpunode.dev/v1alpha1", "kind": kind, "name": "v100", "uid": "u", "controller": true}])
}

#[test]
fn device_plugin_daemonset() {
    insta::assert_yaml_snapshot!(of_policy("{nodeSelector: {}, devicePlugin: {}}"));
}

#[test]
fn discovery_daemonset() {
    insta::assert_yaml_snapshot!(desired_discovery(&pods(), None));
}

#[test]
fn upgrade_of_discovery_goes_on_beside_nodes_that_are_down() {
    for (replaced, expected) in [
        (None, IntOrString::String("10%".to_owned())),
        (Some((100, 0)), IntOrString::String("10%".to_owned())),
        (Some((5, 1)), IntOrString::Int(2)),
        (Some((100, 1)), IntOrString::Int(11)),
        (Some((101, 20)), IntOrString::Int(31)),
        (Some((0, i32::MAX)), IntOrString::Int(i32::MAX)),
    ] {
        let replaced = replaced.map(|(all, down)| ReplacedNodes { all, down });
        let strategy = desired_discovery(&pods(), replaced)
            .spec
            .unwrap()
            .update_strategy
            .unwrap();
        let update = strategy.rolling_update.unwrap();
        assert_eq!(update.max_unavailable, Some(expected), "{replaced:?}");
        assert_eq!(update.max_surge, Some(IntOrString::Int(0)));
    }
}

#[test]
fn no_pod_of_gpunode_goes_to_a_virtual_node_or_to_another_system() {
    let policy = of_policy("{nodeSelector: {}, devicePlugin: {}}").unwrap();
    for daemonset in [policy, desired_discovery(&pods(), None), desired_mps(&pods())] {
        let pod = daemonset.spec.unwrap().template.spec.unwrap();
        let affinity = pod.affinity.unwrap().node_affinity.unwrap();
        let terms = affinity.required_during_scheduling_ignored_during_execution.unwrap();
        let requirements = json!(terms.node_selector_terms[0].match_expressions);
        for expected in [
            json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}),
            json!({"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}),
            json!({"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"]}),
        ] {
            assert!(requirements.as_array().unwrap().contains(&expected), "{requirements}");
        }
    }
}

#[test]
fn policy_with_an_image_that_is_not_allowed_gets_the_default_image_and_is_refused() {
    let object = policy(
        "v100",
        "{nodeSelector: {}, devicePlugin: {}, image: 'example.com/agent-evil:1'}",
    );
    let images = AgentImages::of_agent("example.com/agent:1");
    let set = PolicySet::new([&object]).with_agent_images(Some(images.clone()));
    let policy = set.get("v100").unwrap();
    assert_eq!(
        policy.refusal.as_deref(),
        Some(
            "spec.image: example.com/agent-evil:1 is not allowed; use an image of example.com/agent, or let an administrator add its \
             repository to AGENT_IMAGES of the operator"
        )
    );
    assert_eq!(policy.device_plugin.as_ref().unwrap().document, None);
    let daemonset = desired_for_policy(&pods(), policy, IntOrString::Int(1)).unwrap();
    let pod = daemonset.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.containers[0].image.as_deref(), Some("example.com/agent:1"));

    let allowed = crate::world::policy(
        "v100",
        "{nodeSelector: {}, devicePlugin: {}, image: 'example.com/agent:2'}",
    );
    let set = PolicySet::new([&allowed]).with_agent_images(Some(images));
    assert_eq!(set.get("v100").unwrap().refusal, None);
}

#[test]
fn policy_with_companions_outside_of_the_roots_is_refused_with_the_flag() {
    let spec =
        "{nodeSelector: {}, devicePlugin: {companions: [{resource: rdma/hca, paths: [/dev/infiniband/*, /dev/sda]}]}}";
    let object = policy("rdma", spec);
    let set = |roots: &str| PolicySet::new([&object]).with_companion_roots(Some(roots.parse().unwrap()));
    let refused = set("/dev/infiniband");
    let policy = refused.get("rdma").unwrap();
    assert_eq!(
        policy.refusal.as_deref(),
        Some(
            "spec.devicePlugin.companions[0].paths[1]: --companion-roots does not allow /dev/sda; it allows /dev/infiniband; an \
             administrator can add its folder"
        )
    );
    assert_eq!(
        policy.device_plugin.as_ref().unwrap().document,
        None,
        "the configuration in force stays"
    );
    let none = set("");
    let refusal = none.get("rdma").unwrap().refusal.clone().unwrap();
    assert_eq!(refusal.matches("it allows nothing").count(), 2, "{refusal}");
    assert_eq!(set("/dev/infiniband,/dev/sd*").get("rdma").unwrap().refusal, None);
    let names = set("/dev/infiniband,/dev/sd*");
    let plugin = names.get("rdma").unwrap().device_plugin.clone().unwrap();
    assert_eq!(
        plugin.resources(None),
        ["nvidia.com/gpu".to_owned(), "rdma/hca".to_owned()].into()
    );
}

#[test]
fn mps_daemonset() {
    insta::assert_yaml_snapshot!(desired_mps(&pods()));
}

#[test]
fn no_taint_drives_away_a_pod_of_gpunode() {
    let policy = of_policy("{nodeSelector: {}, devicePlugin: {}, taints: [{key: a, effect: NoExecute}]}").unwrap();
    for daemonset in [policy, desired_discovery(&pods(), None), desired_mps(&pods())] {
        let tolerations = daemonset.spec.unwrap().template.spec.unwrap().tolerations.unwrap();
        // Tolerates all taints (no key, no effect) for ever (no seconds).
        let all = |it: &k8s_openapi::api::core::v1::Toleration| {
            it.operator.as_deref() == Some("Exists")
                && it.key.is_none()
                && it.effect.is_none()
                && it.toleration_seconds.is_none()
        };
        assert!(
            tolerations.iter().any(all),
            "{:?}: {tolerations:?}",
            daemonset.metadata.name
        );
    }
}

#[test]
fn every_agent_gets_the_folders_of_the_nodes_that_are_not_the_default() {
    let mut pods = pods();
    let commands = |pods: &AgentPodSettings| {
        let policy = policy("v100", "{nodeSelector: {}, devicePlugin: {}}");
        let policies = PolicySet::new([&policy]);
        let plugin = desired_for_policy(pods, policies.get("v100").unwrap(), IntOrString::Int(1)).unwrap();
        [plugin, desired_discovery(pods, None), desired_mps(pods)].map(|daemonset| {
            let pod = daemonset.spec.unwrap().template.spec.unwrap();
            let args = pod.containers[0].args.clone().unwrap();
            let mut volumes = pod.volumes.unwrap().into_iter();
            let socket = volumes.find(|volume| volume.name == "pod-resources").unwrap();
            let socket = socket.host_path.unwrap().path;
            let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
            assert!(
                mounts.iter().any(|mount| mount.mount_path == socket),
                "as the agent looks for it"
            );
            let variables = pod.containers[0].env.iter().flatten();
            let variables = variables.filter_map(|it| Some(format!(" {}={}", it.name, it.value.as_ref()?)));
            (args.into_iter().chain(variables).collect::<String>(), socket)
        })
    };
    let before = commands(&pods);
    let socket = "/var/lib/kubelet/pod-resources".to_owned();
    assert_eq!(
        before,
        ["run", "discover", "mps"].map(|command| (command.to_owned(), socket.clone()))
    );
    pods.paths = HostPaths {
        driver_roots: "/run/nvidia/driver, /,/home/kubernetes/bin/nvidia/".parse().unwrap(),
        dev_root: "//".parse().unwrap(),
        kubelet_root: "/var/lib/kubelet/".parse().unwrap(),
        companion_roots: "".parse().unwrap(),
    };
    assert_eq!(commands(&pods), before, "the defaults in other words replace no pod");
    pods.paths = HostPaths {
        driver_roots: "/opt/nvidia,/".parse().unwrap(),
        dev_root: "/opt/nvidia".parse().unwrap(),
        kubelet_root: "/data/kubelet".parse().unwrap(),
        companion_roots: "/dev/infiniband/,/dev/xclmgmt*".parse().unwrap(),
    };
    for (command, socket) in commands(&pods) {
        assert!(
            command.ends_with(
                " DRIVER_ROOTS=/opt/nvidia,/ DEV_ROOT=/opt/nvidia KUBELET_ROOT=/data/kubelet \
                 COMPANION_ROOTS=/dev/infiniband,/dev/xclmgmt*"
            ),
            "{command}"
        );
        assert_eq!(socket, "/data/kubelet/pod-resources");
    }
}

#[test]
fn template_depends_on_the_image_and_on_the_installation_alone() {
    let base = of_policy("{nodeSelector: {}, devicePlugin: {}}");
    assert_eq!(
        base,
        of_policy("{priority: 3, nodeSelector: {matchLabels: {a: b}}, devicePlugin: {passDeviceSpecs: true}}")
    );
    assert_ne!(base, of_policy("{nodeSelector: {}, image: other, devicePlugin: {}}"));
    assert_eq!(of_policy("{nodeSelector: {}}"), None);
}

#[test]
fn every_edit_of_a_spec_comes_back() {
    let desired = of_policy("{nodeSelector: {}, devicePlugin: {}}").unwrap();
    let edits: [(&str, Edit); 6] = [
        ("image", |it| {
            it["spec"]["template"]["spec"]["containers"][0]["image"] = json!("evil");
        }),
        ("container", |it| {
            it["spec"]["template"]["spec"]["containers"]
                .as_array_mut()
                .unwrap()
                .push(json!({"name": "x"}));
        }),
        ("selector", |it| {
            it["spec"]["template"]["spec"]["nodeSelector"]["non"] = json!("existent");
        }),
        ("network", |it| {
            it["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        }),
        ("label", |it| {
            it["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("me");
        }),
        ("owner", |it| {
            it["metadata"]["ownerReferences"] = owners("GpuNodePolicy");
        }),
    ];
    for (what, edit) in edits {
        let live = edited(&desired, edit);
        assert!(daemonset_has_drifted(&live, &desired), "{what}");
        assert_eq!(repaired_daemonset(&live, &desired), desired, "{what}");
    }
}

#[test]
fn what_others_add_beside_the_spec_stays() {
    let desired = of_policy("{nodeSelector: {}, devicePlugin: {}}").unwrap();
    let live = edited(&desired, |it| {
        it["metadata"]["resourceVersion"] = json!("5");
        it["metadata"]["annotations"] = json!({"a": "b"});
        it["metadata"]["labels"]["team"] = json!("t");
        it["metadata"]["ownerReferences"] = owners("Another");
        it["spec"]["template"]["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/restartedAt": "now"});
    });
    assert!(!daemonset_has_drifted(&live, &desired));
    let broken = edited(&live, |it| it["spec"]["template"]["spec"]["hostNetwork"] = json!(true));
    assert_eq!(repaired_daemonset(&broken, &desired), live);
}

#[test]
fn daemonset_names_its_policy() {
    let daemonset = of_policy("{nodeSelector: {}, devicePlugin: {}}").unwrap();
    assert_eq!(policy_of_daemonset(&daemonset), Some("v100"));
    assert_eq!(policy_of_daemonset(&desired_discovery(&pods(), None)), None);
    assert_eq!(policy_of_daemonset(&desired_mps(&pods())), None);
    let owned = edited(&daemonset, |it| {
        it["metadata"]["ownerReferences"] = owners("GpuNodePolicy");
    });
    assert_eq!(policy_of_daemonset(&owned), Some("v100"));
    let edits: [Edit; 3] = [
        |it| it["metadata"]["labels"] = json!({}),
        |it| it["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("me"),
        |it| it["metadata"]["labels"]["gpunode.dev/policy"] = json!("another"),
    ];
    for edit in edits {
        assert_eq!(policy_of_daemonset(&edited(&daemonset, edit)), None);
    }
}

#[test]
fn nodes_whose_pod_is_one_of_before_are_behind() {
    let spec = "{nodeSelector: {}, devicePlugin: {}}";
    let live = of_policy(spec).unwrap();
    assert_eq!(outdated_agents(&live), 0);
    for (observed, pods, updated, behind) in [(2, 4, 4, 0), (2, 4, 3, 1), (2, 3, 3, 0), (1, 4, 4, 4)] {
        let live = edited(&live, |it| {
            it["metadata"]["generation"] = json!(2);
            it["status"] = json!({"observedGeneration": observed, "desiredNumberScheduled": 4,
                "currentNumberScheduled": pods, "numberMisscheduled": 0, "numberReady": 4, "updatedNumberScheduled": updated});
        });
        assert_eq!(outdated_agents(&live), behind, "{:?}", live.status);
    }
}

#[test]
fn how_many_agents_may_stand_by_is_put_right() {
    let spec = "{nodeSelector: {}, devicePlugin: {}}";
    let (live, desired) = (of_policy(spec).unwrap(), surging(spec, IntOrString::Int(5)).unwrap());
    assert!(daemonset_has_drifted(&live, &desired));
    // The DaemonSet of an earlier version, without hand-over.
    let old = edited(&desired, |it| {
        it["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxSurge": 0, "maxUnavailable": "10%"});
    });
    assert!(daemonset_has_drifted(&old, &desired));
}
