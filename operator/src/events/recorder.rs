//! Sends events while this process leads.

use crate::{
    events::operator_event::OperatorEvent,
    leader_election::Leadership,
    metrics::{OperatorMetrics, WorkKind},
};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};

/// An event that cannot be sent within this time is dropped.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The API's bound of a note, in bytes.
const MAX_NOTE: usize = 1024;

/// The task that sends events.
pub struct EventRecorder {
    /// Client for writes.
    pub client: Client,
    /// Name of this pod, the reporting instance.
    pub identity: String,
    pub leadership: Leadership,
    pub metrics: Arc<OperatorMetrics>,
    pub events: mpsc::Receiver<OperatorEvent>,
}

impl EventRecorder {
    /// Sends events as they come. Ends when no task is left that could send one.
    pub async fn run(mut self) {
        let reporter = Reporter {
            controller: OPERATOR_FIELD_MANAGER.to_owned(),
            instance: Some(self.identity),
        };
        let recorder = Recorder::new(self.client, reporter);
        while let Some(event) = self.events.recv().await {
            if !self.leadership.is_current() {
                continue;
            }
            match timeout(TIMEOUT, recorder.publish(&api_event(&event), &event.about)).await {
                Ok(Ok(())) => self.metrics.wrote(WorkKind::Event),
                Ok(Err(error)) => {
                    self.metrics.failed(WorkKind::Event);
                    tracing::warn!(%error, "cannot send an event");
                }
                Err(_) => self.metrics.failed(WorkKind::Event),
            }
        }
    }
}

fn api_event(event: &OperatorEvent) -> Event {
    let note = &event.message;
    Event {
        type_: if event.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: event.reason.clone(),
        note: Some(
            note.get(..note.floor_char_boundary(MAX_NOTE))
                .unwrap_or_default()
                .to_owned(),
        ),
        action: "Reconcile".to_owned(),
        secondary: event.node.as_ref().map(|node| ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.clone()),
            ..ObjectReference::default()
        }),
    }
}
