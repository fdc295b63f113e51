use super::*;
use gpunode_crds::{Agent, AgentMode, Configuration, ConfigurationStep, GpuDevice, LastXid, RuntimeStatus};
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, FieldsV1, ManagedFieldsEntry, Time};
use kube::{client::Body, core::ApiResource};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::{task::JoinHandle, time::advance};
use tower::service_fn;

fn status(hash: &str, second: i64) -> GpuNodeStatus {
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        reason: "ConfigurationInForce".to_owned(),
        message: String::new(),
        last_transition_time: Time(Timestamp::from_second(second).unwrap()),
        observed_generation: None,
    };
    GpuNodeStatus {
        config_hash: Some(hash.to_owned()),
        conditions: vec![ready],
        ..GpuNodeStatus::default()
    }
}

/// A GpuNode; without status if that is null.
fn object(version: &str, status: Value) -> ObservedGpuNode {
    let mut object = ObservedGpuNode::new("a", &ApiResource::erase::<GpuNode>(&()), GpuNodeSpec::default());
    object.metadata.resource_version = Some(version.to_owned());
    object.status = Some(status).filter(|status| !status.is_null());
    object
}

/// A status of the agent of policy `p`.
fn serving(hash: &str, ready: &str) -> GpuNodeStatus {
    let mut status = status(hash, 5);
    status.conditions[0].status = ready.to_owned();
    status.agent = Some(Agent {
        policy: Some("p".to_owned()),
        mode: AgentMode::DevicePlugin,
        ..Agent::default()
    });
    status
}

/// A GpuNode whose step to configuration `two` began at second 7.
fn stepping(status: &GpuNodeStatus) -> ObservedGpuNode {
    let mut object = object("1", json!(status));
    object.spec.config = Some(Configuration {
        policy: "p".to_owned(),
        hash: "two".to_owned(),
        ..Configuration::default()
    });
    object.spec.step = Some(ConfigurationStep {
        started_at: Time(Timestamp::from_second(7).unwrap()),
        generation: Some(1),
        failed: None,
    });
    object
}

/// A status written over version 1, which made version 2.
fn written(hash: &str) -> WrittenStatus {
    WrittenStatus {
        status: status(hash, 5),
        observed_version: Some("1".to_owned()),
        version: Some("2".to_owned()),
        answer: None,
    }
}

/// Returns the patch from the status in `object` to that of `hash`.
fn patch(written: Option<&WrittenStatus>, hash: &str, object: &ObservedGpuNode) -> Option<Value> {
    planned_patch(
        written,
        &mut status(hash, 0),
        object,
        Timestamp::from_second(9).unwrap(),
    )
}

fn condition(name: &str, second: i64) -> Value {
    let condition = Condition {
        type_: name.to_owned(),
        ..status("", second).conditions.remove(0)
    };
    json!(condition)
}

fn write(written: Option<&WrittenStatus>, wanted: &str, object: &ObservedGpuNode) -> Option<GpuNodeStatus> {
    let mut status = status(wanted, 0);
    let patch = planned_patch(written, &mut status, object, Timestamp::from_second(9).unwrap());
    patch.is_some().then_some(status)
}

#[test]
fn what_the_object_says_already_is_not_written() {
    let live = object("1", json!(status("one", 5)));
    assert_eq!(write(None, "one", &live), None);
    assert_eq!(
        write(None, "two", &live),
        Some(status("two", 5)),
        "the condition has not changed"
    );
    assert_eq!(write(None, "one", &object("1", json!({}))), Some(status("one", 9)));
}

#[test]
fn the_runtime_stays_until_an_agent_that_starts_has_read_it() {
    let runtime = RuntimeStatus {
        name: Some("containerd".to_owned()),
        ..RuntimeStatus::default()
    };
    let known = GpuNodeStatus {
        runtime: Some(runtime),
        ..status("one", 5)
    };
    let live = object("1", json!(known));
    assert_eq!(write(None, "one", &live), None);
    assert_eq!(
        write(None, "two", &live).map(|status| status.runtime),
        Some(known.runtime)
    );
}

#[test]
fn what_somebody_changed_is_written_again() {
    let edited = object("3", json!({"configHash": "zero"}));
    assert_eq!(write(Some(&written("one")), "one", &edited), Some(status("one", 9)));
}

#[test]
fn what_the_api_server_made_of_a_status_is_left_alone() {
    let pruned = object("2", json!({}));
    assert_eq!(write(Some(&written("one")), "one", &pruned), None);
    assert!(write(Some(&written("one")), "two", &pruned).is_some());
}

