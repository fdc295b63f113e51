//! Events for people, on transitions only.

use crate::{
    events::notice::Notice,
    leader_election::Claim,
    metrics::{Kind, Metrics},
};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use std::time::Duration;
use tokio::{sync::mpsc, time::timeout};

/// An event that cannot be sent in this time is dropped.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The API's bound of a note, in bytes.
const MAX_NOTE: usize = 1024;

/// Sends events as they come in, while this process leads. Returns when nobody can ask for one any more.
pub async fn publish_events(
    client: Client,
    identity: &str,
    claim: Claim,
    metrics: &Metrics,
    mut notices: mpsc::Receiver<Notice>,
) {
    let reporter = Reporter {
        controller: OPERATOR_FIELD_MANAGER.to_owned(),
        instance: Some(identity.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    while let Some(notice) = notices.recv().await {
        if !claim.is_current() {
            continue;
        }
        let event = event(&notice);
        match timeout(TIMEOUT, recorder.publish(&event, &notice.about)).await {
            Ok(Ok(())) => metrics.wrote(Kind::Event),
            Ok(Err(error)) => {
                metrics.failed(Kind::Event);
                tracing::warn!(%error, "send an event");
            }
            Err(_) => metrics.failed(Kind::Event),
        }
    }
}

fn event(notice: &Notice) -> Event {
    let note = &notice.message;
    Event {
        type_: if notice.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: notice.reason.clone(),
        note: Some(
            note.get(..note.floor_char_boundary(MAX_NOTE))
                .unwrap_or_default()
                .to_owned(),
        ),
        action: "Reconcile".to_owned(),
        secondary: notice.node.as_ref().map(|node| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.clone()),
            ..ObjectReference::default()
        }),
    }
}
