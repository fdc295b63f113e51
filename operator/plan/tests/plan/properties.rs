//! Rules that hold for any nodes, records and policies.

use crate::{
    governed::configuration,
    world::{World, now, policy},
};
use gpunode_crds::{GpuNode, GpuNodePolicy, GpuNodeSpec};
use gpunode_plan::{NodeContext, PolicySet, plan_node};
use proptest::{collection, option, prelude::*};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 5] = ["a", "b", "c.d/e", "dedicated", "pool"];
const OTHER_KEYS: [&str; 6] = [
    "kubernetes.io/os",
    "gpunode.dev/ignored",
    "gpunode.dev/governed",
    "gpunode.dev/mps",
    "gpunode.dev/policy.p0",
    "gpunode.dev/policy.p9",
];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

fn value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "1", "2"])
}

fn keys(of: &'static [&'static str]) -> impl Strategy<Value = BTreeMap<&'static str, &'static str>> {
    collection::btree_map(prop::sample::select(of), value(), 0..4)
}

/// Generates taints in any order, each identity once.
fn taints() -> impl Strategy<Value = Vec<Value>> {
    let ids: Vec<_> = KEYS
        .iter()
        .flat_map(|key| EFFECTS.map(|effect| (*key, effect)))
        .collect();
    let some = prop::sample::subsequence(ids, 0..5).prop_shuffle();
    (some, collection::vec((value(), any::<bool>()), 5)).prop_map(|(ids, rest)| {
        let taints = ids.into_iter().zip(rest).map(|((key, effect), (value, dated))| {
            let mut taint = json!({"key": key, "effect": effect});
            if !value.is_empty() {
                taint["value"] = json!(value);
            }
            if dated {
                taint["timeAdded"] = json!("2025-01-01T00:00:00Z");
            }
            taint
        });
        taints.collect()
    })
}

fn any_policy(index: usize) -> impl Strategy<Value = GpuNodePolicy> {
    let selector = prop::sample::select(vec![
        json!({}),
        json!({"matchLabels": {"pool": "1"}}),
        json!({"matchLabels": {"a": "1"}}),
        json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}),
        json!({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}),
        json!({"matchExpressions": [{"key": "gpunode.dev/governed", "operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "gpunode.dev/mps", "operator": "Exists"}]}),
    ]);
    let by_gpus = prop::bool::weighted(0.3);
    let starting = option::of(prop::sample::select(vec![json!({}), json!({"key": "start/up"})]));
    let mps = json!({"resources": [{"name": "a.b/c", "sharing": {"strategy": "Mps", "replicas": 2}}]});
    let plugin = option::of(prop::sample::select(vec![
        json!({}),
        json!({"passDeviceSpecs": true}),
        mps,
    ]));
    (
        0..3,
        selector,
        keys(&KEYS),
        taints(),
        plugin,
        prop::bool::weighted(0.2),
        any::<bool>(),
        by_gpus,
        starting,
    )
        .prop_map(
            move |(priority, selector, labels, taints, plugin, preview, take_over, by_gpus, starting)| {
                let mut spec =
                    json!({"priority": priority, "nodeSelector": selector, "labels": labels, "taints": taints});
                for taint in spec["taints"].as_array_mut().unwrap() {
                    taint.as_object_mut().unwrap().remove("timeAdded");
                }
                if let Some(plugin) = plugin {
                    spec["devicePlugin"] = plugin;
                }
                if let Some(starting) = starting {
                    spec["startupTaint"] = starting;
                    spec["unhealthyTaint"] = json!({});
                }
                if by_gpus {
                    spec["gpuSelector"] = json!({"products": ["Tesla-*"]});
                }
                if take_over {
                    spec["onConflict"] = json!("TakeOver");
                }
                if preview {
                    spec["mode"] = json!("Preview");
                }
                policy(&format!("p{index}"), &spec.to_string())
            },
        )
}

fn policies() -> impl Strategy<Value = Vec<GpuNodePolicy>> {
    (any_policy(0), any_policy(1), any_policy(2), 0..=3_usize)
        .prop_map(|(a, b, c, count)| [a, b, c].into_iter().take(count).collect())
}

/// Generates a node that gpunode has never seen.
fn untouched() -> impl Strategy<Value = World> {
    (keys(&KEYS), taints(), keys(&["x", "y"])).prop_map(|(mut labels, taints, annotations)| {
        labels.insert("kubernetes.io/os", "linux");
        World::new(&json!(labels), &json!(taints), &json!(annotations))
    })
}

/// Node on which an MPS daemon is left.
fn with_daemon() -> GpuNode {
    serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {"mpsDaemons": [{"device": "GPU-1", "state": "Answering"}]},
    }))
    .unwrap()
}

