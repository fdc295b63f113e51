//! Lists the objects of one kind and follows their changes, for ever.
//!
//! `watch_steps` decides which request comes next; this module makes it and passes on what it brings. A list comes as a
//! stream (KEP-3157), or by pages where the API server has no streaming lists. Each object is parsed and reduced alone,
//! and passed on with at most [`PAGE`] others, so that no list is ever held whole.

use crate::{
    index::cache::{DeletedObject, WatchUpdate},
    lenient::WatchedObject,
    watch::{
        response::{EventText, WatchError, open, parse_page},
        watch_health::WatchHealth,
        watch_steps::{StepEnd, WatchStep, WatchSteps},
    },
    written_versions::WrittenVersions,
};
use gpunode_process::OnChange;
use kube::{
    Client, Resource,
    api::{ListParams, ObjectMeta, Request, WatchParams},
    core::{WatchEvent, watch::Bookmark},
};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

/// Most objects in an update.
const PAGE: usize = 100;
/// Longest silence of a stream. The API server sends a bookmark about every minute (`defaultBookmarkFrequency` in
/// `pkg/storage/cacher/cacher.go` of k8s.io/apiserver).
const SILENCE: Duration = Duration::from_secs(70);
/// Longest silence within a streaming list: after it, a list by pages has the time to begin before a kind that cannot be listed
/// costs the leader its Lease (`watch_health`).
const LIST_SILENCE: Duration = Duration::from_secs(25);
/// Annotation of the bookmark at the end of a streaming list.
const LIST_END: &str = "k8s.io/initial-events-end";

/// A list and watch of the objects of one kind.
pub struct ListWatch {
    client: Client,
    requests: Request,
    /// Plural name of the kind.
    kind: String,
    field_selector: Option<String>,
    /// True if the objects may be in several namespaces.
    is_across_namespaces: bool,
    /// True for objects that are metadata alone.
    is_metadata: bool,
    ends_if_absent: bool,
    written: Option<WrittenVersions>,
}

/// Receivers of what a watch brings.
pub struct WatchOutputs<'a, T, M> {
    pub messages: &'a mpsc::Sender<M>,
    /// Makes the message of an update.
    pub message: fn(WatchUpdate<T>) -> M,
    pub health: &'a WatchHealth,
}

impl ListWatch {
    /// A watch of all objects of a kind, or of those of one namespace. Names in updates have the namespace and a slash
    /// in front where objects of several namespaces are watched.
    pub fn new<K: Resource>(client: Client, kind: &K::DynamicType, namespace: Option<&str>) -> Self {
        Self {
            client,
            requests: Request::new(K::url_path(kind, namespace)),
            kind: K::plural(kind).into_owned(),
            field_selector: None,
            is_across_namespaces: namespace.is_none(),
            is_metadata: K::metadata_api(),
            ends_if_absent: false,
            written: None,
        }
    }

    /// Watches only objects that this field selector matches.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.field_selector = Some(selector.to_owned());
        self
    }

    /// Ends when the API server does not have the kind.
    #[must_use]
    pub fn ending_if_absent(mut self) -> Self {
        self.ends_if_absent = true;
        self
    }

    /// Skips events about versions that the index has from the response to a write, and lists again when a write has
    /// found that versions began again.
    #[must_use]
    pub fn skipping(mut self, written: &WrittenVersions) -> Self {
        written.watch(&self.kind);
        self.written = Some(written.clone());
        self
    }

    /// Watches for as long as somebody takes messages. `read` returns what is kept of an object; none if it cannot be
    /// read, and then its cached version stays.
    pub async fn run<K, T, M>(&self, read: fn(K) -> Option<T>, outputs: WatchOutputs<'_, T, M>)
    where
        K: Resource + DeserializeOwned + WatchedObject,
    {
        let mut errors = OnChange::default();
        let _watched = outputs.health.watch(&self.kind);
        let mut session = WatchSession {
            watch: self,
            read,
            outputs,
            steps: WatchSteps::new(),
            page: Vec::new(),
            listed: 0,
        };
        loop {
            let end = match session.take_step().await {
                Ok(end) => {
                    errors.clear();
                    end
                }
                Err(WatchError::Closed) => return,
                Err(WatchError::Refused { code: 404, .. }) if self.ends_if_absent => return,
                Err(error) => {
                    let (end, kind) = (end_of(&error), &self.kind);
                    if session.steps.expects(&end) {
                        tracing::debug!(%error, "listing {kind} another way");
                    } else if let Some(error) = errors.changed(&error) {
                        tracing::warn!(error, "cannot list or watch {kind}; retrying");
                    }
                    end
                }
            };
            let pause = session.steps.after(end, Instant::now());
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }

    /// Returns the version of the object of an event that the index has already.
    fn known_version(&self, event: &EventText<'_>) -> Option<String> {
        let written = self.written.as_ref()?;
        let (name, version) = event.modified_version()?;
        written.take(&self.kind, &name, &version).then_some(version)
    }

    /// True if a write has found that the watch follows versions of before a restore of etcd.
    fn wants_list(&self) -> bool {
        self.written
            .as_ref()
            .is_some_and(|written| written.wants_list(&self.kind))
    }

    fn object_name(&self, meta: &ObjectMeta) -> String {
        let name = meta.name.clone().unwrap_or_default();
        match &meta.namespace {
            Some(namespace) if self.is_across_namespaces => format!("{namespace}/{name}"),
            _ => name,
        }
    }
}

/// Returns the consequence of an error for the next request.
fn end_of(error: &WatchError) -> StepEnd {
    match error {
        WatchError::Refused { code: 410, .. } => StepEnd::Expired,
        WatchError::RepeatedToken => StepEnd::RepeatedToken,
        WatchError::Refused { code, .. } if (400..500).contains(code) && !matches!(code, 408 | 429) => {
            StepEnd::Rejected(*code)
        }
        WatchError::Refused { retry_after, .. } => StepEnd::Failed {
            retry_after: *retry_after,
        },
        _ => StepEnd::Failed { retry_after: None },
    }
}

/// Result of a line of a stream.
enum TakenLine<T> {
    Nothing,
    Update(WatchUpdate<T>),
    /// The list is whole and has this resourceVersion.
    ListEnd(String),
}

/// A list and watch under way.
struct WatchSession<'a, K, T, M> {
    watch: &'a ListWatch,
    read: fn(K) -> Option<T>,
    outputs: WatchOutputs<'a, T, M>,
    steps: WatchSteps,
    /// Objects of a list that are not passed on yet.
    page: Vec<T>,
    /// Objects that the list has brought so far.
    listed: usize,
}

