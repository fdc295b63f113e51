//! Kubernetes events as series: an event that happens again is counted, any other one is an event of its own.
//!
//! `kube::runtime::events::Recorder` compares neither the note nor anything in its place, so that a fault of one GPU counts as
//! another fault of another GPU. The note is that of the first event: it cannot be changed later
//! (`pkg/apis/core/validation/events.go`).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event as ApiEvent, EventSeries as ApiSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Time after which a repeated event begins a new series, as in client-go.
const SERIES_TTL: SignedDuration = SignedDuration::from_mins(6);
/// Bound of the remembered series. The one that was sent least recently goes first.
const MAX_SERIES: usize = 512;
/// Longest note in bytes (`pkg/apis/core/validation/events.go`).
const MAX_NOTE: usize = 1024;
/// Longest part of an event's name that comes from its object: a name has at most 253 bytes.
const MAX_NAME: usize = 220;
/// Namespace of events about objects without one.
const DEFAULT_NAMESPACE: &str = "default";

/// An event to send. Two that differ in the note alone belong to one series.
#[derive(Clone, Debug, PartialEq)]
pub struct EventContent {
    /// The object that the event is about.
    pub regarding: ObjectReference,
    /// Another object that it concerns.
    pub related: Option<ObjectReference>,
    /// True for type `Warning`, false for `Normal`.
    pub is_warning: bool,
    /// In CamelCase, for programs.
    pub reason: String,
    /// Action that was taken, in CamelCase.
    pub action: String,
    /// Subject within the object, such as a device and its fault; empty if the other fields say it.
    pub series: String,
    /// A sentence for people; what goes beyond 1024 bytes is cut off.
    pub note: String,
}

/// Sends events to the API server.
pub struct EventSeries {
    client: Client,
    /// Name of the program.
    controller: String,
    /// Name of the pod.
    instance: String,
    known: KnownSeries,
}

impl EventSeries {
    /// Returns a sender without any series. `instance` is the name of the pod; empty without a pod.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let instance = if instance.is_empty() { controller } else { instance };
        Self {
            client,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
            known: KnownSeries::default(),
        }
    }

    /// Sends an event: a new one, or one more of its series.
    pub async fn publish(&mut self, mut content: EventContent, now: Timestamp) -> kube::Result<()> {
        let end = content.note.floor_char_boundary(MAX_NOTE);
        content.note.truncate(end);
        let namespace = content.regarding.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let events: Api<ApiEvent> = Api::namespaced(self.client.clone(), namespace);
        if let Some(series) = self.known.next(&content, now) {
            let patch = Patch::Merge(series.patch());
            match events
                .patch_metadata(&series.name, &PatchParams::default(), &patch)
                .await
            {
                Ok(_) => {
                    self.known.put(&content, series);
                    return Ok(());
                }
                // Somebody deleted it, or it expired.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(&content, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        events.create(&PostParams::default(), &event).await?;
        let series = Series {
            name,
            count: 1,
            last: now,
        };
        self.known.put(&content, series);
        Ok(())
    }

    fn event(&self, content: &EventContent, now: Timestamp) -> ApiEvent {
        let EventContent {
            regarding,
            related,
            is_warning,
            reason,
            action,
            series: _,
            note,
        } = content.clone();
        ApiEvent {
            metadata: ObjectMeta {
                name: Some(event_name(regarding.name.as_deref().unwrap_or(&self.controller), now)),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            type_: Some(if is_warning { "Warning" } else { "Normal" }.to_owned()),
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            regarding: Some(regarding),
            related,
            reason: Some(reason),
            action: Some(action),
            note: Some(note),
            ..ApiEvent::default()
        }
    }
}

/// Returns a name that no other event of the object has.
fn event_name(object: &str, now: Timestamp) -> String {
    let object = object
        .get(..object.floor_char_boundary(MAX_NAME))
        .unwrap_or_default()
        .trim_end_matches(['.', '-']);
    format!("{object}.{:x}", now.as_nanosecond())
}

/// One series: an event that was sent, and how often.
#[derive(Clone, Debug, PartialEq)]
struct Series {
    /// Name of the object.
    name: String,
    count: i32,
    last: Timestamp,
}

impl Series {
    fn patch(&self) -> Value {
        let series = ApiSeries {
            count: self.count,
            last_observed_time: MicroTime(self.last),
        };
        json!({ "series": series })
    }
}

/// Fields by which two events are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    regarding: ObjectKey,
    related: Option<ObjectKey>,
    is_warning: bool,
    reason: String,
    action: String,
    series: String,
}

/// Kind, namespace, name and UID of an object.
type ObjectKey = [Option<String>; 4];

impl SeriesKey {
    fn of(content: &EventContent) -> Self {
        let object = |of: &ObjectReference| [&of.kind, &of.namespace, &of.name, &of.uid].map(Clone::clone);
        Self {
            regarding: object(&content.regarding),
            related: content.related.as_ref().map(object),
            is_warning: content.is_warning,
            reason: content.reason.clone(),
            action: content.action.clone(),
            series: content.series.clone(),
        }
    }
}

/// The series that an event may continue. Pure.
#[derive(Debug, Default)]
struct KnownSeries(HashMap<SeriesKey, Series>);

impl KnownSeries {
    /// Returns the series with this event as its last one; none if it begins a series.
    fn next(&mut self, content: &EventContent, now: Timestamp) -> Option<Series> {
        self.0.retain(|_, series| now.duration_since(series.last) < SERIES_TTL);
        let series = self.0.get(&SeriesKey::of(content))?;
        Some(Series {
            name: series.name.clone(),
            count: series.count.saturating_add(1),
            last: now,
        })
    }

    fn put(&mut self, content: &EventContent, series: Series) {
        self.0.insert(SeriesKey::of(content), series);
        if self.0.len() > MAX_SERIES
            && let Some(oldest) = self
                .0
                .iter()
                .min_by_key(|(_, series)| series.last)
                .map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
