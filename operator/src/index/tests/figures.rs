//! Figures of `docs/benchmarks.md`; `make bench` prints them.

use super::*;
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
            .apply(IndexMessage::GpuNodes(WatchUpdate::applied(*gpu_node)));
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

    /// Somebody removes a label of a policy from the next node. The clock runs from the object that the watch brings, read, to
    /// the patch that puts the label back and the status of both policies that match, and nothing in between is left out.
    fn event(&mut self) -> Duration {
        self.turn = (self.turn + 7) % self.nodes.len();
        // The first three are not ready in any case.
        let mut node = self.nodes[self.turn.max(3)].clone();
        let name = node.metadata.name.clone().unwrap();
        node.metadata.resource_version = Some(self.scene.next_version());
        node.metadata.labels.as_mut().unwrap().remove("x").unwrap();

        let start = Instant::now();
        self.set(&node);
        let (mut patches, mut statuses) = (0, 0);
        for queued in std::mem::take(&mut self.scene.effects.queued) {
            match queued.key {
                WorkKey::Node(name) => patches += usize::from(black_box(self.scene.node_write(&name)).is_some()),
                WorkKey::PolicyStatus(name) => {
                    let work = self.scene.index.policy_status_write(&name, Timestamp::UNIX_EPOCH);
                    statuses += usize::from(black_box(work).is_some());
                }
                WorkKey::DaemonSet(name) => panic!("no event of a node concerns {name}"),
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
        self.scene.go(ClusterIndex::queue_everything);
        let keys: Vec<_> = std::mem::take(&mut self.scene.effects.queued)
            .into_iter()
            .map(|queued| queued.key)
            .collect();
        let mut due = |key: &WorkKey| match key {
            WorkKey::Node(name) => self.scene.node_write(name).is_some(),
            WorkKey::PolicyStatus(name) => self.scene.index.policy_status_write(name, Timestamp::now()).is_some(),
            WorkKey::DaemonSet(_) => false,
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
    println!("one event, watch to wanted writes: {few:?} among 10 nodes, {many:?} among 5,000: ratio {ratio:.2}");
    println!("figure: event-ratio | {ratio:.2} | x");
    let writes = ConvergedCluster::of(10).change_policy();
    println!(
        "figure: writes-per-node | {} |",
        f64::from(u32::try_from(writes).unwrap()) / 10.0
    );
}