#[test]
fn what_the_watch_has_not_brought_yet_is_not_written_again() {
    let before = object("1", json!(status("zero", 5)));
    assert_eq!(write(Some(&written("one")), "one", &before), None);
    assert!(
        write(Some(&written("one")), "two", &before).is_some(),
        "the report changed"
    );
}

#[test]
fn a_status_of_a_newer_agent_is_replaced() {
    let newer = object("1", json!({"agent": {"mode": "Telepathy"}}));
    assert_eq!(write(None, "one", &newer), Some(status("one", 9)));
}

#[test]
fn what_the_operator_says_in_the_status_is_not_the_agents() {
    let mut live = status("one", 5);
    let theirs = |of: &ConditionType| Condition {
        type_: of.as_str().to_owned(),
        ..live.conditions[0].clone()
    };
    let more: Vec<Condition> = ConditionType::OF_OPERATOR.iter().map(theirs).collect();
    live.conditions.extend(more);
    let live = object("3", json!(live));
    assert_eq!(write(None, "one", &live), None);
    assert_eq!(write(None, "two", &live), Some(status("two", 5)));
}

#[test]
fn an_agent_that_starts_knows_from_its_gpu_node_which_gpus_are_missing() {
    let gpu = GpuDevice {
        uuid: "GPU-0".to_owned(),
        ..GpuDevice::default()
    };
    let before = GpuNodeStatus {
        gpus: vec![gpu],
        ..status("one", 5)
    };
    let written = write(None, "one", &object("1", json!(before))).unwrap();
    let missing = written.gpus[0].missing_since.clone().unwrap();
    assert_eq!(missing.0, Timestamp::from_second(9).unwrap());
    assert_eq!(
        write(None, "one", &object("2", json!(written))),
        None,
        "and it stays missing since then"
    );
}

#[test]
fn times_that_were_read_back_after_a_restart_are_no_change() {
    let with_xid = |millisecond: i64| {
        let gpu = GpuDevice {
            uuid: "GPU-0".to_owned(),
            last_xid: Some(LastXid {
                xid: 31,
                message: None,
                time: Some(Time(Timestamp::from_millisecond(millisecond).unwrap())),
            }),
            ..GpuDevice::default()
        };
        GpuNodeStatus {
            gpus: vec![gpu],
            ..status("one", 5)
        }
    };
    // The API has whole seconds, the file of the agent has more.
    let live = object("1", json!(with_xid(4123)));
    let now = Timestamp::from_second(9).unwrap();
    assert_eq!(planned_patch(None, &mut with_xid(4123), &live, now), None);
    assert!(planned_patch(None, &mut with_xid(5123), &live, now).is_some());
}

#[test]
fn patch_has_what_changed_and_nothing_else() {
    let live = object("1", json!({"configHash": "one", "conditions": [condition("Ready", 5)]}));
    assert_eq!(
        patch(None, "two", &live),
        Some(json!({"status": {"configHash": "two"}}))
    );
    let unknown = object(
        "1",
        json!({"configHash": "one", "mood": "good", "conditions": [condition("Ready", 5)]}),
    );
    assert_eq!(
        patch(None, "one", &unknown),
        Some(json!({"status": {"mood": null}})),
        "an agent of another version wrote it"
    );
}

#[test]
fn conditions_are_written_with_those_of_the_operator_and_for_one_version() {
    let (ready, conflict) = (condition("Ready", 9), condition("Conflict", 5));
    let live = object("7", json!({"configHash": "one", "conditions": [conflict]}));
    let expected = json!({
        "metadata": {"resourceVersion": "7"},
        "status": {"conditions": [ready, conflict]},
    });
    assert_eq!(patch(None, "one", &live), Some(expected));
}

#[test]
fn condition_of_a_newer_operator_stays_and_one_of_an_older_agent_goes() {
    let mut live = object(
        "7",
        json!({
            "configHash": "one",
            "conditions": (["Ready", "Novel", "Former"].map(|name| condition(name, 5))),
        }),
    );
    let owned = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Novel\"}": {".": {}, "f:type": {}}}}});
    live.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        manager: Some(OPERATOR_FIELD_MANAGER.to_owned()),
        fields_v1: Some(FieldsV1(owned)),
        ..ManagedFieldsEntry::default()
    }]);
    let expected = json!([condition("Ready", 5), condition("Novel", 5)]);
    let patch = patch(None, "one", &live).unwrap();
    assert_eq!(patch.pointer("/status/conditions"), Some(&expected));
}

