//! Task that watches this node's GpuNode.
//!
//! Not by `kube::runtime::watcher`: it hides bookmarks, so it notices a silent API server only after five minutes, and
//! it begins again without a pause when watches end at once. Every node has an agent, and an API server that comes back
//! must not meet all of them in the same second.

use crate::api_server::gpu_node::{GpuNodeState, ObservedGpuNode, api};
use futures::TryStreamExt as _;
use gpunode_process::{RetryPace, SilentStreams, random_up_to, within};
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

/// Time for a list of one object.
const LIST_TIME: Duration = Duration::from_secs(15);
/// Time without a line after which a watch is given up; the API server sends a bookmark every minute
/// (`defaultBookmarkFrequency` in apiserver `pkg/storage/cacher`). Up to [`SILENCE_JITTER`] is added.
const SILENCE: Duration = Duration::from_secs(70);
/// Spreads the agents that notice a silent API server.
const SILENCE_JITTER: Duration = Duration::from_secs(10);
/// Shortest time that is asked for a watch. With the jitter it stays below the 295 s that kube allows.
const WATCH_TIME: Duration = Duration::from_mins(4);
/// Spreads the ends of the watches of agents that began together.
const WATCH_TIME_JITTER: Duration = Duration::from_secs(50);
/// A watch that ends so much before its time was cut off, as by an API server that stops.
const EARLY: Duration = Duration::from_secs(10);

/// Task that watches this node's GpuNode.
pub struct GpuNodeWatch {
    pub client: Client,
    /// Name of the Node and its GpuNode.
    pub node_name: String,
    pub gpu_node: watch::Sender<GpuNodeState>,
}

/// Reason for which a watch ended.
#[derive(Debug, thiserror::Error)]
enum GpuNodeWatchError {
    #[error("list the GpuNode of this node: {0}")]
    List(#[source] kube::Error),
    #[error("list the GpuNode of this node: no answer within {}s", LIST_TIME.as_secs())]
    NoList,
    #[error("list the GpuNode of this node: the list has no resourceVersion")]
    NoVersion,
    #[error("watch the GpuNode of this node: {0}")]
    Watch(#[source] kube::Error),
    #[error("watch the GpuNode of this node: no answer within {}s", SILENCE.as_secs())]
    NoWatch,
    #[error("watch the GpuNode of this node: the API server ended the watch early")]
    EndedEarly,
}

impl GpuNodeWatchError {
    /// Returns false if the next watch may go on at the version that the last one had reached.
    fn needs_list(&self) -> bool {
        let is_connection = |error: &kube::Error| {
            matches!(
                error,
                kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_)
            )
        };
        match self {
            Self::Watch(error) => !is_connection(error),
            Self::EndedEarly => false,
            Self::List(_) | Self::NoList | Self::NoVersion | Self::NoWatch => true,
        }
    }
}

impl GpuNodeWatch {
    /// Watches. Does not end.
    pub async fn run(self) {
        let mut follower = GpuNodeFollower {
            api: api(self.client),
            selector: format!("metadata.name={}", self.node_name),
            gpu_node: self.gpu_node,
            version: None,
            silent_streams: SilentStreams::default(),
            pace: RetryPace::default(),
            is_failing: false,
        };
        loop {
            let Err(error) = follower.follow().await else { continue };
            if error.needs_list() {
                follower.version = None;
            }
            if matches!(error, GpuNodeWatchError::EndedEarly) || follower.is_failing {
                debug!(%error, "cannot watch the GpuNode; retrying");
            } else {
                warn!(%error, "cannot watch the GpuNode; retrying");
                follower.is_failing = true;
            }
            sleep(follower.pace.failed()).await;
        }
    }
}

/// A watch and its place in the history of the GpuNode.
struct GpuNodeFollower {
    api: Api<ObservedGpuNode>,
    /// Field selector for this node's GpuNode.
    selector: String,
    gpu_node: watch::Sender<GpuNodeState>,
    /// Version from which the next watch goes on; none if a list is needed first.
    version: Option<String>,
    silent_streams: SilentStreams,
    pace: RetryPace,
    is_failing: bool,
}

impl GpuNodeFollower {
    /// Follows the GpuNode until the watch has lasted its time.
    async fn follow(&mut self) -> Result<(), GpuNodeWatchError> {
        let version = match self.version.clone() {
            Some(version) => version,
            None => self.list().await?,
        };
        let silence = SILENCE + random_up_to(SILENCE_JITTER);
        let time = WATCH_TIME + random_up_to(WATCH_TIME_JITTER);
        let seconds = u32::try_from(time.as_secs()).unwrap_or_default();
        let params = WatchParams::default().fields(&self.selector).timeout(seconds);
        let began = Instant::now();
        let accepted = within(silence, self.api.watch(&params, &version)).await;
        let events = accepted
            .ok_or(GpuNodeWatchError::NoWatch)?
            .map_err(GpuNodeWatchError::Watch)?;
        let mut events = pin!(events);
        self.worked();
        loop {
            let event = timeout(silence, events.try_next()).await;
            let Ok(event) = event else {
                // Where nobody writes GpuNodes an API server may have no bookmark to send. A dead connection shows when the next
                // watch gets no answer; a version that lies in the future after a restore of etcd does not.
                debug!("the watch of the GpuNode was silent; watching again");
                if self.silent_streams.fell_silent() {
                    self.version = None;
                }
                return Ok(());
            };
            if matches!(event, Ok(Some(_))) {
                self.silent_streams.received();
            }
            match event.map_err(GpuNodeWatchError::Watch)? {
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                    self.version.clone_from(&object.metadata.resource_version);
                    self.gpu_node.send_replace(GpuNodeState::Present(Arc::new(object)));
                }
                Some(WatchEvent::Deleted(object)) => {
                    self.version = object.metadata.resource_version;
                    self.gpu_node.send_replace(GpuNodeState::Absent);
                }
                Some(WatchEvent::Bookmark(bookmark)) => {
                    self.silent_streams.bookmarked();
                    self.version = Some(bookmark.metadata.resource_version);
                }
                Some(WatchEvent::Error(status)) => {
                    return Err(GpuNodeWatchError::Watch(kube::Error::Api(status)));
                }
                None if began.elapsed() + EARLY < time => {
                    // A connection that a proxy cuts after some time has worked until then.
                    self.worked();
                    return Err(GpuNodeWatchError::EndedEarly);
                }
                None => return Ok(()),
            }
            self.worked();
        }
    }

    /// Reads the GpuNode; returns the version of the list, from which a watch goes on.
    async fn list(&mut self) -> Result<String, GpuNodeWatchError> {
        let only = ListParams::default().fields(&self.selector);
        let answer = within(LIST_TIME, self.api.list(&only)).await;
        let list = answer
            .ok_or(GpuNodeWatchError::NoList)?
            .map_err(GpuNodeWatchError::List)?;
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        let version = version.ok_or(GpuNodeWatchError::NoVersion)?;
        let object = list.items.into_iter().next();
        self.gpu_node
            .send_replace(object.map_or(GpuNodeState::Absent, |object| GpuNodeState::Present(Arc::new(object))));
        self.version = Some(version.clone());
        Ok(version)
    }

    fn worked(&mut self) {
        self.pace.worked(Instant::now());
        if self.is_failing {
            info!("the API server answers again");
        }
        self.is_failing = false;
    }
}

#[cfg(test)]
mod tests;