impl<K: Resource + DeserializeOwned + WatchedObject, T, M> WatchSession<'_, K, T, M> {
    /// Makes a request and passes on what it brings.
    async fn take_step(&mut self) -> Result<StepEnd, WatchError> {
        let step = self.steps.step().clone();
        if step.is_list() {
            self.outputs.health.began_list(&self.watch.kind, Instant::now());
        }
        match step {
            WatchStep::StreamList => self.follow(None).await,
            WatchStep::ListPage { token, limit } => self.list_page(token, limit).await,
            WatchStep::Watch(version) => self.follow(Some(version)).await,
        }
    }

    /// Takes in a page of a list.
    async fn list_page(&mut self, token: Option<String>, limit: u32) -> Result<StepEnd, WatchError> {
        let mut params = ListParams::default().limit(limit);
        params.field_selector.clone_from(&self.watch.field_selector);
        params.continue_token = token;
        let requests = &self.watch.requests;
        let request = if self.watch.is_metadata {
            requests.list_metadata(&params)
        } else {
            requests.list(&params)
        };
        let body = open(&self.watch.client, request.map_err(WatchError::Request)?).await?;
        let json = body.page().await?;
        let (watch, read) = (self.watch, self.read);
        let (mut page, mut unread) = (Vec::new(), Vec::new());
        let end = parse_page(&json, |object: K| {
            let name = watch.object_name(object.meta());
            if let Some(object) = read(object) {
                page.push(object);
            } else {
                unread.push(name);
            }
        })?;
        drop(json);
        let next = end.next.filter(|token| !token.is_empty());
        let version = end.version.filter(|version| !version.is_empty());
        if next.is_none() && version.is_none() {
            return Err(WatchError::NoVersion);
        }
        if next.is_some() && next == params.continue_token {
            return Err(WatchError::RepeatedToken);
        }
        if params.continue_token.is_none() {
            self.start_list().await?;
        }
        self.listed += page.len() + unread.len();
        self.record_contact();
        let mut objects = page.into_iter();
        loop {
            self.page = objects.by_ref().take(PAGE).collect();
            if self.page.is_empty() {
                break;
            }
            self.send_page().await?;
        }
        for name in unread {
            self.send(WatchUpdate::ListKept(name)).await?;
        }
        match (next, version) {
            (Some(token), _) => Ok(StepEnd::NextPage(token)),
            (None, version) => {
                let version = version.unwrap_or_default();
                self.complete_list(&version).await?;
                Ok(StepEnd::Listed(version))
            }
        }
    }

    /// Follows a watch from a version until it ends; without one, a streaming list and the watch that it becomes.
    async fn follow(&mut self, version: Option<String>) -> Result<StepEnd, WatchError> {
        let mut is_list = version.is_none();
        let params = WatchParams {
            field_selector: self.watch.field_selector.clone(),
            timeout: Some(WatchSteps::watch_timeout()),
            send_initial_events: is_list,
            ..WatchParams::default()
        };
        // For a list, no version means the present state, not the one of a cache that may be behind.
        let version = version.unwrap_or_default();
        let requests = &self.watch.requests;
        let request = if self.watch.is_metadata {
            requests.watch_metadata(&params, &version)
        } else {
            requests.watch(&params, &version)
        };
        let mut body = open(&self.watch.client, request.map_err(WatchError::Request)?).await?;
        let accepted = Instant::now();
        if is_list {
            self.start_list().await?;
        } else {
            self.steps.started(accepted);
        }
        self.record_contact();
        loop {
            let silence = if is_list { LIST_SILENCE } else { SILENCE };
            let line = timeout(silence, body.next_line()).await;
            if !is_list && self.watch.wants_list() {
                return Ok(StepEnd::Expired);
            }
            let Ok(line) = line else {
                tracing::debug!("a watch of {} was silent; watching again", self.watch.kind);
                return Ok(StepEnd::Silent);
            };
            let Some(line) = line? else {
                return Ok(StepEnd::Ended(accepted.elapsed()));
            };
            self.steps.received();
            match self.take_line(line, is_list)? {
                TakenLine::Nothing => {}
                TakenLine::Update(update) => {
                    if is_list {
                        self.send_page().await?;
                    }
                    self.send(update).await?;
                }
                TakenLine::ListEnd(version) => {
                    self.send_page().await?;
                    self.complete_list(&version).await?;
                    self.steps.listed(version);
                    self.steps.started(Instant::now());
                    is_list = false;
                }
            }
            if self.page.len() >= PAGE {
                self.send_page().await?;
            }
            self.record_contact();
        }
    }

    /// Takes in a line of a stream. Objects of a list are collected.
    fn take_line(&mut self, line: &[u8], is_list: bool) -> Result<TakenLine<T>, WatchError> {
        let Some(event) = EventText::of(line)? else {
            return Ok(TakenLine::Nothing);
        };
        if !is_list && let Some(version) = self.watch.known_version(&event) {
            self.steps.advanced(version);
            return Ok(TakenLine::Nothing);
        }
        let (version, update) = match event.parse::<K>()? {
            None => return Ok(TakenLine::Nothing),
            Some(WatchEvent::Error(status)) => return Err(WatchError::of_status(*status)),
            Some(WatchEvent::Bookmark(bookmark)) if is_list && ends_list(&bookmark) => {
                return Ok(TakenLine::ListEnd(bookmark.metadata.resource_version));
            }
            Some(WatchEvent::Bookmark(bookmark)) => {
                self.steps.bookmarked();
                (Some(bookmark.metadata.resource_version), None)
            }
            Some(WatchEvent::Deleted(object)) => {
                let name = self.watch.object_name(object.meta());
                let version = object.meta().resource_version.clone().unwrap_or_default();
                let deleted = DeletedObject {
                    name,
                    version: version.clone(),
                };
                (Some(version), Some(WatchUpdate::Deleted(deleted)))
            }
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) if is_list => {
                self.listed += 1;
                let name = self.watch.object_name(object.meta());
                if let Some(object) = (self.read)(object) {
                    self.page.push(object);
                    (None, None)
                } else {
                    (None, Some(WatchUpdate::ListKept(name)))
                }
            }
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                let version = object.meta().resource_version.clone();
                (version, (self.read)(object).map(WatchUpdate::applied))
            }
        };
        // A list has a version once it is whole.
        if let Some(version) = version.filter(|version| !version.is_empty() && !is_list) {
            self.steps.advanced(version);
        }
        Ok(update.map_or(TakenLine::Nothing, TakenLine::Update))
    }

    /// A list begins to come in. What the one before has brought stays in the caches.
    async fn start_list(&mut self) -> Result<(), WatchError> {
        self.page.clear();
        self.listed = 0;
        self.send(WatchUpdate::ListStarted).await?;
        // The list may be older than earlier writes, and wins: their events have to follow.
        if let Some(written) = &self.watch.written {
            written.forget(&self.watch.kind);
        }
        Ok(())
    }

    async fn send_page(&mut self) -> Result<(), WatchError> {
        if !self.page.is_empty() {
            let page = std::mem::take(&mut self.page);
            self.send(WatchUpdate::ListPage(page)).await?;
        }
        self.record_contact();
        Ok(())
    }

    async fn complete_list(&mut self, version: &str) -> Result<(), WatchError> {
        self.send(WatchUpdate::ListCompleted(Some(version.to_owned()))).await?;
        self.outputs.health.listed(&self.watch.kind, Instant::now());
        Ok(())
    }

    async fn send(&mut self, update: WatchUpdate<T>) -> Result<(), WatchError> {
        let message = (self.outputs.message)(update);
        self.outputs
            .messages
            .send(message)
            .await
            .map_err(|_| WatchError::Closed)
    }

    /// Records a sign of life, and how far a list is.
    fn record_contact(&self) {
        let (health, kind, now) = (self.outputs.health, &self.watch.kind, Instant::now());
        if self.steps.step().is_list() {
            health.progressed(kind, self.listed, now);
        } else {
            health.contact(kind, now);
        }
    }
}

/// True for the bookmark at the end of a streaming list.
fn ends_list(bookmark: &Bookmark) -> bool {
    let mark = bookmark.metadata.annotations.get(LIST_END);
    mark.is_some_and(|mark| mark == "true")
}

#[cfg(test)]
mod tests;
