//! The kubelet's folder of device plugin sockets: notifies when a file in it is created, removed or renamed.

use crate::store::file_id::FileId;
use gpunode_process::OnChange;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _, event::ModifyKind};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::watch, time::sleep};
use tracing::warn;

/// Interval of checks without an inotify event: inotify may be out of watches, or the folder was replaced.
const POLL: Duration = Duration::from_secs(5);
/// Interval of checks without inotify.
const POLL_UNWATCHED: Duration = Duration::from_secs(1);

/// A folder and the number of its changes.
#[derive(Clone, Debug)]
pub struct PluginDirectory {
    path: Arc<Path>,
    changes: watch::Sender<u64>,
}

impl PluginDirectory {
    /// Returns a folder that reports no changes until [`PluginDirectory::watch`] runs.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path: path.into(),
            changes: watch::Sender::new(0),
        }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a counter that changes after each event, and every few seconds without one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Watches the folder, and its replacement after it is replaced. Never returns.
    pub async fn watch(self) {
        let mut watched: Option<(RecommendedWatcher, Option<FileId>)> = None;
        let mut errors = OnChange::default();
        loop {
            let id = FileId::without_time(&self.path);
            if watched.as_ref().is_none_or(|(_, watched)| *watched != id) {
                watched = match self.start() {
                    Ok(started) => Some((started, id)),
                    Err(error) => {
                        if let Some(error) = errors.changed(error) {
                            warn!(folder = %self.path.display(), error, "cannot watch the folder; checking it every second instead");
                        }
                        None
                    }
                };
            }
            self.changes.send_modify(|number| *number = number.wrapping_add(1));
            sleep(if watched.is_some() { POLL } else { POLL_UNWATCHED }).await;
        }
    }

    fn start(&self) -> notify::Result<RecommendedWatcher> {
        let changes = self.changes.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error may stand for a lost event.
            let matters = event.map_or(true, |event| {
                matches!(
                    event.kind,
                    EventKind::Create(_) | EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
                )
            });
            if matters {
                changes.send_modify(|number| *number = number.wrapping_add(1));
            }
        })?;
        watcher.watch(&self.path, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    }
}
