//! The index of a leader with 20,000 nodes, 30 policies on a thirtieth of them each and 20 previews on all, without an
//! API server. `make bench-fleet ONLY=index` prints its figures and fills `docs/scale.md`.

use super::{
    figures::{reported_gpu_node, reported_node},
    *,
};
use crate::{
    memory::{resident_kib, return_free_memory, set_up},
    watched::Watched,
};
use std::time::{Duration, Instant};
use tokio::{runtime::Builder, time::timeout};

const NODES: usize = 20_000;
/// Parts of the fleet, each with a policy of its own.
const PARTS: usize = 30;
/// Previews on all nodes.
const PREVIEWS: usize = 20;
/// Objects of a page of a list.
const PAGE: usize = 100;
/// Events of single nodes.
const EVENTS: usize = 2000;
/// Label whose value is the part of the node.
const PART: &str = "example.com/part";
/// Label that the policies set.
const LABEL: &str = "example.com/round";
/// Time between two lines about the progress.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// A leader whose writes are all accepted at once.
struct LargeFleet {
    index: ClusterIndex,
    /// Keys that are due, apart from statuses, in the order of the queue: nodes of a slice before the next slice.
    due: BTreeSet<WorkKey>,
    /// Statuses that are due. The operator computes each once in a second, so they wait until nothing else is due.
    statuses: BTreeSet<WorkKey>,
    version: usize,
    now: Timestamp,
    told: Instant,
}

/// Times of the turns in which work was done.
#[derive(Default)]
struct WorkTimes {
    /// Plans of nodes.
    plans: Vec<Duration>,
    /// Results of their writes.
    results: Vec<Duration>,
    /// Slices of sweeps, whose nodes join the queue.
    slices: Vec<Duration>,
    /// Slices of passes of previews.
    previews: Vec<Duration>,
    /// Statuses of policies.
    statuses: Vec<Duration>,
}

impl LargeFleet {
    fn new() -> Self {
        Self {
            index: Scene::not_synced().index,
            due: BTreeSet::new(),
            statuses: BTreeSet::new(),
            version: 1_000_000,
            now: "2026-06-01T00:00:00Z".parse().unwrap(),
            told: Instant::now(),
        }
    }