/// Generates a node with any record, true or forged, and any of gpunode's own keys.
fn touched() -> impl Strategy<Value = World> {
    let conceded = collection::btree_map(prop::sample::select(&KEYS[..]), ("p[0-2]@[12]", any::<bool>()), 0..3);
    let restored = collection::btree_map(
        prop::sample::select(&KEYS[..]),
        collection::vec(-700..1_i64, 0..4),
        0..3,
    );
    let before = (keys(&KEYS), taints());
    let policies = prop::sample::subsequence(vec!["p0", "p1", "p2"], 0..3);
    let record = (
        keys(&KEYS),
        keys(&OTHER_KEYS),
        taints(),
        before,
        conceded,
        restored,
        policies,
    )
        .prop_map(|(labels, others, taints, before, conceded, restored, policies)| {
            let labels: Map<_, _> = labels
                .into_iter()
                .chain(others)
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect();
            let conceded: Map<_, _> = conceded
                .into_iter()
                .map(|(key, (by, gone))| (key.to_owned(), json!({"by": by, "gone": gone})))
                .collect();
            let seconds = |times: Vec<i64>| json!(times.iter().map(|it| now().as_second() + it).collect::<Vec<_>>());
            let restored: Map<_, _> = restored
                .into_iter()
                .map(|(key, times)| (key.to_owned(), seconds(times)))
                .collect();
            json!({"version": 1, "labels": labels, "taints": taints, "before": {"labels": before.0, "taints": before.1},
                "policies": policies, "conceded": {"labels": conceded}, "restored": {"labels": restored}})
            .to_string()
        });
    let record = prop_oneof![4 => record, 1 => "\\PC{0,20}"];
    (untouched(), keys(&OTHER_KEYS), option::of(record), any::<bool>()).prop_map(
        |(mut world, others, record, daemon)| {
            world.gpu_node = daemon.then(with_daemon);
            for (key, value) in others {
                world.set_label(key, Some(value));
            }
            world.set_record(record.as_deref());
            world
        },
    )
}

/// Generates the number of the policy whose configuration a node has, and the status that its agent reports. Without a
/// hash in it, that configuration is in force.
fn configured() -> impl Strategy<Value = (usize, Value)> {
    let ready = prop::sample::select(vec![
        ("True", "Registered"),
        ("False", "Registering"),
        ("False", "MpsUnsupported"),
    ]);
    let hash = prop::sample::select(vec![None, None, None, Some("another")]);
    let serving = option::of(prop::sample::select(vec!["p0", "p1"]));
    (0..3_usize, ready, hash, serving, any::<bool>(), any::<bool>()).prop_map(
        |(number, (ready, reason), hash, serving, has_gpu, has_daemon)| {
            let gpu = json!({"index": 0, "uuid": "GPU-1", "product": "Tesla-T4", "memoryMiB": 15360});
            let daemon = json!({"device": "GPU-1", "state": "Answering"});
            let status = json!({
                "agent": {"pod": "x", "podUid": "x", "mode": "DevicePlugin", "version": "1", "configVersions": [1],
                    "policy": serving},
                "gpus": has_gpu.then_some(gpu).into_iter().collect::<Vec<_>>(),
                "mpsDaemons": has_daemon.then_some(daemon).into_iter().collect::<Vec<_>>(),
                "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true}],
                "configHash": hash,
                "conditions": [{"type": "Ready", "status": ready, "reason": reason, "message": "m",
                    "lastTransitionTime": "2025-01-01T00:00:00Z"}],
            });
            (number, status)
        },
    )
}