#[test]
fn agent_that_restarts_keeps_the_finished_step() {
    let finished = GpuNodeStatus {
        finished_step: Some(Time(Timestamp::from_second(7).unwrap())),
        ..serving("two", "True")
    };
    let now = Timestamp::from_second(9).unwrap();
    let planned = |mut status: GpuNodeStatus, object: &ObservedGpuNode| planned_patch(None, &mut status, object, now);
    let live = stepping(&finished);
    assert_eq!(planned(serving("two", "True"), &live), None);
    for broken in [serving("two", "False"), serving("one", "True"), status("two", 5)] {
        let patch = planned(broken, &live).unwrap();
        assert_eq!(patch["status"].get("finishedStep"), None, "{patch}");
    }
    // The operator has removed the step, as it does where it saw the configuration in force first.
    assert_eq!(planned(serving("two", "True"), &object("2", json!(finished))), None);
}

#[test]
fn next_change_builds_on_the_answer_to_the_last_one() {
    let before = object("1", json!(status("zero", 5)));
    let answered = WrittenStatus {
        answer: Some(object("2", json!(status("one", 5)))),
        ..written("one")
    };
    let mut ready = status("one", 0);
    ready.conditions[0].status = "False".to_owned();
    let now = Timestamp::from_second(9).unwrap();
    let patch = planned_patch(Some(&answered), &mut ready, &before, now).unwrap();
    assert_eq!(patch["metadata"], json!({"resourceVersion": "2"}));
    assert_eq!(patch["status"].get("configHash"), None);
}

/// An API server that keeps what is written, and when that was. The first writes get a conflict.
#[derive(Clone, Default)]
struct ApiServer {
    written: Arc<Mutex<Vec<(Instant, Value)>>>,
    conflicts: Arc<Mutex<usize>>,
    /// Number of reads.
    reads: Arc<Mutex<usize>>,
    /// The status that it has.
    live: Arc<Mutex<Value>>,
}

/// Merges a patch into a value (RFC 7396).
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let fields = value.as_object_mut().unwrap();
    for (name, change) in patch {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}

impl ApiServer {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let Self {
                written,
                conflicts,
                reads,
                live,
            } = server.clone();
            async move {
                if request.method() == Method::GET {
                    let query = request.uri().query().unwrap_or_default();
                    assert!(query.ends_with("fieldSelector=metadata.name%3Da"), "{query}");
                    *reads.lock().unwrap() += 1;
                    let item = object("9", live.lock().unwrap().clone());
                    let list = json!({
                        "apiVersion": "gpunode.dev/v1alpha1",
                        "kind": "GpuNodeList",
                        "metadata": {},
                        "items": [item],
                    });
                    return Ok(Response::new(Body::from(serde_json::to_vec(&list).unwrap())));
                }
                assert_eq!(request.method(), Method::PATCH);
                assert_eq!(request.headers()["content-type"], "application/merge-patch+json");
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                let mut writes = written.lock().unwrap();
                let mut conflicts = conflicts.lock().unwrap();
                if *conflicts > 0 {
                    *conflicts -= 1;
                    let failure = json!({
                        "kind": "Status",
                        "status": "Failure",
                        "code": 409,
                        "reason": "Conflict",
                        "message": "x",
                    });
                    let mut response = Response::new(Body::from(serde_json::to_vec(&failure).unwrap()));
                    *response.status_mut() = StatusCode::CONFLICT;
                    return Ok(response);
                }
                let mut live = live.lock().unwrap();
                merge(&mut live, &object["status"]);
                object["spec"] = json!({});
                object["metadata"]["name"] = json!("a");
                object["metadata"]["resourceVersion"] = json!(format!("w{}", writes.len()));
                writes.push((Instant::now(), object["status"]["configHash"].clone()));
                object["status"] = live.clone();
                Ok::<_, Infallible>(Response::new(Body::from(serde_json::to_vec(&object).unwrap())))
            }
        });
        Client::new(service, "default")
    }

    fn reads(&self) -> usize {
        *self.reads.lock().unwrap()
    }

    fn writes(&self) -> Vec<(Instant, Value)> {
        self.written.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_on_change_only_and_at_most_once_a_second() {
    let server = ApiServer::default();
    let report = |hash: usize| {
        Some(StatusReport {
            status: status(&format!("{hash}"), 0),
            create: true,
            is_settled: true,
        })
    };
    let reports = watch::Sender::new(report(0));
    let gpu_node = watch::Sender::new(GpuNodeState::Present(Arc::new(object("1", json!({})))));
    let reporter = StatusReporter {
        client: server.client(),
        node_name: "a".to_owned(),
        reports: reports.subscribe(),
        gpu_node: gpu_node.subscribe(),
        start_mark: None,
    };
    tokio::spawn(reporter.run());
    for change in 1..=50 {
        advance(Duration::from_millis(100)).await;
        reports.send_replace(report(change));
    }
    sleep(Duration::from_secs(5)).await;
    let writes = server.writes();
    assert_eq!(writes.last().map(|(_, hash)| hash.clone()), Some(json!("50")));
    let pauses: Vec<Duration> = writes.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(pauses.iter().all(|pause| *pause >= MIN_INTERVAL), "{pauses:?}");
    assert!((3..=7).contains(&writes.len()), "{}", writes.len());

    // Equal reports, and an object that the watch brings again.
    for _ in 0..20 {
        advance(Duration::from_millis(500)).await;
        reports.send_replace(report(50));
        gpu_node.send_modify(|_| {});
    }
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.writes().len(), writes.len());
}

