//! Watches the metadata of the ResourceSlices of NVIDIA's DRA driver: their specs, with up to 128 devices each, are of no use here.
//!
//! `spec.driver` is a field selector of ResourceSlices in every version of the API (`ResourceSliceSelectorDriver` in
//! `pkg/apis/resource/*/conversion.go` of Kubernetes). The group may be absent, so no other watch waits for this one, and its
//! failures do not count as those of a cache: it has an age in the metrics alone.

use crate::{
    index::{cache::WatchUpdate, dra_nodes::SliceOwner, message::IndexMessage},
    lenient::WatchedObject,
    watch::{
        list_watch::{ListWatch, WatchOutputs},
        watch_health::WatchHealth,
    },
};
use gpunode_crds::DRA_DRIVER;
use gpunode_process::OnChange;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
    core::PartialObjectMeta,
};
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

/// Versions of the API with ResourceSlices that belong to nodes, the newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];
/// Pause before the API server is asked again that has no ResourceSlices, or does not let the operator read them.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Longest time until the API server tells if it has ResourceSlices.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The metadata of a ResourceSlice.
type SliceMetadata = PartialObjectMeta<DynamicObject>;

impl WatchedObject for SliceMetadata {
    fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Watches for as long as the index takes messages.
pub async fn watch_resource_slices(client: Client, messages: &mpsc::Sender<IndexMessage>, health: &WatchHealth) {
    let mut errors = OnChange::default();
    while !messages.is_closed() {
        match timeout(ANSWER_TIMEOUT, served(&client)).await {
            Ok(Ok(Some(kind))) => {
                errors.clear();
                // Ends when the API server no longer has this version.
                follow(client.clone(), &kind, messages, health).await;
            }
            Ok(Ok(None)) => {
                // A closed channel ends the loop.
                for update in [WatchUpdate::ListStarted, WatchUpdate::ListCompleted(None)] {
                    _ = messages.send(IndexMessage::ResourceSlices(update)).await;
                }
            }
            Ok(Err(error)) => log(&mut errors, &error.to_string()),
            Err(_) => log(&mut errors, "no answer of the API server"),
        }
        sleep(ASK_AGAIN).await;
    }
}

fn log(errors: &mut OnChange, error: &str) {
    if let Some(error) = errors.changed(error) {
        tracing::warn!(
            error,
            "cannot list resourceslices, so that a DRA driver of the same GPUs goes unnoticed; retrying"
        );
    }
}

fn selector() -> String {
    format!("spec.driver={DRA_DRIVER}")
}

/// Returns the newest version of the API that the API server has; none if it has none.
async fn served(client: &Client) -> Result<Option<ApiResource>, kube::Error> {
    for version in VERSIONS {
        let kind = GroupVersionKind::gvk("resource.k8s.io", version, "ResourceSlice");
        let kind = ApiResource::from_gvk_with_plural(&kind, "resourceslices");
        let slices: Api<SliceMetadata> = Api::all_with(client.clone(), &kind);
        match slices.list(&ListParams::default().fields(&selector()).limit(1)).await {
            Ok(_) => return Ok(Some(kind)),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Watches one version of the API until the API server no longer has it.
async fn follow(client: Client, kind: &ApiResource, messages: &mpsc::Sender<IndexMessage>, health: &WatchHealth) {
    let outputs = WatchOutputs {
        messages,
        message: IndexMessage::ResourceSlices,
        health,
    };
    let watch = ListWatch::new::<SliceMetadata>(client, kind, None);
    let watch = watch.fields(&selector()).ending_if_absent();
    let read = |slice: SliceMetadata| Some(SliceOwner::of(slice.metadata));
    watch.run(read, outputs).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response, header::ACCEPT};
    use kube::client::Body;
    use std::{
        convert::Infallible,
        future::pending,
        pin::pin,
        sync::{Arc, Mutex},
    };
    use tokio::time::Instant;

    type Requests = Arc<Mutex<Vec<String>>>;

    const ABSENT: &str = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "x"}"#;
    const FORBIDDEN: &str = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "x"}"#;
    const REFUSED: &str = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": "x"}"#;
    const LIST: &str = r#"{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "7"}, "items": [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "s", "resourceVersion": "5", "ownerReferences":
        [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}}]}"#;

    /// Watches at an API server that answers lists so, by path, for a little more than two minutes. Returns the updates and
    /// the requests.
    async fn updates(answer: fn(&str) -> (u16, &'static str)) -> (Vec<WatchUpdate<SliceOwner>>, Vec<String>) {
        let requests = Requests::default();
        let seen = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            let accept = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
            assert!(
                accept.is_some_and(|it| it.contains("as=PartialObjectMetadata")),
                "metadata only: {accept:?}"
            );
            seen.lock().unwrap().push(uri.clone());
            async move {
                let (code, body) = match answer(&uri) {
                    (200, _) if uri.contains("sendInitialEvents=") => (422, REFUSED),
                    (200, _) if uri.contains("watch=") => return pending().await,
                    answer => answer,
                };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(body.as_bytes().to_vec())).unwrap())
            }
        });
        let (sender, mut messages) = mpsc::channel(64);
        let client = Client::new(service, "default");
        let health = WatchHealth::default();
        let optional = health.optional();
        {
            let mut work = pin!(watch_resource_slices(client, &sender, &optional));
            let watched = timeout(Duration::from_secs(130), &mut work).await;
            assert!(watched.is_err(), "a watch has no end");
            assert!(!health.is_failing(Instant::now()));
            let ages = health.ages(Instant::now());
            let is_asked_for = requests.lock().unwrap().iter().any(|it| it.contains("watch="));
            assert_eq!(ages.len(), usize::from(is_asked_for), "{ages:?}");
        }
        let mut updates = Vec::new();
        while let Ok(message) = messages.try_recv() {
            let IndexMessage::ResourceSlices(update) = message else {
                panic!("{message:?}")
            };
            updates.push(update);
        }
        let requests = requests.lock().unwrap().clone();
        (updates, requests)
    }

    fn list_of_node() -> [WatchUpdate<SliceOwner>; 3] {
        let slice = SliceOwner {
            name: "s".to_owned(),
            version: "5".to_owned(),
            node: Some("n".to_owned()),
        };
        let end = WatchUpdate::ListCompleted(Some("7".to_owned()));
        [WatchUpdate::ListStarted, WatchUpdate::ListPage(vec![slice]), end]
    }

    #[tokio::test(start_paused = true)]
    async fn newest_version_is_watched_by_the_name_of_the_driver() {
        let (updates, requests) = updates(|_| (200, LIST)).await;
        assert_eq!(updates, list_of_node());
        assert!(
            requests
                .iter()
                .all(|it| it.starts_with("/apis/resource.k8s.io/v1/resourceslices?")
                    && it.contains("fieldSelector=spec.driver%3Dgpu.nvidia.com")),
            "{requests:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn older_server_is_asked_for_its_own_version() {
        let answer = |uri: &str| {
            if uri.contains("/v1beta1/") {
                (200, LIST)
            } else {
                (404, ABSENT)
            }
        };
        let (updates, _) = updates(answer).await;
        assert_eq!(updates, list_of_node());
    }

    #[tokio::test(start_paused = true)]
    async fn absent_group_means_no_slices_and_is_asked_for_once_a_minute() {
        let (updates, requests) = updates(|_| (404, ABSENT)).await;
        let none: [WatchUpdate<SliceOwner>; 2] = [WatchUpdate::ListStarted, WatchUpdate::ListCompleted(None)];
        assert_eq!(updates, [none.clone(), none.clone(), none].concat());
        assert_eq!(requests.len(), 9, "{requests:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_list_says_nothing_about_any_node() {
        let (updates, requests) = updates(|_| (403, FORBIDDEN)).await;
        assert_eq!((updates.len(), requests.len()), (0, 3), "{requests:?}");
    }
}