/// Gives a node the configuration of a policy, the report of its agent, and everything that follows but the keys that
/// the policies name.
fn configure(world: &mut World, policies: &[GpuNodePolicy], number: usize, mut status: Value) {
    let Some(policy) = policies.get(number).filter(|it| it.spec.device_plugin.is_some()) else {
        return;
    };
    let config = configuration(policy);
    if status["configHash"].is_null() {
        status["configHash"] = json!(config.hash);
    }
    let spec = GpuNodeSpec {
        config: Some(config),
        ..GpuNodeSpec::default()
    };
    let mut gpu_node = GpuNode::new("n", spec);
    gpu_node.metadata.resource_version = Some("7".to_owned());
    let written = json!([{"manager": "gpunode-operator", "time": "2025-01-01T00:00:00Z"}]);
    gpu_node.metadata.managed_fields = Some(serde_json::from_value(written).unwrap());
    gpu_node.status = Some(serde_json::from_value(status).unwrap());
    world.gpu_node = Some(gpu_node);
    world.node["status"]["allocatable"] = json!({"cpu": "8", "nvidia.com/gpu": "8"});
    let mut without_keys = policies.to_vec();
    for policy in &mut without_keys {
        policy.spec.labels.clear();
        policy.spec.taints.clear();
    }
    world.converge(&without_keys);
}