/// Runs a reporter for this GpuNode, and returns its inputs.
fn reporter(
    server: &ApiServer,
    live: ObservedGpuNode,
) -> (watch::Sender<Option<StatusReport>>, watch::Sender<GpuNodeState>) {
    let (reports, gpu_node, _) = agent(server, live, None);
    (reports, gpu_node)
}

/// Runs a reporter of an agent with this mark, and returns its inputs and its task.
fn agent(
    server: &ApiServer,
    live: ObservedGpuNode,
    start_mark: Option<StartMark>,
) -> (
    watch::Sender<Option<StatusReport>>,
    watch::Sender<GpuNodeState>,
    JoinHandle<()>,
) {
    *server.live.lock().unwrap() = live.status.clone().unwrap_or_default();
    let reports = watch::Sender::new(None);
    let gpu_node = watch::Sender::new(GpuNodeState::Present(Arc::new(live)));
    let reporter = StatusReporter {
        client: server.client(),
        node_name: "a".to_owned(),
        reports: reports.subscribe(),
        gpu_node: gpu_node.subscribe(),
        start_mark,
    };
    let task = tokio::spawn(reporter.run());
    (reports, gpu_node, task)
}

#[expect(clippy::unnecessary_wraps, reason = "the channel holds none before the first report")]
fn report(hash: &str, is_settled: bool) -> Option<StatusReport> {
    Some(StatusReport {
        status: status(hash, 0),
        create: true,
        is_settled,
    })
}

#[tokio::test(start_paused = true)]
async fn agent_that_restarts_writes_nothing_when_it_comes_to_the_same_status() {
    let server = ApiServer::default();
    let (reports, _gpu_node) = reporter(&server, object("1", json!(status("one", 5))));
    // Not registered yet, holders unknown, and so on.
    for hash in ["", "none", "some"] {
        reports.send_replace(report(hash, false));
        sleep(Duration::from_secs(1)).await;
    }
    reports.send_replace(report("one", true));
    sleep(Duration::from_mins(1)).await;
    assert!(server.writes().is_empty());
    // Later on it says at once that something is wrong.
    let start = Instant::now();
    reports.send_replace(report("two", false));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.writes().len(), 1);
    assert!(server.writes()[0].0 - start < Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn finished_step_is_reported_with_the_configuration_in_one_write() {
    let server = ApiServer::default();
    let (reports, _gpu_node) = reporter(&server, stepping(&serving("one", "True")));
    let report = |hash: &str| {
        reports.send_replace(Some(StatusReport {
            status: serving(hash, "True"),
            create: true,
            is_settled: true,
        }));
    };
    report("one");
    sleep(Duration::from_mins(1)).await;
    assert!(
        server.writes().is_empty(),
        "the configuration before the step is in force"
    );
    report("two");
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.writes().len(), 1);
    let live = server.live.lock().unwrap().clone();
    assert_eq!(
        (&live["configHash"], &live["finishedStep"]),
        (&json!("two"), &json!("1970-01-01T00:00:07Z"))
    );
}

