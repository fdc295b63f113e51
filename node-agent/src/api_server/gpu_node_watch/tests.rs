use super::*;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::pending,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
};
use tower::service_fn;

/// Times and queries of the requests that an API server got.
type Requests = Arc<Mutex<Vec<(Instant, String)>>>;

enum Answer {
    Nothing,
    /// An answer with this code and body.
    Whole(u16, String),
    /// A body that begins so and has no end.
    Open(String),
}

struct AnswerBody {
    text: Option<String>,
    has_end: bool,
}

impl HttpBody for AnswerBody {
    type Data = <Body as HttpBody>::Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.text.take() {
            Some(text) => Poll::Ready(Some(Ok(Frame::data(text.into_bytes().into())))),
            None if self.has_end => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

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
            let (code, text, has_end) = match answer {
                Answer::Nothing => return pending().await,
                Answer::Whole(code, text) => (code, text, true),
                Answer::Open(text) => (200, text, false),
            };
            let text = Some(text);
            let response = Response::builder().status(code).body(AnswerBody { text, has_end });
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

fn list(items: &[Value]) -> Answer {
    let list = json!({
        "apiVersion": "gpunode.dev/v1alpha1",
        "kind": "GpuNodeList",
        "metadata": {"resourceVersion": "7"},
        "items": items,
    });
    Answer::Whole(200, list.to_string())
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark(version: &str) -> String {
    let mut bookmark = gpu_node(version);
    bookmark["metadata"] = json!({"resourceVersion": version});
    event("BOOKMARK", &bookmark)
}

fn failure(code: u16) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "x"});
    Answer::Whole(code, status.to_string())
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
            Answer::Whole(200, String::new())
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

/// True for each request that is a watch.
fn watches(requests: &[(Duration, String)]) -> Vec<bool> {
    requests.iter().map(|(_, query)| is_watch(query)).collect()
}

#[tokio::test(start_paused = true)]
async fn watch_without_an_answer_leads_to_a_list_within_90_seconds() {
    let answer = |query: &str, _: usize| {
        if is_watch(query) {
            Answer::Nothing
        } else {
            list(&[gpu_node("5")])
        }
    };
    let (requests, state) = watched(Duration::from_secs(170), answer).await;
    assert_eq!(version_of(&state), Some("5"));
    assert_eq!(watches(&requests)[..4], [false, true, false, true], "it lists again");
    let noticed = requests[2].0.checked_sub(requests[1].0).unwrap();
    assert!((70..90).contains(&noticed.as_secs()), "{noticed:?}");
}

#[tokio::test(start_paused = true)]
async fn watch_that_falls_silent_is_noticed_within_90_seconds() {
    let answer = |query: &str, number: usize| match (is_watch(query), number) {
        (false, _) => list(&[]),
        (true, 1) => Answer::Open(event("ADDED", &gpu_node("8"))),
        (true, _) => Answer::Open(String::new()),
    };
    let (requests, state) = watched(Duration::from_secs(100), answer).await;
    assert_eq!(version_of(&state), Some("8"));
    assert_eq!(watches(&requests), [false, true, true], "the next watch may go on");
    assert!(requests[2].1.contains("resourceVersion=8"), "{requests:?}");
    let noticed = requests[2].0.checked_sub(requests[1].0).unwrap();
    assert!((70..90).contains(&noticed.as_secs()), "{noticed:?}");
}

/// As after a restore of etcd: the version of the watch lies in the future.
#[tokio::test(start_paused = true)]
async fn watches_that_are_silent_in_a_row_lead_to_a_list() {
    for (first_line, silent) in [(bookmark("20"), 2), (event("MODIFIED", &gpu_node("20")), 8)] {
        let is_restored = Mutex::new(false);
        let answer = move |query: &str, _: usize| {
            let mut is_restored = is_restored.lock().unwrap_or_else(PoisonError::into_inner);
            match (is_watch(query), *is_restored) {
                (false, false) => list(&[gpu_node("9")]),
                (false, true) => list(&[gpu_node("3")]),
                (true, false) => {
                    *is_restored = true;
                    Answer::Open(first_line.clone())
                }
                (true, true) => Answer::Open(String::new()),
            }
        };
        let (requests, state) = watched(Duration::from_mins(11), answer).await;
        assert_eq!(version_of(&state), Some("3"));
        let second_list = watches(&requests).iter().skip(1).position(|is_watch| !is_watch);
        assert_eq!(second_list, Some(silent), "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn changes_are_passed_on_and_the_next_watch_goes_on_after_them() {
    let answer = |query: &str, number: usize| match (is_watch(query), number) {
        (false, _) => list(&[]),
        (true, 1) => Answer::Whole(200, event("ADDED", &gpu_node("8"))),
        (true, 2) => Answer::Whole(200, event("MODIFIED", &gpu_node("9")) + &bookmark("20")),
        (true, _) => Answer::Nothing,
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
        (true, 1) => Answer::Whole(200, event("ERROR", &expired)),
        (true, 3) => failure(410),
        (true, _) => Answer::Nothing,
    };
    let (requests, state) = watched(Duration::from_secs(20), answer).await;
    assert!(matches!(state, GpuNodeState::Absent));
    assert_eq!(watches(&requests), [false, true, false, true, false, true]);
}
