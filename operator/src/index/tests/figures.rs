//! Figures of `docs/benchmarks.md`; `make bench` prints them.

use super::*;
use crate::{memory::resident_kib, watched::Watched};
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

const EVENTS: usize = 40_000;
/// Events of one cluster before the other has its turn, so that other work on the machine affects both alike.
const TURN: usize = 20;

const POLICIES: [(&str, &str); 3] = [
    (
        "pool",
        "{nodeSelector: {matchLabels: {pool: a}}, labels: {x: y, team: t}, taints: [{key: d, value: v, effect: NoSchedule}], devicePlugin: {}}",
    ),
    ("all", "{priority: -1, nodeSelector: {}, labels: {fleet: f}}"),
    ("other", "{nodeSelector: {matchLabels: {pool: b}}, labels: {x: z}}"),
];

/// Nodes on which everything is in force, except for three that are not ready, whatever the size.
struct ConvergedCluster {
    scene: Scene,
    nodes: Vec<Node>,
    turn: usize,
}

impl ConvergedCluster {
    fn of(size: usize) -> Self {
        let mut cluster = Self {
            scene: Scene::synced(),
            nodes: Vec::new(),
            turn: 0,
        };
        for (name, spec) in POLICIES {
            cluster.scene.set_policy(name, spec);
        }
        for index in 0..size {
            let node = cluster.converged(index, index >= 3);
            cluster.nodes.push(node);
        }
        for (name, _) in POLICIES {
            cluster.scene.write_status(name);
        }
        cluster
    }

