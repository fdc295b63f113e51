//! Lists and watches at API servers that are ruder than the real one.

use super::*;
use crate::lenient::Lenient;
use http::{Response, header::RETRY_AFTER};
use http_body::{Body as HttpBody, Frame};
use k8s_openapi::api::core::v1::Node;
use kube::client::Body;
use serde_json::json;
use std::{
    collections::VecDeque,
    convert::{Infallible, identity},
    future::pending,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
};
use tokio::time::Sleep;

/// Name and version of an object.
type Seen = (String, String);
/// Times and queries of requests.
type Queries = Arc<Mutex<Vec<(Duration, String)>>>;

const LONG: Duration = Duration::from_secs(119);

/// Part of a response.
enum Part {
    Text(String),
    Wait(Duration),
    /// The connection breaks.
    Break,
    /// Nothing comes any more, not even an end.
    Hang,
}

/// A response.
struct Answer {
    code: u16,
    retry_after: Option<u32>,
    parts: Vec<Part>,
}

struct ScriptedBody {
    parts: VecDeque<Part>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for ScriptedBody {
    type Data = <Body as HttpBody>::Data;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, io::Error>>> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(context));
                self.sleep = None;
            }
            match self.parts.pop_front() {
                None => return Poll::Ready(None),
                Some(Part::Text(text)) => return Poll::Ready(Some(Ok(Frame::data(text.into_bytes().into())))),
                Some(Part::Wait(time)) => self.sleep = Some(Box::pin(sleep(time))),
                Some(Part::Break) => return Poll::Ready(Some(Err(io::Error::other("reset")))),
                Some(Part::Hang) => {
                    self.parts.push_front(Part::Hang);
                    return Poll::Pending;
                }
            }
        }
    }
}

fn ok(parts: Vec<Part>) -> Answer {
    Answer {
        code: 200,
        retry_after: None,
        parts,
    }
}

fn refused(code: u16) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "x", "message": "y"});
    Answer {
        code,
        retry_after: None,
        parts: vec![Part::Text(status.to_string())],
    }
}

fn object(name: &str, version: u32) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn line(kind: &str, object: &serde_json::Value) -> Part {
    Part::Text(format!("{}\n", json!({"type": kind, "object": object})))
}

fn event(kind: &str, name: &str, version: u32) -> Part {
    line(kind, &object(name, version))
}

fn malformed(name: &str, version: u32) -> serde_json::Value {
    let mut object = object(name, version);
    object["spec"] = json!(5);
    object
}

fn bookmark(version: u32) -> Part {
    let metadata = json!({"resourceVersion": version.to_string()});
    line(
        "BOOKMARK",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}),
    )
}

fn list_end(version: u32) -> Part {
    let metadata =
        json!({"resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}});
    line(
        "BOOKMARK",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}),
    )
}

fn expired() -> Part {
    line(
        "ERROR",
        &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "x"}),
    )
}

/// A page of so many objects.
fn page(count: u32, next: &str) -> Answer {
    let items: Vec<_> = (0..count).map(|index| object(&format!("n{index}"), 1)).collect();
    let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": next},
        "items": items});
    ok(vec![Part::Text(list.to_string())])
}

/// A streaming list of one object that is whole at version 7, and what comes after it.
fn listed(after: Vec<Part>) -> Answer {
    let mut parts = vec![event("ADDED", "n", 1), list_end(7)];
    parts.extend(after);
    ok(parts)
}

fn is_stream_list(query: &str) -> bool {
    query.contains("sendInitialEvents=true")
}

fn is_watch(query: &str) -> bool {
    query.contains("watch=true") && !is_stream_list(query)
}