#[tokio::test(start_paused = true)]
async fn status_of_an_object_that_was_made_anew_meanwhile_is_written_whole() {
    let server = ApiServer::default();
    let (reports, _gpu_node) = reporter(&server, object("1", json!(status("one", 5))));
    *server.live.lock().unwrap() = Value::Null;
    reports.send_replace(report("two", true));
    sleep(Duration::from_mins(1)).await;
    let live = server.live.lock().unwrap().clone();
    let mut wanted = json!(status("two", 5));
    // Times of this run.
    for condition in wanted["conditions"].as_array_mut().unwrap() {
        condition.as_object_mut().unwrap().remove("lastTransitionTime");
    }
    let mut seen = live;
    for condition in seen["conditions"].as_array_mut().unwrap() {
        condition.as_object_mut().unwrap().remove("lastTransitionTime");
    }
    assert_eq!(seen, wanted);
}

#[tokio::test(start_paused = true)]
async fn agent_that_does_not_settle_says_so_after_a_few_seconds() {
    let server = ApiServer::default();
    let start = Instant::now();
    let (reports, _gpu_node) = reporter(&server, object("1", json!(status("one", 5))));
    reports.send_replace(report("none", false));
    sleep(Duration::from_mins(1)).await;
    let writes = server.writes();
    assert_eq!(writes.len(), 1);
    let waited = writes[0].0 - start;
    assert!((START_GRACE..START_GRACE * 2).contains(&waited), "{waited:?}");

    let server = ApiServer::default();
    let start = Instant::now();
    let (reports, _gpu_node) = reporter(&server, object("1", Value::Null));
    reports.send_replace(report("none", false));
    sleep(Duration::from_secs(1)).await;
    assert!(
        server.writes()[0].0 - start < Duration::from_secs(1),
        "the node has no status yet"
    );
}

#[tokio::test(start_paused = true)]
async fn agents_that_die_soon_after_each_start_say_so_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::default();
    *server.live.lock().unwrap() = json!(status("one", 5));
    let start = || {
        let live = object("1", server.live.lock().unwrap().clone());
        agent(&server, live, Some(StartMark::set(folder.path())))
    };
    for (number, expected) in [(1, 0), (2, 1), (3, 1), (4, 1)] {
        let (reports, _gpu_node, task) = start();
        reports.send_replace(report("none", false));
        sleep(Duration::from_secs(1)).await;
        reports.send_replace(report("one", true));
        sleep(Duration::from_secs(2)).await;
        task.abort();
        assert_eq!(server.writes().len(), expected, "start {number}");
    }
    assert_eq!(server.writes()[0].1, json!("none"));

    // One that lives says so after its first seconds.
    let (reports, _gpu_node, _task) = start();
    reports.send_replace(report("one", true));
    sleep(Duration::from_secs(4)).await;
    assert_eq!(server.writes().len(), 1);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.writes().last().map(|(_, hash)| hash.clone()), Some(json!("one")));
    assert!(!StartMark::set(folder.path()).was_there());
}

#[tokio::test(start_paused = true)]
async fn refused_change_is_written_when_the_watch_has_brought_the_other_one() {
    let server = ApiServer::default();
    *server.conflicts.lock().unwrap() = 1;
    let (reports, gpu_node) = reporter(&server, object("1", json!({})));
    reports.send_replace(report("one", true));
    sleep(Duration::from_millis(400)).await;
    assert!(server.writes().is_empty(), "the object has another version");
    gpu_node.send_replace(GpuNodeState::Present(Arc::new(object("2", json!({})))));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((server.writes().len(), server.reads()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn refused_change_is_written_after_one_read_while_the_watch_is_silent() {
    let server = ApiServer::default();
    *server.conflicts.lock().unwrap() = 1;
    let (reports, _gpu_node) = reporter(&server, object("1", json!({})));
    reports.send_replace(report("one", true));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.writes().len(), server.reads()), (1, 1));
    sleep(Duration::from_mins(1)).await;
    assert_eq!(server.writes().len(), 1, "the watch shows the old object still");
    reports.send_replace(report("two", true));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((server.writes().len(), server.reads()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn changes_that_are_refused_again_and_again_are_tried_ever_more_rarely() {
    let server = ApiServer::default();
    *server.conflicts.lock().unwrap() = usize::MAX;
    let (reports, _gpu_node) = reporter(&server, object("1", json!({})));
    reports.send_replace(report("one", true));
    sleep(Duration::from_mins(10)).await;
    // Five pauses that grow, then 15 to 30 s each.
    assert!((20..=46).contains(&server.reads()), "{}", server.reads());
}