    /// Adds a node as cloud providers make them, with all writes carried out and a report of its agent.
    fn converged(&mut self, index: usize, ready: bool) -> Node {
        let name = format!("gpu-{index:05}");
        let mut labels: serde_json::Map<_, _> = (0..24)
            .map(|label| (format!("example.com/label-{label}"), json!("value")))
            .collect();
        labels.insert("pool".to_owned(), json!("a"));
        let fields: serde_json::Map<_, _> = labels.keys().map(|key| (format!("f:{key}"), json!({}))).collect();
        let mut node = json!({
            "metadata": {
                "name": name, "uid": name, "labels": labels, "annotations": {"a": "b"},
                "resourceVersion": self.scene.next_version(),
                "managedFields": [{"manager": "cloud", "fieldsV1": {"f:metadata": {"f:labels": fields}}}],
            },
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
                "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"},
            },
        });
        self.set(&serde_json::from_value(node.clone()).unwrap());
        let work = self.scene.node_write(&name).unwrap();
        json_patch::patch(&mut node, &work.patch.unwrap()).unwrap();
        let GpuNodeChange::Create(mut gpu_node) = work.gpu_node else {
            panic!("{:?}", work.gpu_node)
        };
        let gpu = |index: usize| {
            json!({
                "index": index, "uuid": format!("GPU-{name}-{index}"), "product": "Tesla-V100-SXM2-32GB", "memoryMiB": 32768,
                "architecture": "volta", "computeCapability": "7.0", "pciBusId": format!("0000:{index:02x}:00.0"),
            })
        };
        let status = json!({
            "agent": {"pod": name, "podUid": name, "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
            "hardware": "8 x Tesla-V100-SXM2-32GB", "driverVersion": "570.1", "cudaVersion": "12.8",
            "gpus": (0..8).map(gpu).collect::<Vec<_>>(),
            "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true}],
            "configHash": gpu_node.spec.config.as_ref().unwrap().hash,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Registered", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"}],
        });
        gpu_node.status = Some(serde_json::from_value(status).unwrap());
        gpu_node.metadata.resource_version = Some(self.scene.next_version());
        self.scene
            .apply(IndexMessage::GpuNodes(WatchUpdate::applied(GpuNodeFacts::of(
                *gpu_node,
            ))));
        self.update(&mut node);
        // The fact labels come once the agent has reported the GPUs.
        let facts = self.scene.node_write(&name).unwrap();
        json_patch::patch(&mut node, &facts.patch.unwrap()).unwrap();
        self.update(&mut node);
        assert_eq!(self.scene.node_write(&name), None);
        serde_json::from_value(node).unwrap()
    }

    fn update(&mut self, node: &mut serde_json::Value) {
        node["metadata"]["resourceVersion"] = json!(self.scene.next_version());
        self.set(&serde_json::from_value(node.clone()).unwrap());
    }

    fn set(&mut self, node: &Node) {
        let facts = NodeFacts::of(node);
        self.scene.apply(IndexMessage::Nodes(WatchUpdate::applied(facts)));
    }

    /// Somebody removes a label of a policy from the next node. The clock runs from the object that the watch brings,
    /// read, to the patch that puts the label back and the status of both policies that match, and nothing in between
    /// is left out.
    fn event(&mut self) -> Duration {
        self.turn = (self.turn + 7) % self.nodes.len();
        // The first three are not ready in any case.
        let mut node = self.nodes[self.turn.max(3)].clone();
        let name = node.metadata.name.clone().unwrap();
        node.metadata.resource_version = Some(self.scene.next_version());
        node.metadata.labels.as_mut().unwrap().remove("x").unwrap();

        let start = Instant::now();
        let message = IndexMessage::Nodes(WatchUpdate::applied(NodeFacts::of(&node)));
        self.scene.go(|index, now, effects| index.apply(message, now, effects));
        let (mut patches, mut statuses) = (0, 0);
        // The plan of the node queues the statuses.
        while let Some(queued) = self.scene.effects.queued.pop() {
            match queued.key {
                _ if queued.at.is_some() => {}
                WorkKey::Node(name) => patches += usize::from(black_box(self.scene.node_write(&name)).is_some()),
                WorkKey::PolicyStatus(name) => {
                    let work = self.scene.index.policy_status_write(&name, Timestamp::UNIX_EPOCH);
                    statuses += usize::from(black_box(work).is_some());
                }
                key => panic!("no event of a node concerns {key:?}"),
            }
        }
        let elapsed = start.elapsed();

        // A node that is being written counts as updating for every policy that matches it.
        assert_eq!((patches, statuses), (1, 2));
        node.metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("x".to_owned(), "y".to_owned());
        node.metadata.resource_version = Some(self.scene.next_version());
        self.set(&node);
        assert_eq!(self.scene.node_write(&name), None);
        elapsed
    }

    /// A policy changes labels and taints together. Returns the writes to nodes until nothing is left to write.
    fn change_policy(&mut self) -> usize {
        self.scene.set_policy(
            POLICIES[0].0,
            &POLICIES[0]
                .1
                .replace("team: t", "team: u")
                .replace("value: v", "value: w"),
        );
        let mut writes = 0;
        for node in self.nodes.clone() {
            let mut value = serde_json::to_value(&node).unwrap();
            while let Some(work) = self.scene.node_write(node.metadata.name.as_deref().unwrap()) {
                assert!(work.gpu_node == GpuNodeChange::None && work.conditions.is_none() && writes < EVENTS);
                json_patch::patch(&mut value, &work.patch.unwrap()).unwrap();
                self.update(&mut value);
                writes += 1;
            }
        }
        writes
    }

    /// Returns the number of writes that a new leader would make.
    fn writes(&mut self) -> usize {
        self.scene.lead();
        let keys: Vec<_> = std::mem::take(&mut self.scene.effects.queued)
            .into_iter()
            .map(|queued| queued.key)
            .collect();
        let mut due = |key: &WorkKey| match key {
            WorkKey::Node(name) => self.scene.node_write(name).is_some(),
            WorkKey::PolicyStatus(name) => self.scene.index.policy_status_write(name, Timestamp::now()).is_some(),
            WorkKey::DaemonSet(_) | WorkKey::Removal(_) | WorkKey::Sweep | WorkKey::Previews => false,
        };
        keys.into_iter().filter(|key| due(key)).count()
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn change_of_labels_and_taints_is_one_write_per_node_and_a_new_leader_writes_nothing() {
    let mut cluster = ConvergedCluster::of(5);
    assert_eq!((cluster.writes(), cluster.change_policy()), (0, 5));
}

#[test]
#[ignore = "a measurement: make bench"]
fn measure_one_event_among_10_and_among_5000_nodes() {
    let (mut small, mut large) = (ConvergedCluster::of(10), ConvergedCluster::of(5000));
    let writes = large.writes();
    println!("figure: writes-at-start | {writes} |");
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..EVENTS / TURN {
        for (cluster, times) in [&mut small, &mut large].into_iter().zip(&mut times) {
            times.extend((0..TURN).map(|_| cluster.event()));
        }
    }
    let [few, many] = times.each_mut().map(|times| median(times));
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!("one event, from watch to planned writes: {few:?} among 10 nodes, {many:?} among 5,000: ratio {ratio:.2}");
    println!("figure: event-ratio | {ratio:.2} | x");
    let writes = ConvergedCluster::of(10).change_policy();
    println!(
        "figure: writes-per-node | {} |",
        f64::from(u32::try_from(writes).unwrap()) / 10.0
    );
}

/// A node as a kubelet reports it, with 40 labels, 50 images, 5 conditions and the fields of three managers.
pub(super) fn reported_node(index: usize) -> serde_json::Value {
    let name = format!("gpu-{index:05}");
    let mut labels: serde_json::Map<_, _> = (0..39)
        .map(|label| (format!("example.com/label-{label}"), json!("value")))
        .collect();
    labels.insert("kubernetes.io/hostname".to_owned(), json!(name));
    let image = |image: usize| {
        json!({
            "names": [
                format!("registry.example.com/team/image-{image}@sha256:{:064x}", index * 50 + image),
                format!("registry.example.com/team/image-{image}:v1.2.3"),
            ],
            "sizeBytes": 123_456_789,
        })
    };
    let condition = |kind: &&str| {
        json!({
            "type": kind, "status": "False", "reason": "KubeletHasSufficient", "message": "kubelet has sufficient resources",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let kinds = [
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "NetworkUnavailable",
        "Ready",
    ];
    let conditions: Vec<_> = kinds.iter().map(condition).collect();
    let owned = |keys: Vec<String>| -> serde_json::Map<String, serde_json::Value> {
        keys.into_iter().map(|key| (format!("f:{key}"), json!({}))).collect()
    };
    let manager = |manager: &str, fields: serde_json::Value| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    };
    let condition_keys = kinds.iter().map(|kind| format!("k:{{\"type\":\"{kind}\"}}")).collect();
    let resources = [
        "cpu",
        "ephemeral-storage",
        "hugepages-2Mi",
        "memory",
        "nvidia.com/gpu",
        "pods",
    ]
    .map(str::to_owned);
    json!({
        "metadata": {
            "name": name, "uid": format!("{index:08}-1111-2222-3333-444444444444"), "resourceVersion": index.to_string(),
            "labels": labels, "annotations": {"example.com/annotation": "value"},
            "managedFields": [
                manager("kubelet", json!({"f:metadata": {"f:labels": owned(labels.keys().cloned().collect())}})),
                manager("kube-controller-manager", json!({"f:spec": {"f:taints": {}}})),
                manager("kubelet", json!({"f:status": {"f:allocatable": owned(resources.to_vec()),
                    "f:capacity": owned(resources.to_vec()), "f:conditions": owned(condition_keys), "f:images": {}}})),
            ],
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": format!("cloud://{name}")},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "allocatable": {"cpu": "95", "memory": "1000Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "capacity": {"cpu": "96", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": conditions, "images": (0..50).map(image).collect::<Vec<_>>(),
            "nodeInfo": {"architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "containerd://2.2.0",
                "kernelVersion": "6.12.0", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3", "machineID": "m",
                "operatingSystem": "linux", "osImage": "Debian GNU/Linux 12 (bookworm)", "systemUUID": "s"},
        },
    })
}

/// The `GpuNode` of such a node as an agent reports it: 8 healthy GPUs with their links, half of them held.
pub(super) fn reported_gpu_node(index: usize) -> serde_json::Value {
    let name = format!("gpu-{index:05}");
    let uuid = |gpu: usize| format!("GPU-{index:08}-1111-2222-3333-{gpu:012}");
    let link = |peer: usize| json!({"peer": peer, "level": "NODE", "nvlinks": 2});
    let gpu = |gpu: usize| {
        json!({
            "index": gpu, "uuid": uuid(gpu), "product": "Tesla-V100-SXM2-32GB", "memoryMiB": 32768, "architecture": "volta",
            "computeCapability": "7.0", "pciBusId": format!("0000:{gpu:02x}:00.0"), "numaNode": gpu / 4, "mode": "Compute",
            "health": {"state": "Healthy"}, "links": (0..8).filter(|peer| *peer != gpu).map(link).collect::<Vec<_>>(),
        })
    };
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": "Registered", "message": "the kubelet has the resources of the agent",
            "lastTransitionTime": format!("2026-01-01T00:{:02}:{:02}Z", index / 60 % 60, index % 60),
        })
    };
    let kinds = [
        "ConfigurationAccepted",
        "DevicesOffered",
        "DriverAvailable",
        "Ready",
        "Registered",
    ];
    let holder = |gpu: usize| {
        json!({"namespace": "ml", "pod": format!("train-{index}-{gpu}"), "container": "main", "resource": "nvidia.com/gpu",
            "device": uuid(gpu), "count": 1})
    };
    let device = |gpu: usize| json!({"device": uuid(gpu), "shares": 1, "healthy": 1});
    let write = |manager: &str, subresource: &str| {
        json!({"manager": manager, "operation": "Update", "apiVersion": "gpunode.dev/v1alpha1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}, "subresource": subresource})
    };
    json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {
            "name": name, "uid": format!("{index:08}-1111-2222-3333-555555555555"), "resourceVersion": index.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [write("gpunode-operator", ""), write("gpunode-agent", "status")],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": format!("{index:08}-1111-2222-3333-444444444444")}],
        },
        "spec": {"config": {"policy": "pool", "version": 1, "hash": "0123456789abcdef", "document": "# a line\n".repeat(100)}},
        "status": {
            "agent": {"pod": format!("gpunode-agent-{index:05}"), "podUid": name, "mode": "DevicePlugin", "version": "0.1.0",
                "policy": "pool", "configVersions": [1], "configFields": gpunode_config::known_fields()},
            "hardware": "8 x Tesla-V100-SXM2-32GB", "inUse": "nvidia.com/gpu 4/8", "heldBy": format!("ml/train-{index}-0 and 3 more"),
            "driverVersion": "570.124.06", "cudaVersion": "12.8", "machine": "NVIDIA-DGX-2H", "configHash": "0123456789abcdef",
            "gpus": (0..8).map(gpu).collect::<Vec<_>>(), "holders": (0..4).map(holder).collect::<Vec<_>>(),
            "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true,
                "devices": (0..8).map(device).collect::<Vec<_>>()}],
            "conditions": kinds.map(condition),
        },
    })
}

