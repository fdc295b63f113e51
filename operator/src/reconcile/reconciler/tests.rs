use super::*;
use crate::{
    events::event_channel,
    index::{
        cache::WatchUpdate,
        message::WrittenObject,
        work::{DaemonSetWrite, PlannedWrite},
    },
    leader_election::LEASE_DURATION,
    write::MAX_PLANNED_URGENT_WRITES,
};
use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{AgentImages, AgentPodSettings, HostPaths, NodeFacts, policy_daemonset_name};
use k8s_openapi::api::{apps::v1::DaemonSetStatus, core::v1::Node};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Writes of any class that are planned or under way.
const MAX_PLANNED_WRITES: usize = 8;

/// The channels of a reconciler.
struct Scene {
    messages: mpsc::Sender<IndexMessage>,
    writes: mpsc::Receiver<WriteRequest>,
}

impl Scene {
    /// Runs a reconciler of this leadership, on one node with one policy.
    fn run(leadership: Leadership, node: &Value, policy: &Value) -> Self {
        Self::run_on(leadership, vec![facts(node)], policy)
    }

    /// Runs a reconciler of this leadership, on nodes with one policy.
    fn run_on(leadership: Leadership, nodes: Vec<NodeFacts>, policy: &Value) -> Self {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        let (index, _) = IndexOwner::new(ClusterIndex::new(pods, true));
        let (write_sender, writes) = mpsc::channel(MAX_PLANNED_URGENT_WRITES);
        let metrics = Arc::new(OperatorMetrics::new());
        let outputs = ReconcilerOutputs {
            writes: write_sender,
            events: event_channel(metrics.clone()).0,
            evictions: Arc::new(WorkQueue::new()),
            drains: Arc::new(WorkQueue::new()),
            deletes_rejected_pods: watch::channel(false).0,
        };
        let mut reconciler = Reconciler::new(index, outputs, metrics);
        let policy = GpuNodePolicy::new("p", serde_json::from_value(policy.clone()).unwrap());
        for message in [
            IndexMessage::list(IndexMessage::Policies, vec![policy.into()]),
            IndexMessage::list(IndexMessage::Nodes, nodes),
            IndexMessage::list(IndexMessage::GpuNodes, vec![]),
            IndexMessage::list(IndexMessage::DaemonSets, vec![]),
        ]
        .into_iter()
        .flatten()
        {
            reconciler.handle(message);
        }
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(reconciler.run(receiver, leadership));
        Self {
            messages: sender,
            writes,
        }
    }

    /// Waits for as many writes as are planned while none ends.
    async fn planned_writes(&mut self) -> Vec<WriteRequest> {
        let mut requests = Vec::new();
        while let Some(request) = self.next_write().await {
            requests.push(request);
        }
        requests
    }

    async fn next_write(&mut self) -> Option<WriteRequest> {
        timeout(Duration::from_mins(1), self.writes.recv()).await.ok().flatten()
    }

    async fn send(&self, message: IndexMessage) {
        assert!(self.messages.send(message).await.is_ok());
    }

    async fn accept(&self, key: WorkKey) {
        let result = WriteResult::Accepted;
        self.send(IndexMessage::Finished(FinishedWrite { key, result })).await;
    }
}

fn leading() -> Leadership {
    Leadership::until(Instant::now() + 1000 * LEASE_DURATION)
}

fn facts(node: &Value) -> NodeFacts {
    NodeFacts::of(&serde_json::from_value::<Node>(node.clone()).unwrap())
}

fn node() -> Value {
    json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"a": "b"}, "annotations": {"a": "b"}}})
}

fn fleet(size: usize) -> Vec<NodeFacts> {
    let node = |index| {
        let name = format!("n-{index:05}");
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {"a": "b"}}})
    };
    (0..size).map(|index| facts(&node(index))).collect()
}

#[tokio::test(start_paused = true)]
async fn new_node_is_written_before_the_rest_of_a_sweep() {
    let policy = json!({"nodeSelector": {}, "labels": {"x": "y"}});
    let mut scene = Scene::run_on(leading(), fleet(500), &policy);
    let mut written = Vec::new();
    while let Some(WriteRequest { key, .. }) = scene.next_write().await {
        let is_new = key == WorkKey::Node("new".to_owned());
        if matches!(key, WorkKey::Node(_)) {
            written.push(key.clone());
        }
        if is_new {
            break;
        }
        if written.len() == 100 {
            let new = json!({"metadata": {"name": "new", "uid": "new", "resourceVersion": "2"}});
            scene.send(IndexMessage::Nodes(WatchUpdate::applied(facts(&new)))).await;
        }
        scene.accept(key).await;
    }
    assert!(written.len() <= 100 + 2 * MAX_PLANNED_WRITES, "{}", written.len());
}