/// Returns the labels and taints of other owners: neither in the record nor gpunode's own. gpunode may take up conceded ones
/// again.
fn foreign(world: &World) -> (BTreeMap<String, Value>, Vec<Value>) {
    let record: Value = world
        .record()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let kinds = [&record["labels"], &record["conceded"]["labels"]];
    let owned: BTreeSet<&String> = kinds
        .iter()
        .flat_map(|kind| kind.as_object().into_iter().flatten())
        .map(|(key, _)| key)
        .collect();
    let ours = |key: &String| {
        !key.contains("kubernetes.io")
            && (owned.contains(key)
                || ["gpunode.dev/governed", "gpunode.dev/mps"].contains(&key.as_str())
                || key.starts_with("gpunode.dev/policy."))
    };
    let labels = world.node["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels
        .filter(|(key, _)| !ours(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let id = |taint: &Value| (taint["key"].clone(), taint["effect"].clone());
    let owned: Vec<_> = record["taints"].as_array().into_iter().flatten().map(id).collect();
    let taints = world.node["spec"]["taints"].as_array().into_iter().flatten();
    (
        labels,
        taints.filter(|taint| !owned.contains(&id(taint))).cloned().collect(),
    )
}

/// Returns the labels of a node, and its taints with the effect NoExecute or with any other one.
fn labels_and_taints(world: &World, evicting: bool) -> (Map<String, Value>, Vec<Value>) {
    let labels = world.node["metadata"]["labels"].as_object().cloned();
    let taints = world.node["spec"]["taints"].as_array().into_iter().flatten();
    let of_kind = taints.filter(|taint| (taint["effect"] == "NoExecute") == evicting);
    (labels.unwrap_or_default(), of_kind.cloned().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn planning_its_own_result_changes_nothing(mut world in touched(), policies in policies()) {
        let first = world.converge(&policies);
        let second = world.plan(&policies);
        prop_assert_eq!(&second.patch, &None, "first plan {:?}", first);
        prop_assert_eq!((first.hold, first.matched, first.governing), (second.hold, second.matched, second.governing));
        prop_assert_eq!((first.conflicts, first.previews), (second.conflicts, second.previews));
    }

    #[test]
    fn node_that_a_plan_calls_settled_is_as_the_next_plan_finds_it(
        mut world in touched(),
        policies in policies(),
        configured in option::of(configured()),
    ) {
        if let Some((number, status)) = configured {
            configure(&mut world, &policies, number, status);
        }
        let first = world.converge(&policies);
        if let Some(settled) = first.settled_node() {
            prop_assert!(settled.is(&world.facts()), "{:?} is not {:?}", world.facts(), settled);
            let second = world.plan(&policies);
            prop_assert!(second.is_settled(), "{:?}", second);
            let mut statuses = second.policy_statuses_after(None);
            // Those in mode Preview are computed elsewhere.
            statuses.retain(|name, _| second.matched.contains(name));
            prop_assert_eq!(first.settled_statuses().unwrap(), statuses);
        }
    }

    #[test]
    fn without_a_permit_no_taint_evicts_pods_and_all_else_is_as_with_one(mut world in untouched(), policies in policies()) {
        let mut waiting = world.clone();
        let (facts, permits) = (waiting.facts(), BTreeSet::new());
        let context = NodeContext::new(&facts, None, waiting.now).with_taint_permits(&permits);
        let plan = plan_node(&PolicySet::new(&policies), context);
        if let Some(patch) = &plan.patch {
            json_patch::patch(&mut waiting.node, patch).unwrap();
        }
        prop_assert_eq!(labels_and_taints(&waiting, true).1, labels_and_taints(&world, true).1);
        world.converge(&policies);
        prop_assert_eq!(labels_and_taints(&waiting, false), labels_and_taints(&world, false));
    }

    #[test]
    fn mps_daemons_are_placed_exactly_where_they_are_wanted_or_left(mut world in touched(), policies in policies()) {
        let before = world.label("gpunode.dev/mps").map(str::to_owned);
        let plan = world.converge(&policies);
        let governing = policies.iter().find(|it| it.metadata.name == plan.governing);
        let is_wanted = governing.is_some_and(|it| it.spec.device_plugin.as_ref().unwrap().wants_mps());
        let expected = (is_wanted || world.gpu_node.is_some()).then(|| "true".to_owned());
        let is_kept = plan.hold.is_some() || plan.is_configuration_disputed();
        let expected = if is_kept { before } else { expected };
        prop_assert_eq!(world.label("gpunode.dev/mps").map(str::to_owned), expected);
    }

    #[test]
    fn agents_stay_only_for_policies_that_exist(
        mut world in untouched(),
        before in policies(),
        mut after in policies(),
        unreadable in prop::sample::subsequence(vec!["p0", "p1", "p2"], 0..3),
    ) {
        world.converge(&before);
        after.retain(|it| !unreadable.contains(&it.metadata.name.as_deref().unwrap_or_default()));
        let set = PolicySet::new(&after).with_unreadable(unreadable.iter().map(|it| (*it).to_owned()));
        let plan = world.converge_with(&set);
        let labels = world.node["metadata"]["labels"].as_object().into_iter().flatten();
        let placed: Vec<&str> = labels.filter_map(|(key, _)| key.strip_prefix("gpunode.dev/policy.")).collect();
        // A disagreement leaves agents as they are.
        if !plan.is_configuration_disputed() {
            prop_assert_eq!(world.label("gpunode.dev/governed").is_some(), !placed.is_empty());
            let exists = |name: &&str| unreadable.contains(name) || plan.governing.as_deref() == Some(*name);
            prop_assert!(placed.iter().all(exists), "{:?}", placed);
        }
    }

    #[test]
    fn removal_gives_the_snapshot_back(mut world in untouched(), sets in collection::vec(policies(), 1..4)) {
        let before = world.snapshot();
        for policies in &sets {
            world.converge(policies);
        }
        world.converge(&[]);
        // The record keeps resources that the kubelet never showed a little longer.
        world.wait(60);
        world.converge(&[]);
        prop_assert_eq!(world.snapshot(), before);
    }

    #[test]
    fn what_is_not_ours_never_changes_unless_a_policy_takes_it_over(mut world in touched(), mut policies in policies()) {
        for policy in &mut policies {
            policy.spec.on_conflict = None;
        }
        let (labels, taints) = foreign(&world);
        world.converge(&policies);
        for (key, value) in labels {
            prop_assert_eq!(world.label(&key), value.as_str(), "label {}", key);
        }
        let after = world.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let kept: Vec<_> = after.iter().filter(|taint| taints.contains(taint)).cloned().collect();
        prop_assert_eq!(kept, taints);
    }

    #[test]
    fn every_tug_of_war_ends_with_the_others_value(
        mut world in untouched(),
        policies in policies(),
        key in prop::sample::select(&KEYS[..]),
        theirs in option::of(Just("theirs")),
        pauses in collection::vec(0..60_i64, 7),
    ) {
        world.converge(&policies);
        let mut restores = 0;
        for pause in pauses {
            let before = world.label(key).map(str::to_owned);
            world.set_label(key, theirs);
            world.converge(&policies);
            restores += usize::from(before.as_deref() != theirs && world.label(key) == before.as_deref());
            prop_assert_eq!(&world.plan(&policies).patch, &None);
            world.wait(pause);
        }
        // Keys that were there first, and keys that a policy selects by, may change once more.
        prop_assert!(restores <= 4, "{} restores", restores);
        prop_assert_eq!(world.label(key), theirs);
        world.converge(&[]);
        world.wait(60);
        world.converge(&[]);
        prop_assert_eq!((world.label(key), world.record()), (theirs, None));
    }

    #[test]
    fn any_record_is_survived(mut world in untouched(), record in "\\PC{0,200}", policies in policies()) {
        world.set_record(Some(&record));
        world.converge(&policies);
    }
}