/// Reads 5,000 objects one by one, as a watch does, and returns what is kept of them, with the memory that it takes in
/// KiB.
fn kept<K: serde::de::DeserializeOwned, T>(
    object: fn(usize) -> serde_json::Value,
    keep: impl Fn(K) -> T,
) -> (Vec<Arc<T>>, usize) {
    let before = resident_kib();
    let objects = (0..5000)
        .map(|index| serde_json::from_value::<K>(object(index)).unwrap())
        .map(|object| Arc::new(keep(object)));
    let objects: Vec<_> = objects.collect();
    (objects, resident_kib().saturating_sub(before))
}

#[test]
#[ignore = "a measurement: make bench"]
fn measure_memory_of_5000_cached_nodes() {
    // What the parser needs is there before the first measurement.
    drop(black_box(kept(reported_node, |_: Node| ())));
    drop(black_box(kept(reported_gpu_node, |_: GpuNode| ())));
    let (facts, of_facts) = kept(reported_node, |node: Watched<Node>| node.into_facts());
    let (gpu_facts, of_gpu_facts) = kept(reported_gpu_node, |gpu_node: Watched<GpuNode>| gpu_node.into_facts());
    let (cleared, of_cleared) = kept(reported_node, |mut node: Node| {
        node.metadata.managed_fields = None;
        node
    });
    let (whole, of_whole) = kept(reported_node, |node: Node| node);
    let (whole_gpu_nodes, of_whole_gpu_nodes) = kept(reported_gpu_node, |gpu_node: GpuNode| gpu_node);
    let bytes = |object: fn(usize) -> serde_json::Value| serde_json::to_vec(&object(0)).unwrap().len();
    println!(
        "5,000 nodes of {} bytes of JSON: as facts {of_facts} KiB, without managed fields {of_cleared} KiB, whole {of_whole} KiB",
        bytes(reported_node)
    );
    println!(
        "5,000 GpuNodes of {} bytes of JSON: as facts {of_gpu_facts} KiB, whole {of_whole_gpu_nodes} KiB",
        bytes(reported_gpu_node)
    );
    drop(black_box((facts, gpu_facts, cleared, whole, whole_gpu_nodes)));
    // 7.9 and 5.9 MiB when these bounds were set.
    assert!(of_facts < 12 * 1024, "facts of nodes: {of_facts} KiB");
    assert!(of_gpu_facts < 9 * 1024, "facts of GpuNodes: {of_gpu_facts} KiB");
}