    /// Says how far a long computation is.
    fn tell(&mut self, state: impl FnOnce() -> String) {
        if self.told.elapsed() >= TOLD_EVERY {
            println!("{}", state());
            self.told = Instant::now();
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Applies a message and returns the time that it took.
    fn apply(&mut self, message: IndexMessage) -> Duration {
        let (mut effects, begin) = (Effects::default(), Instant::now());
        self.index.apply(message, self.now, &mut effects);
        let took = begin.elapsed();
        self.queue(effects);
        took
    }

    fn queue(&mut self, effects: Effects) {
        for QueuedKey { key, at, .. } in effects.queued {
            if at.is_some_and(|at| at > self.now) {
                continue;
            }
            let keys = match key {
                WorkKey::PolicyStatus(_) => &mut self.statuses,
                _ => &mut self.due,
            };
            keys.insert(key);
        }
    }

    /// Takes in a list page by page.
    fn list<T>(&mut self, message: fn(WatchUpdate<T>) -> IndexMessage, count: usize, object: impl Fn(usize) -> T) {
        self.apply(message(WatchUpdate::ListStarted));
        for first in (0..count).step_by(PAGE) {
            let page: Vec<T> = (first..count.min(first + PAGE)).map(&object).collect();
            self.apply(message(WatchUpdate::ListPage(page)));
            self.tell(|| format!("{first} of {count} objects are read"));
        }
        self.apply(message(WatchUpdate::ListCompleted(None)));
    }

    fn policies(&mut self, round: usize) -> Vec<GpuNodePolicy> {
        let mut policy = |name: String, spec: serde_json::Value| {
            let mut policy = GpuNodePolicy::new(&name, serde_json::from_value(spec).unwrap());
            policy.metadata.uid = Some(name);
            policy.metadata.generation = Some(i64::try_from(round).unwrap());
            policy.metadata.resource_version = Some(self.next_version());
            policy
        };
        let value = format!("round-{round}");
        let mut policies = Vec::new();
        for part in 0..PARTS {
            let spec = json!({
                "nodeSelector": {"matchLabels": {PART: part.to_string()}}, "labels": {LABEL: value},
                "unhealthyTaint": {"after": "0s", "minHealthy": 8},
            });
            policies.push(policy(format!("part-{part:02}"), spec));
        }
        for preview in 0..PREVIEWS {
            let spec = json!({
                "mode": "Preview", "priority": preview, "nodeSelector": {},
                "labels": {format!("example.com/preview-{preview}"): value},
            });
            policies.push(policy(format!("preview-{preview:02}"), spec));
        }
        policies
    }

    /// Does everything that is due.
    fn work(&mut self) -> WorkTimes {
        let mut times = WorkTimes::default();
        while let Some(key) = self.due.pop_first().or_else(|| self.statuses.pop_first()) {
            let (write, took) = self.turn(&key);
            match key {
                WorkKey::Node(name) => {
                    times.plans.push(took);
                    if let Some(PlannedWrite::Node(write)) = write {
                        times.results.push(self.carry_out(&name, *write));
                    }
                }
                WorkKey::Sweep => times.slices.push(took),
                WorkKey::Previews => times.previews.push(took),
                WorkKey::PolicyStatus(_) => times.statuses.push(took),
                WorkKey::DaemonSet(_) | WorkKey::Removal(_) => {}
            }
            let (plans, previews) = (times.plans.len(), times.previews.len());
            self.tell(|| format!("{plans} plans of nodes, {previews} turns of previews"));
        }
        times
    }

    /// Computes the write of a key, as the reconciler does.
    fn turn(&mut self, key: &WorkKey) -> (Option<PlannedWrite>, Duration) {
        let (mut effects, begin) = (Effects::default(), Instant::now());
        let write = self.index.planned_write(key, self.now, &mut effects);
        let took = begin.elapsed();
        self.queue(effects);
        (write, took)
    }

    /// The API server accepts the write of a node. Returns the time that the index took to learn of it.
    fn carry_out(&mut self, name: &str, write: NodeWrite) -> Duration {
        let before = self.index.objects.nodes.get(name).unwrap().clone();
        let patch = write.patch.expect("the Node is patched");
        let taint = |taint: &Taint| json!({"key": taint.id.key, "effect": taint.id.effect, "value": taint.value});
        let taints: Vec<_> = before.taints.iter().map(taint).collect();
        let mut node = json!({
            "metadata": {
                "name": name, "resourceVersion": before.resource_version,
                "labels": before.labels.to_map(), "annotations": {},
            },
            "spec": {"taints": taints},
        });
        if let Some(owned) = before.owned.as_deref() {
            node["metadata"]["annotations"]["gpunode.dev/owned"] = json!(owned);
        }
        json_patch::patch(&mut node, &patch).unwrap();
        let written = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
        let after = NodeFacts {
            labels: written.labels,
            taints: written.taints,
            owned: written.owned,
            annotated: written.annotated,
            resource_version: self.next_version(),
            ..(*before).clone()
        };
        let result = FinishedWrite {
            key: node_key(name),
            result: WriteResult::Accepted,
        };
        self.apply(IndexMessage::Written(WrittenObject::Node(Box::new(after))))
            + self.apply(IndexMessage::Finished(result))
    }

    /// Somebody removes the label of a policy from a node. Returns the time from the event to the write that puts it
    /// back.
    fn event(&mut self, name: &str) -> Duration {
        let before = self.index.objects.nodes.get(name).unwrap().clone();
        let mut labels = before.labels.to_map();
        labels.remove(LABEL).expect("the policy has set it");
        let node = NodeFacts {
            labels: (&labels).into(),
            resource_version: self.next_version(),
            ..(*before).clone()
        };
        let applied = self.apply(IndexMessage::Nodes(WatchUpdate::applied(node)));
        let key = node_key(name);
        self.due.remove(&key);
        let (write, planned) = self.turn(&key);
        let Some(PlannedWrite::Node(write)) = write else {
            panic!("the label is put back: {write:?}")
        };
        self.carry_out(name, *write);
        applied + planned
    }
}

fn node_key(name: &str) -> WorkKey {
    WorkKey::Node(name.to_owned())
}

fn name_of(index: usize) -> String {
    format!("gpu-{index:05}")
}

fn node_facts(index: usize) -> NodeFacts {
    let mut node = reported_node(index);
    node["metadata"]["resourceVersion"] = json!((index + 1).to_string());
    node["metadata"]["labels"][PART] = json!((index % PARTS).to_string());
    for condition in node["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("True");
        }
    }
    serde_json::from_value::<Watched<Node>>(node).unwrap().into_facts()
}

/// A discovery agent has reported 8 healthy GPUs.
fn gpu_node_facts(index: usize) -> GpuNodeFacts {
    let mut gpu_node = reported_gpu_node(index);
    gpu_node["metadata"]["resourceVersion"] = json!((index + 1).to_string());
    gpu_node["spec"] = json!({});
    let status = &mut gpu_node["status"];
    status["agent"]["mode"] = json!("Discovery");
    for (parent, field) in [
        ("/agent", "policy"),
        ("", "configHash"),
        ("", "holders"),
        ("", "resources"),
    ] {
        let object = status.pointer_mut(parent).and_then(|parent| parent.as_object_mut());
        object.unwrap().remove(field);
    }
    serde_json::from_value::<Watched<GpuNode>>(gpu_node)
        .unwrap()
        .into_facts()
}

/// Gives free memory back as the operator does, and returns what is resident, in MiB.
fn resident() -> f64 {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    // It does so at once, and then again and again.
    let pause = Duration::from_millis(10);
    assert!(
        runtime
            .block_on(async { timeout(pause, return_free_memory()).await })
            .is_err()
    );
    f64::from(u32::try_from(resident_kib()).unwrap()) / 1024.0
}

/// The time below which this share of the times is.
fn share_of(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let count = |index: usize| f64::from(u32::try_from(index).unwrap());
    let total = count(times.len());
    let rank = (0..times.len()).find(|index| count(index + 1) >= share * total);
    times[rank.unwrap()]
}

fn sum(times: &[Duration]) -> Duration {
    times.iter().sum()
}

fn tell_figure(key: &str, value: f64, unit: &str) {
    println!("figure: {key} | {value:.1} | {unit}");
}

#[test]
#[ignore = "a measurement: make bench-fleet ONLY=index"]
fn index_of_20000_nodes_and_50_policies() {
    set_up();
    let mut fleet = LargeFleet::new();
    println!("taking in {NODES} nodes");
    let policies = fleet.policies(1);
    fleet.list(IndexMessage::Policies, policies.len(), |index| {
        WatchedPolicy::from(policies[index].clone())
    });
    fleet.list(IndexMessage::DaemonSets, 0, |_| DaemonSet::default());
    fleet.list(IndexMessage::Nodes, NODES, node_facts);
    fleet.list(IndexMessage::GpuNodes, NODES, gpu_node_facts);
    let is_node = |key: &WorkKey| matches!(key, WorkKey::Node(_));
    assert!(
        fleet.index.has_synced() && !fleet.due.iter().any(is_node),
        "a standby plans nothing"
    );
    fleet.due.clear();
    fleet.statuses.clear();
    tell_figure("index-standby", resident(), "MiB");

    println!("the standby becomes the leader");
    let mut effects = Effects::default();
    fleet.index.lead(fleet.now, &mut effects);
    fleet.queue(effects);
    let first = fleet.work();
    assert!(first.plans.len() >= NODES && first.results.len() >= NODES);
    tell_figure("index-leader", resident(), "MiB");

    println!("all policies are edited at once");
    let policies = fleet.policies(2).into_iter();
    // Each with a sweep of its own, whose begin costs what an edit costs. Those that come together have one.
    let mut edits: Vec<Duration> = policies
        .map(|policy| {
            let applied = fleet.apply(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
            let (_, begun) = fleet.turn(&WorkKey::Sweep);
            applied + begun
        })
        .collect();
    let policies = fleet.policies(3).into_iter();
    let applied: Duration = policies
        .map(|policy| fleet.apply(IndexMessage::Policies(WatchUpdate::applied(policy.into()))))
        .sum();
    let (_, begun) = fleet.turn(&WorkKey::Sweep);
    let mut times = fleet.work();
    assert_eq!(times.results.len(), NODES, "one write for each node");
    let label = |index: usize| {
        let facts = fleet.index.objects.nodes.get(&name_of(index)).unwrap();
        facts.labels.get(LABEL).map(str::to_owned)
    };
    assert!((0..NODES).all(|index| label(index).as_deref() == Some("round-3")));
    let sweep = sum(&times.plans) + sum(&times.results) + sum(&times.slices);
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    tell_figure("index-sweep", sweep.as_secs_f64(), "s");
    tell_figure("index-plan", micros(share_of(&mut times.plans, 0.5)), "µs");
    tell_figure("index-plan-p99", micros(share_of(&mut times.plans, 0.99)), "µs");
    tell_figure("index-edit", millis(share_of(&mut edits, 0.5)), "ms");
    tell_figure("index-edits", millis(applied + begun), "ms");
    tell_figure("index-previews", sum(&times.previews).as_secs_f64(), "s");
    tell_figure("index-preview-turn", millis(share_of(&mut times.previews, 0.999)), "ms");
    tell_figure("index-status", millis(share_of(&mut times.statuses, 1.0)), "ms");
    let mut turns: Vec<Duration> = [times.plans, times.results, times.slices].concat();
    tell_figure("index-turn", millis(share_of(&mut turns, 0.999)), "ms");

    println!("events of single nodes");
    let mut events: Vec<Duration> = (0..EVENTS)
        .map(|event| fleet.event(&name_of(event * 7 % NODES)))
        .collect();
    tell_figure("index-event", micros(share_of(&mut events, 0.5)), "µs");
}