/// A client of an API server that answers a query so; not at all if there is no answer.
fn client(queries: &Queries, mut answer: impl FnMut(&str) -> Option<Answer> + Send + 'static) -> Client {
    let (queries, start) = (queries.clone(), Instant::now());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let answer = answer(&query);
        queries.lock().unwrap().push((start.elapsed(), query));
        async move {
            let Some(answer) = answer else {
                return pending().await;
            };
            let mut response = Response::builder().status(answer.code);
            if let Some(seconds) = answer.retry_after {
                response = response.header(RETRY_AFTER, seconds);
            }
            let body = ScriptedBody {
                parts: answer.parts.into(),
                sleep: None,
            };
            Ok::<_, Infallible>(response.body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

fn read(node: Lenient<Node>) -> Option<Seen> {
    let metadata = node.read()?.metadata;
    Some((metadata.name?, metadata.resource_version?))
}

fn short(update: &WatchUpdate<Seen>) -> String {
    match update {
        WatchUpdate::ListStarted => "started".to_owned(),
        WatchUpdate::ListPage(page) => format!("page of {}", page.len()),
        WatchUpdate::ListKept(name) => format!("kept {name}"),
        WatchUpdate::ListCompleted(version) => {
            assert!(version.as_ref().is_some_and(|version| !version.is_empty()));
            "completed".to_owned()
        }
        WatchUpdate::Applied(object) => format!("applied {} {}", object.0, object.1),
        WatchUpdate::Deleted(object) => format!("deleted {} {}", object.name, object.version),
    }
}

/// Updates that a watch brought, and its requests.
struct WatchRun {
    updates: Vec<String>,
    queries: Vec<(Duration, String)>,
    health: WatchHealth,
}

impl WatchRun {
    /// Seconds at which requests were made.
    fn seconds(&self) -> Vec<u64> {
        self.queries.iter().map(|(time, _)| time.as_secs()).collect()
    }

    fn is_failing(&self) -> bool {
        self.health.is_failing(Instant::now())
    }
}

/// Watches nodes for some time. Every ten seconds, it checks whether the watch is said to fail.
async fn watch_nodes(time: Duration, answer: impl FnMut(&str) -> Option<Answer> + Send + 'static) -> (WatchRun, bool) {
    let (queries, health) = (Queries::default(), WatchHealth::default());
    let (messages, mut updates) = mpsc::channel(1024);
    let watch = ListWatch::new::<Lenient<Node>>(client(&queries, answer), &(), None);
    let outputs = WatchOutputs {
        messages: &messages,
        message: identity,
        health: &health,
    };
    let (end, mut has_failed) = (Instant::now() + time, false);
    {
        let mut work = pin!(watch.run(read, outputs));
        while Instant::now() < end {
            let step = Duration::from_secs(10).min(end - Instant::now());
            assert!(timeout(step, &mut work).await.is_err(), "a watch has no end");
            has_failed |= health.is_failing(Instant::now());
        }
    }
    let mut seen = Vec::new();
    while let Ok(update) = updates.try_recv() {
        seen.push(short(&update));
    }
    let watched = WatchRun {
        updates: seen,
        queries: queries.lock().unwrap().clone(),
        health,
    };
    (watched, has_failed)
}

#[tokio::test(start_paused = true)]
async fn streaming_list_comes_in_pages_and_goes_on_as_a_watch() {
    let (watched, _) = watch_nodes(Duration::from_secs(10), |_| {
        let mut parts: Vec<_> = (0..250)
            .map(|index| event("ADDED", &format!("n{index}"), index))
            .collect();
        parts.extend([
            list_end(300),
            event("MODIFIED", "n0", 301),
            event("DELETED", "n1", 302),
            Part::Hang,
        ]);
        Some(ok(parts))
    })
    .await;
    assert_eq!(
        watched.updates,
        [
            "started",
            "page of 100",
            "page of 100",
            "page of 50",
            "completed",
            "applied n0 301",
            "deleted n1 302"
        ]
    );
    let [(_, query)] = &watched.queries[..] else {
        panic!("{:?}", watched.queries)
    };
    let parameters: Vec<_> = query.split('&').collect();
    for expected in [
        "watch=true",
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=",
        "allowWatchBookmarks=true",
    ] {
        assert!(parameters.contains(&expected), "{query}");
    }
    let ends = parameters.iter().find_map(|it| it.strip_prefix("timeoutSeconds="));
    let ends: u32 = ends.unwrap().parse().unwrap();
    assert!((240..=290).contains(&ends), "{ends}");
}

#[tokio::test(start_paused = true)]
async fn server_without_streaming_lists_is_asked_for_pages() {
    for code in [400, 422] {
        let (watched, _) = watch_nodes(Duration::from_secs(10), move |query| {
            Some(match query {
                _ if is_stream_list(query) => refused(code),
                _ if is_watch(query) => ok(vec![Part::Hang]),
                _ if query.contains("continue=c1") => page(50, ""),
                _ => page(100, "c1"),
            })
        })
        .await;
        assert_eq!(watched.updates, ["started", "page of 100", "page of 50", "completed"]);
        assert_eq!(watched.seconds(), [0, 0, 0, 0]);
        let pages: Vec<_> = watched.queries[1..3].iter().map(|(_, query)| query.as_str()).collect();
        assert!(pages.iter().all(|query| query.contains("limit=100")), "{pages:?}");
        assert!(
            watched.queries[3].1.ends_with("resourceVersion=7"),
            "{:?}",
            watched.queries
        );
    }
}

#[tokio::test(start_paused = true)]
async fn list_begins_again_with_larger_pages_when_its_token_expires() {
    let mut expired = 0;
    let (watched, _) = watch_nodes(Duration::from_secs(10), move |query| {
        Some(match query {
            _ if is_stream_list(query) => refused(422),
            _ if is_watch(query) => ok(vec![Part::Hang]),
            _ if query.contains("continue=c1") && expired == 0 => {
                expired += 1;
                refused(410)
            }
            _ if query.contains("limit=500") => page(250, ""),
            _ => page(100, "c1"),
        })
    })
    .await;
    assert_eq!(
        watched.updates,
        [
            "started",
            "page of 100",
            "started",
            "page of 100",
            "page of 100",
            "page of 50",
            "completed"
        ]
    );
    assert_eq!(watched.seconds(), [0; 5]);
}

#[tokio::test(start_paused = true)]
async fn token_that_leads_to_itself_begins_the_list_again_after_a_pause() {
    let (watched, _) = watch_nodes(Duration::from_secs(10), |query| {
        Some(if is_stream_list(query) {
            refused(422)
        } else {
            page(100, "c1")
        })
    })
    .await;
    // 0, 1, 3 and 7 s, or up to a fifth later: the first page, and the one that the token leads to.
    assert_eq!(watched.queries.len(), 1 + 4 * 2, "{:?}", watched.seconds());
    assert_eq!(watched.updates, [["started", "page of 100"]; 4].concat());
}

#[tokio::test(start_paused = true)]
async fn page_that_the_server_fails_to_send_is_asked_for_again() {
    let mut failed = false;
    let (watched, _) = watch_nodes(Duration::from_secs(10), move |query| {
        Some(match query {
            _ if is_stream_list(query) => refused(422),
            _ if is_watch(query) => ok(vec![Part::Hang]),
            _ if query.contains("continue=c1") && !std::mem::replace(&mut failed, true) => refused(500),
            _ if query.contains("continue=c1") => page(50, ""),
            _ => page(100, "c1"),
        })
    })
    .await;
    assert_eq!(watched.updates, ["started", "page of 100", "page of 50", "completed"]);
    assert_eq!(watched.seconds(), [0, 0, 0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn streaming_list_that_breaks_begins_again_and_passes_on_no_end() {
    let mut tries = 0;
    let (watched, _) = watch_nodes(Duration::from_secs(10), move |_| {
        tries += 1;
        Some(if tries == 1 {
            ok(vec![event("ADDED", "gone", 1), Part::Break])
        } else {
            listed(vec![Part::Hang])
        })
    })
    .await;
    assert_eq!(watched.updates, ["started", "started", "page of 1", "completed"]);
}

#[tokio::test(start_paused = true)]
async fn expired_version_is_listed_anew_at_once_but_not_again_and_again() {
    let (watched, _) = watch_nodes(LONG, |_| Some(listed(vec![event("MODIFIED", "n", 8), expired()]))).await;
    assert_eq!(
        watched.updates[..4],
        ["started", "page of 1", "completed", "applied n 8"]
    );
    assert_eq!(watched.updates[4..7], ["started", "page of 1", "completed"]);
    // 0, 0, 2, 6, 14, 30, 60 and 90 s, or up to a fifth later.
    assert_eq!(watched.queries.len(), 8, "{:?}", watched.seconds());
    assert_eq!(watched.seconds()[..2], [0, 0]);
    assert!(watched.queries.iter().all(|(_, query)| is_stream_list(query)));
}

#[tokio::test(start_paused = true)]
async fn list_that_fails_is_repeated_with_growing_pauses() {
    let (watched, _) = watch_nodes(LONG, |_| Some(refused(500))).await;
    // 0, 1, 3, 7, 15, 31, 61 and 91 s, or up to a fifth later.
    assert_eq!(watched.queries.len(), 8, "{:?}", watched.seconds());
    let times = watched.queries.iter().map(|(time, _)| *time);
    let pauses = times
        .clone()
        .skip(1)
        .zip(times)
        .map(|(next, time)| next.checked_sub(time).unwrap());
    assert!(pauses.clone().all(|pause| pause <= Duration::from_secs(37)));
    assert!(pauses.skip(5).all(|pause| pause >= Duration::from_secs(30)));
    assert_eq!(watched.updates, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn busy_server_is_left_alone_for_as_long_as_it_asks() {
    let mut tries = 0;
    let (watched, _) = watch_nodes(Duration::from_secs(40), move |_| {
        tries += 1;
        Some(if tries == 1 {
            Answer {
                code: 429,
                retry_after: Some(20),
                parts: vec![Part::Text("Too many requests, please try again later.\n".to_owned())],
            }
        } else {
            listed(vec![Part::Hang])
        })
    })
    .await;
    // Up to a fifth later.
    assert_eq!((watched.queries.len(), watched.seconds()[0]), (2, 0));
    assert!((20..=24).contains(&watched.seconds()[1]), "{:?}", watched.seconds());
}

#[tokio::test(start_paused = true)]
async fn watch_that_ends_in_order_goes_on_from_its_last_bookmark() {
    let minute = || Part::Wait(Duration::from_mins(1));
    let mut tries = 0;
    let (watched, has_failed) = watch_nodes(Duration::from_mins(2) + LONG, move |_| {
        tries += 1;
        Some(if tries == 1 {
            listed(vec![minute(), bookmark(10), minute(), bookmark(11)])
        } else {
            ok(vec![])
        })
    })
    .await;
    assert_eq!(watched.updates, ["started", "page of 1", "completed"]);
    assert!(
        watched.queries[1].1.ends_with("resourceVersion=11"),
        "{:?}",
        watched.queries[1]
    );
    assert_eq!(watched.seconds()[..2], [0, 120]);
    // Watches that end at once are started after 0, 1, 3, 7, 15, 31, 61 and 91 s, or up to a fifth later.
    assert_eq!(watched.queries.len(), 1 + 8, "{:?}", watched.seconds());
    assert!(!has_failed, "the API server answers");
}

#[tokio::test(start_paused = true)]
async fn event_about_what_a_write_has_brought_is_skipped_and_counts_as_seen() {
    let (queries, written, mut tries) = (Queries::default(), WrittenVersions::default(), 0);
    // The list may be older.
    written.add("nodes", "n", "8");
    let responses = written.clone();
    let client = client(&queries, move |_| {
        tries += 1;
        match tries {
            1 => Some(listed(vec![event("MODIFIED", "n", 8)])),
            2 => {
                responses.add("gpunodes", "n", "9");
                responses.add("nodes", "n", "10");
                Some(ok(vec![event("MODIFIED", "n", 9), event("MODIFIED", "n", 10)]))
            }
            _ => None,
        }
    });
    let (messages, mut updates) = mpsc::channel(1024);
    let watch = ListWatch::new::<Lenient<Node>>(client, &(), None).skipping(&written);
    let outputs = WatchOutputs {
        messages: &messages,
        message: identity,
        health: &WatchHealth::default(),
    };
    let _ = timeout(Duration::from_secs(30), watch.run(read, outputs)).await;
    let mut seen = Vec::new();
    while let Ok(update) = updates.try_recv() {
        seen.push(short(&update));
    }
    assert_eq!(
        seen,
        ["started", "page of 1", "completed", "applied n 8", "applied n 9"]
    );
    let third = queries.lock().unwrap()[2].1.clone();
    assert!(third.ends_with("resourceVersion=10"), "{third}");
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_given_up_after_70_seconds_and_told_after_80() {
    let (queries, health) = (Queries::default(), WatchHealth::default());
    let mut tries = 0;
    let client = client(&queries, move |_| {
        tries += 1;
        match tries {
            1 => Some(listed(vec![bookmark(9), Part::Hang])),
            2 => None,
            _ => Some(ok(vec![Part::Hang])),
        }
    });
    let (messages, _updates) = mpsc::channel(1024);
    let watch = ListWatch::new::<Lenient<Node>>(client, &(), None);
    let outputs = WatchOutputs {
        messages: &messages,
        message: identity,
        health: &health,
    };
    let mut work = pin!(watch.run(read, outputs));
    for (seconds, is_failing, requests) in [
        (69, false, 1),
        (10, false, 2),
        (2, true, 2),
        (18, true, 2),
        (5, false, 3),
    ] {
        let wait = timeout(Duration::from_secs(seconds), &mut work).await;
        assert!(wait.is_err(), "a watch has no end");
        let queries = queries.lock().unwrap();
        assert_eq!(queries.len(), requests, "{queries:?}");
        assert_eq!(health.is_failing(Instant::now()), is_failing, "{queries:?}");
        assert!(
            queries
                .iter()
                .skip(1)
                .all(|(_, query)| query.ends_with("resourceVersion=9")),
            "{queries:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn server_without_bookmarks_costs_a_request_each_70_seconds_and_a_list_each_nine_minutes() {
    let (watched, has_failed) = watch_nodes(Duration::from_mins(10), |query| {
        Some(if is_watch(query) {
            ok(vec![Part::Hang])
        } else {
            listed(vec![Part::Hang])
        })
    })
    .await;
    let list = ["started", "page of 1", "completed"];
    assert_eq!(watched.updates, [list, list].concat());
    assert_eq!(watched.queries.len(), 1 + 8, "{:?}", watched.seconds());
    assert!(
        watched.queries[1..8]
            .iter()
            .all(|(_, query)| query.ends_with("resourceVersion=7"))
    );
    assert_eq!(watched.seconds()[8], 560);
    assert!(is_stream_list(&watched.queries[8].1), "{:?}", watched.queries);
    assert!(!has_failed);
}

#[tokio::test(start_paused = true)]
async fn write_that_finds_an_older_version_leads_to_a_list_with_the_next_line_or_silence() {
    for is_silent in [false, true] {
        let (queries, written) = (Queries::default(), WrittenVersions::default());
        let client = client(&queries, move |_| {
            Some(listed(if is_silent {
                vec![Part::Hang]
            } else {
                vec![
                    Part::Wait(Duration::from_secs(20)),
                    event("MODIFIED", "n", 8),
                    Part::Hang,
                ]
            }))
        });
        let (messages, _updates) = mpsc::channel(1024);
        let watch = ListWatch::new::<Lenient<Node>>(client, &(), None).skipping(&written);
        let outputs = WatchOutputs {
            messages: &messages,
            message: identity,
            health: &WatchHealth::default(),
        };
        let mut work = pin!(watch.run(read, outputs));
        assert!(timeout(Duration::from_secs(10), &mut work).await.is_err());
        written.compare("gpunodes", "900", "1000");
        assert!(timeout(Duration::from_secs(65), &mut work).await.is_err());
        let queries = queries.lock().unwrap();
        let seconds: Vec<_> = queries.iter().map(|(time, _)| time.as_secs()).collect();
        assert_eq!(seconds, [0, if is_silent { 70 } else { 20 }]);
        assert!(queries.iter().all(|(_, query)| is_stream_list(query)));
    }
}

/// An etcd that was restored to an older revision: the version lies in the future, and the API server waits for it.
#[tokio::test(start_paused = true)]
async fn watch_that_is_accepted_and_brings_nothing_is_listed_again_after_140_seconds() {
    let mut lists = 0;
    let (watched, has_failed) = watch_nodes(Duration::from_secs(230), move |query| {
        Some(if is_watch(query) {
            ok(vec![Part::Hang])
        } else {
            lists += 1;
            let minute = Part::Wait(Duration::from_mins(1));
            listed(if lists == 1 {
                vec![minute, bookmark(900)]
            } else {
                vec![event("MODIFIED", "n", 8), Part::Hang]
            })
        })
    })
    .await;
    assert_eq!(watched.seconds(), [0, 60, 130, 200]);
    assert!(
        watched.queries[1..3]
            .iter()
            .all(|(_, query)| query.ends_with("resourceVersion=900")),
        "{:?}",
        watched.queries
    );
    assert_eq!(
        watched.updates[3..],
        ["started", "page of 1", "completed", "applied n 8"]
    );
    assert!(!has_failed);
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_read_stays_and_the_watch_goes_on() {
    let mut tries = 0;
    let (watched, _) = watch_nodes(Duration::from_secs(10), move |_| {
        tries += 1;
        Some(if tries == 1 {
            ok(vec![
                event("ADDED", "a", 1),
                line("ADDED", &malformed("bad", 2)),
                event("ADDED", "b", 3),
                list_end(7),
                Part::Text("no event\n".to_owned()),
                line("MODIFIED", &malformed("a", 8)),
                Part::Wait(Duration::from_secs(2)),
            ])
        } else {
            ok(vec![Part::Hang])
        })
    })
    .await;
    assert_eq!(
        watched.updates,
        ["started", "page of 1", "kept bad", "page of 1", "completed"]
    );
    assert!(
        watched.queries[1].1.ends_with("resourceVersion=8"),
        "{:?}",
        watched.queries
    );
}

#[tokio::test(start_paused = true)]
async fn object_of_a_page_that_cannot_be_read_stays() {
    let (watched, _) = watch_nodes(Duration::from_secs(10), |query| {
        Some(match query {
            _ if is_stream_list(query) => refused(422),
            _ if is_watch(query) => ok(vec![Part::Hang]),
            _ => {
                let list =
                    json!({"metadata": {"resourceVersion": "7"}, "items": [malformed("bad", 1), object("n", 2)]});
                ok(vec![Part::Text(list.to_string())])
            }
        })
    })
    .await;
    assert_eq!(watched.updates, ["started", "page of 1", "kept bad", "completed"]);
}

#[tokio::test(start_paused = true)]
async fn list_that_fails_hangs_or_lacks_a_page_for_a_minute_is_a_failing_watch() {
    let minute = Duration::from_secs(62);
    assert!(watch_nodes(minute, |_| Some(refused(500))).await.0.is_failing());
    assert!(watch_nodes(minute, |_| None).await.0.is_failing(), "no answer");
    let second_page_fails = |query: &str| {
        Some(match query {
            _ if is_stream_list(query) => refused(422),
            _ if query.contains("continue=") => refused(500),
            _ => page(1, "more"),
        })
    };
    assert!(watch_nodes(minute, second_page_fails).await.0.is_failing());
    // The watch itself starts and brings nothing.
    let works = |_: &str| Some(listed(vec![Part::Hang]));
    assert!(!watch_nodes(minute, works).await.0.is_failing());
}

#[tokio::test(start_paused = true)]
async fn slow_list_is_no_failure_while_it_goes_on() {
    let (watched, has_failed) = watch_nodes(Duration::from_secs(160), |_| {
        let wait = |index| {
            [
                Part::Wait(Duration::from_secs(20)),
                event("ADDED", &format!("n{index}"), index),
            ]
        };
        let mut parts: Vec<_> = (0..6).flat_map(wait).collect();
        parts.extend([list_end(7), Part::Hang]);
        Some(ok(parts))
    })
    .await;
    assert_eq!(watched.updates, ["started", "page of 6", "completed"]);
    assert!(!has_failed);
}

#[tokio::test(start_paused = true)]
async fn streaming_list_without_an_end_is_taken_in_by_pages() {
    // Before the list counts as failing, which ends the leader.
    let (watched, has_failed) = watch_nodes(Duration::from_secs(59), |query| {
        Some(match query {
            _ if is_stream_list(query) => ok(vec![event("ADDED", "n0", 1), Part::Hang]),
            _ if is_watch(query) => ok(vec![Part::Hang]),
            _ => page(2, ""),
        })
    })
    .await;
    assert_eq!(watched.updates, ["started", "started", "page of 2", "completed"]);
    assert!(!has_failed);
}

#[tokio::test(start_paused = true)]
async fn watch_ends_when_nobody_takes_what_it_brings() {
    let queries = Queries::default();
    let watch = ListWatch::new::<Lenient<Node>>(client(&queries, |_| Some(listed(vec![Part::Hang]))), &(), None);
    let (messages, updates) = mpsc::channel(8);
    drop(updates);
    let outputs = WatchOutputs {
        messages: &messages,
        message: identity,
        health: &WatchHealth::default(),
    };
    let ended = timeout(Duration::from_secs(1), watch.run(read, outputs)).await;
    assert!(ended.is_ok());
    assert_eq!(queries.lock().unwrap().len(), 1);
}
