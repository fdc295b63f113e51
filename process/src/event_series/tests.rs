use super::*;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tower::service_fn;

/// Events by name, as an API server keeps them.
#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<Vec<(String, Value)>>>);

impl ApiServer {
    fn client(&self) -> Client {
        let events = self.0.clone();
        let service = service_fn(move |request: Request<Body>| {
            let events = events.clone();
            async move {
                let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let mut events = events.lock().unwrap();
                if method == Method::POST {
                    let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                    assert!(events.iter().all(|(known, _)| *known != name), "{name} exists");
                    events.push((name, body.clone()));
                } else if let Some((_, event)) = events.iter_mut().find(|(known, _)| *known == name) {
                    assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["series"]);
                    event["series"] = body["series"].clone();
                } else {
                    let status = json!({"status": "Failure", "message": "", "reason": "NotFound", "code": 404});
                    return Ok::<_, Infallible>(answer(StatusCode::NOT_FOUND, &status));
                }
                let object = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name}});
                Ok(answer(StatusCode::OK, &object))
            }
        });
        Client::new(service, "default")
    }

    /// Returns note and count of each event.
    fn events(&self) -> Vec<(String, i64)> {
        let events = self.0.lock().unwrap();
        let note = |event: &Value| event["note"].as_str().unwrap().to_owned();
        events
            .iter()
            .map(|(_, event)| (note(event), event["series"]["count"].as_i64().unwrap_or(1)))
            .collect()
    }
}

fn answer(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string().into_bytes()));
    *response.status_mut() = status;
    response
}

fn content(note: &str) -> EventContent {
    EventContent {
        regarding: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some("n1".to_owned()),
            ..ObjectReference::default()
        },
        related: None,
        is_warning: true,
        reason: "GpuUnhealthy".to_owned(),
        action: "WithholdDevice".to_owned(),
        series: note.to_owned(),
        note: note.to_owned(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

#[tokio::test]
async fn only_an_event_of_the_same_series_is_counted_whatever_its_note_says() {
    let server = ApiServer::default();
    let mut series = EventSeries::new(server.client(), "gpunode-agent", "");
    let related = |name: &str| EventContent {
        related: Some(ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        }),
        ..content("taken")
    };
    let held = EventContent {
        note: "GPU 1: XID 79; held by a/b".to_owned(),
        ..content("GPU 1: XID 79")
    };
    let sent = [content("GPU 1: XID 79"), content("GPU 3: XID 48"), held];
    for (second, event) in (0..).zip(sent.into_iter().chain(["n1", "n2", "n1"].map(related))) {
        series.publish(event, at(second)).await.unwrap();
    }
    let expected = [("GPU 1: XID 79", 2), ("GPU 3: XID 48", 1), ("taken", 2), ("taken", 1)];
    assert_eq!(server.events(), expected.map(|(note, count)| (note.to_owned(), count)));
}

#[tokio::test]
async fn a_series_begins_anew_after_six_minutes_and_where_its_event_is_gone() {
    let server = ApiServer::default();
    let mut series = EventSeries::new(server.client(), "gpunode-agent", "pod-1");
    for second in [0, 300, 600, 960] {
        series.publish(content("a"), at(second)).await.unwrap();
    }
    assert_eq!(server.events(), [("a".to_owned(), 3), ("a".to_owned(), 1)]);
    server.0.lock().unwrap().clear();
    for second in [970, 980] {
        series.publish(content("a"), at(second)).await.unwrap();
    }
    assert_eq!(server.events(), [("a".to_owned(), 2)]);
}

#[tokio::test]
async fn notes_and_names_keep_the_bounds_of_the_api_and_memory_has_one() {
    let server = ApiServer::default();
    let mut series = EventSeries::new(server.client(), "gpunode-agent", "pod-1");
    let mut long = content(&"ü".repeat(MAX_NOTE));
    long.regarding.name = Some(format!("{}-{}", "a".repeat(MAX_NAME - 1), "b".repeat(32)));
    series.publish(long, at(0)).await.unwrap();
    let (name, event) = server.0.lock().unwrap()[0].clone();
    assert!(
        event["note"].as_str().unwrap().len() <= MAX_NOTE && name.len() <= 253 && !name.contains("-."),
        "{name}"
    );
    for second in 1..=i64::try_from(MAX_SERIES).unwrap() + 1 {
        let series_of = Series {
            name: String::new(),
            count: 1,
            last: at(second),
        };
        series.known.put(&content(&format!("{second}")), series_of);
    }
    assert_eq!(series.known.0.len(), MAX_SERIES);
    assert_eq!(series.known.next(&content("1"), at(2)), None);
}
