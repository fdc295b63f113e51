use super::*;
use gpunode_crds::{GpuDevice, RuntimeStatus};
use http::{Method, Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::client::Body;
use serde_json::Value;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tokio::time::{Instant, advance};
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

fn object(version: &str, status: Value) -> ObservedGpuNode {
    let mut object = ObservedGpuNode::new("a", &ApiResource::erase::<GpuNode>(&()), GpuNodeSpec::default());
    object.metadata.resource_version = Some(version.to_owned());
    object.status = Some(status);
    object
}

/// A status written over version 1, which made version 2.
fn written(hash: &str) -> WrittenStatus {
    WrittenStatus {
        status: status(hash, 5),
        observed_version: Some("1".to_owned()),
        version: Some("2".to_owned()),
    }
}

fn write(written: Option<&WrittenStatus>, wanted: &str, object: &ObservedGpuNode) -> Option<GpuNodeStatus> {
    let mut status = status(wanted, 0);
    complete(written, &mut status, object, Timestamp::from_second(9).unwrap()).then_some(status)
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

/// An API server that keeps what is written, and when that was.
#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<Vec<(Instant, Value)>>>);

impl ApiServer {
    fn client(&self) -> Client {
        let writes = self.0.clone();
        let service = service_fn(move |request: Request<Body>| {
            let writes = writes.clone();
            async move {
                assert_eq!(request.method(), Method::PATCH);
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                let mut writes = writes.lock().unwrap();
                object["spec"] = json!({});
                object["metadata"]["resourceVersion"] = json!(format!("w{}", writes.len()));
                writes.push((Instant::now(), object["status"]["configHash"].clone()));
                Ok::<_, Infallible>(Response::new(Body::from(serde_json::to_vec(&object).unwrap())))
            }
        });
        Client::new(service, "default")
    }

    fn writes(&self) -> Vec<(Instant, Value)> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_on_change_only_and_at_most_once_a_second() {
    let server = ApiServer::default();
    let report = |hash: usize| {
        Some(StatusReport {
            status: status(&format!("{hash}"), 0),
            create: true,
        })
    };
    let reports = watch::Sender::new(report(0));
    let gpu_node = watch::Sender::new(GpuNodeState::Present(Arc::new(object("1", json!({})))));
    let reporter = StatusReporter {
        client: server.client(),
        node_name: "a".to_owned(),
        reports: reports.subscribe(),
        gpu_node: gpu_node.subscribe(),
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