#[tokio::test(start_paused = true)]
async fn standby_writes_nothing() {
    let policy = json!({"nodeSelector": {}, "labels": {"x": "y"}});
    let mut scene = Scene::run(Leadership::until(Instant::now()), &node(), &policy);
    assert!(scene.next_write().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn next_plan_of_a_node_sees_what_the_last_write_returned() {
    let policy = json!({"nodeSelector": {}, "labels": {"x": "y"}});
    let mut scene = Scene::run(leading(), &node(), &policy);
    let mut node_writes = 0;
    while let Some(WriteRequest { key, write, .. }) = scene.next_write().await {
        if let PlannedWrite::Node(write) = write {
            node_writes += 1;
            let mut written = node();
            json_patch::patch(&mut written, &write.patch.unwrap()).unwrap();
            written["metadata"]["resourceVersion"] = json!("2");
            let written = Box::new(facts(&written));
            // The watch brings the node as it was before, between the write and its result.
            let stale = WatchUpdate::applied(facts(&node()));
            scene.send(IndexMessage::Nodes(stale)).await;
            scene.send(IndexMessage::Written(WrittenObject::Node(written))).await;
        }
        scene.accept(key).await;
    }
    assert_eq!(node_writes, 1);
}

#[tokio::test(start_paused = true)]
async fn each_worker_has_its_next_write_planned_and_no_more() {
    let policy = json!({"nodeSelector": {}, "labels": {"x": "y"}});
    let mut scene = Scene::run_on(leading(), fleet(2 * MAX_PLANNED_WRITES), &policy);
    let mut requests = scene.planned_writes().await;
    assert_eq!(requests.len(), MAX_PLANNED_WRITES, "{requests:?}");
    scene.accept(requests.remove(0).key).await;
    assert!(scene.next_write().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn urgent_writes_are_planned_although_no_ordinary_one_ends() {
    let policy = json!({"nodeSelector": {}, "labels": {"x": "y"}});
    let mut scene = Scene::run_on(leading(), fleet(2 * MAX_PLANNED_WRITES), &policy);
    assert_eq!(scene.planned_writes().await.len(), MAX_PLANNED_WRITES);
    for name in ["new-1", "new-2", "new-3"] {
        let new = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "2"}});
        scene.send(IndexMessage::Nodes(WatchUpdate::applied(facts(&new)))).await;
    }
    let urgent = scene.planned_writes().await;
    let keys: Vec<_> = urgent
        .iter()
        .map(|request| (request.key.name(), request.class))
        .collect();
    let expected = ["new-1", "new-2"].map(|name| (name, WorkClass::Urgent));
    assert_eq!(keys, expected, "a few at a time");
    scene.accept(urgent[1].key.clone()).await;
    let next = scene.next_write().await.map(|request| request.key);
    assert_eq!(next, Some(WorkKey::Node("new-3".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn status_is_reconciled_at_the_deadline_of_its_agents_however_often_it_was_before() {
    let policy = json!({"nodeSelector": {}, "devicePlugin": {}, "rollout": {"progressDeadline": "30s"}});
    let mut scene = Scene::run(leading(), &node(), &policy);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(29) {
        let WriteRequest { key, write, .. } = scene.next_write().await.expect("the deadline queues the status");
        if let PlannedWrite::DaemonSet(DaemonSetWrite::Create(mut daemonset)) = write
            && daemonset.metadata.name.as_ref() == Some(&policy_daemonset_name("p"))
        {
            daemonset.metadata.resource_version = Some("1".to_owned());
            daemonset.status = Some(DaemonSetStatus {
                current_number_scheduled: 2,
                ..DaemonSetStatus::default()
            });
            scene
                .send(IndexMessage::DaemonSets(WatchUpdate::Applied(daemonset)))
                .await;
        }
        scene.accept(key).await;
    }
}
