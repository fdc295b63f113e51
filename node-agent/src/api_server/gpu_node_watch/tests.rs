use super::*;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::pending,
    sync::{Mutex, PoisonError},
};
use tower::service_fn;

/// Times and queries of the requests that an API server got.
type Requests = Arc<Mutex<Vec<(Instant, String)>>>;

/// Code and body of an answer; none for no answer.
type Answer = Option<(u16, String)>;

/// Watches GpuNode `a` of an API server that answers the queries so. Returns the requests, and the state after `time`.
async fn watched(
    time: Duration,
    answer: impl Fn(&str, usize) -> Answer + Send + 'static,
) -> (Vec<(Duration, String)>, GpuNodeState) {
    let requests = Requests::default();
    let received = requests.clone();
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = answer(&query, received.len());
        received.push((Instant::now(), query));
        async move {
            let Some((code, body)) = answer else {
                return pending().await;
            };
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let (gpu_node, state) = watch::channel(GpuNodeState::Unknown);
    let start = Instant::now();
    let gpu_node_watch = GpuNodeWatch {
        client: Client::new(service, "default"),
        node_name: "a".to_owned(),
        gpu_node,
    };
    assert!(timeout(time, gpu_node_watch.run()).await.is_err());
    let requests = requests.lock().unwrap();
    let requests = requests.iter().map(|(time, query)| (*time - start, query.clone()));
    (requests.collect(), state.borrow().clone())
}

fn is_watch(query: &str) -> bool {
    query.contains("watch=true")
}

fn gpu_node(version: &str) -> Value {
    json!({
        "apiVersion": "gpunode.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "a", "resourceVersion": version},
        "spec": {},
    })
}

#[expect(clippy::unnecessary_wraps, reason = "no answer is one too")]
fn list(items: &[Value]) -> Answer {
    let list = json!({
        "apiVersion": "gpunode.dev/v1alpha1",
        "kind": "GpuNodeList",
        "metadata": {"resourceVersion": "7"},
        "items": items,
    });
    Some((200, list.to_string()))
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

#[expect(clippy::unnecessary_wraps, reason = "no answer is one too")]
fn failure(code: u16) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "x"});
    Some((code, status.to_string()))
}

fn version_of(state: &GpuNodeState) -> Option<&str> {
    match state {
        GpuNodeState::Present(object) => object.metadata.resource_version.as_deref(),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn lists_that_fail_back_off_to_half_a_minute() {
    let (requests, state) = watched(Duration::from_mins(10), |_, _| failure(500)).await;
    assert!(matches!(state, GpuNodeState::Unknown));
    let pauses: Vec<Duration> = requests
        .windows(2)
        .map(|pair| pair[1].0.checked_sub(pair[0].0).unwrap())
        .collect();
    // Five pauses that grow, then 15 to 30 s each.
    assert!((22..=46).contains(&requests.len()), "{pauses:?}");
    let (growing, grown) = pauses.split_at(5);
    assert!(
        growing
            .iter()
            .zip([1, 2, 4, 8, 16])
            .all(|(pause, most)| pause.as_secs() <= most)
    );
    assert!(
        grown.iter().all(|pause| (15..=30).contains(&pause.as_secs())),
        "{grown:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_back_off_too() {
    let answer = |query: &str, _: usize| {
        if is_watch(query) {
            Some((200, String::new()))
        } else {
            list(&[])
        }
    };
    let (requests, state) = watched(Duration::from_mins(10), answer).await;
    assert!(matches!(state, GpuNodeState::Absent));
    assert!(requests.len() < 50, "{}", requests.len());
    assert!(
        requests[1..].iter().all(|(_, query)| is_watch(query)),
        "one list is enough"
    );
}

#[tokio::test(start_paused = true)]
async fn watch_that_falls_silent_is_noticed_within_90_seconds() {
    let answer = |query: &str, _: usize| if is_watch(query) { None } else { list(&[gpu_node("5")]) };
    let (requests, state) = watched(Duration::from_secs(170), answer).await;
    assert_eq!(version_of(&state), Some("5"));
    let is_watch: Vec<bool> = requests.iter().map(|(_, query)| is_watch(query)).collect();
    assert_eq!(is_watch[..4], [false, true, false, true], "it lists again");
    let noticed = requests[2].0.checked_sub(requests[1].0).unwrap();
    assert!((70..90).contains(&noticed.as_secs()), "{noticed:?}");
}

#[tokio::test(start_paused = true)]
async fn changes_are_passed_on_and_the_next_watch_goes_on_after_them() {
    let answer = |query: &str, number: usize| match (is_watch(query), number) {
        (false, _) => list(&[]),
        (true, 1) => Some((200, event("ADDED", &gpu_node("8")))),
        (true, 2) => {
            let mut bookmark = gpu_node("20");
            bookmark["metadata"] = json!({"resourceVersion": "20"});
            Some((200, event("MODIFIED", &gpu_node("9")) + &event("BOOKMARK", &bookmark)))
        }
        (true, _) => None,
    };
    let (requests, state) = watched(Duration::from_secs(20), answer).await;
    assert_eq!(version_of(&state), Some("9"));
    let starts: Vec<bool> = requests[1..]
        .iter()
        .zip(["resourceVersion=7", "resourceVersion=8", "resourceVersion=20"])
        .map(|((_, query), version)| query.ends_with(version) || query.contains(&format!("{version}&")))
        .collect();
    assert_eq!(starts, [true, true, true], "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn expired_version_leads_to_a_list() {
    let expired = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "code": 410,
        "reason": "Expired",
        "message": "too old",
    });
    let answer = move |query: &str, number: usize| match (is_watch(query), number) {
        (false, 0) => list(&[gpu_node("5")]),
        (false, _) => list(&[]),
        (true, 1) => Some((200, event("ERROR", &expired))),
        (true, 3) => failure(410),
        (true, _) => None,
    };
    let (requests, state) = watched(Duration::from_secs(20), answer).await;
    assert!(matches!(state, GpuNodeState::Absent));
    let is_watch: Vec<bool> = requests.iter().map(|(_, query)| is_watch(query)).collect();
    assert_eq!(is_watch, [false, true, false, true, false, true]);
}
