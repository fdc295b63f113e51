//! Looks for the files of companions again when a folder changes.

use super::{
    folder_watch::FolderWatch,
    host_files::HostFileError,
    scan::{FileScanner, FoundFiles, WantedFiles},
};
use crate::runtime::blocking_thread::BlockingThread;
use gpunode_process::OnChange;
use std::{collections::BTreeSet, future::pending, io, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinError,
    time::{sleep, timeout},
};
use tracing::warn;

/// Pause between two scans without an event: the rights of a folder change without one, and inotify may be out of watches.
const POLL: Duration = Duration::from_secs(5);
/// Pause between two scans without inotify.
const POLL_UNWATCHED: Duration = Duration::from_secs(1);
/// Pause from an event to the scan: a card brings several files.
const SETTLE: Duration = Duration::from_millis(100);
/// Pause before the scan that follows the watch of a new folder.
const RESCAN: Duration = Duration::from_millis(10);
/// Longest time of a scan.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Error of a scan.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    #[error("look for the files of companions below {}: the folder {error}", .host_root.display())]
    Root { host_root: PathBuf, error: HostFileError },
    #[error("look for the files of companions: no answer from the file system within {TIMEOUT:?}")]
    NoAnswer,
    #[error("look for the files of companions: {0}")]
    Thread(#[from] JoinError),
    #[error("watch the folders of companions: {0}; looking every second instead")]
    Watch(#[from] io::Error),
}

/// Looks for files on the host.
pub struct CompanionWatch {
    /// Looks for files.
    pub scanner: FileScanner,
    /// Files to look for.
    pub wanted: watch::Receiver<WantedFiles>,
    /// Files that were found; none before the first scan.
    pub found: watch::Sender<Option<Arc<FoundFiles>>>,
    /// Asks for a scan now.
    pub scan_now: Arc<Notify>,
}

impl CompanionWatch {
    /// Looks for files. Never returns.
    pub async fn run(mut self) {
        let thread = BlockingThread::default();
        let mut folders: Option<Arc<FolderWatch>> = None;
        let mut errors = OnChange::default();
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            if wanted.is_empty() {
                if let Some(folders) = &folders {
                    // Ending a watch does not wait for a file system.
                    _ = folders.set(&BTreeSet::new());
                }
                self.publish(FoundFiles::default());
                // The sender is gone only when the agent stops.
                if self.wanted.changed().await.is_err() {
                    pending::<()>().await;
                }
                continue;
            }
            let error = match self.scan(wanted, &thread).await {
                Ok((found, watched)) => match watch_folders(&mut folders, watched, &thread).await {
                    // A file may have come before its folder was watched.
                    Ok(true) => {
                        sleep(RESCAN).await;
                        continue;
                    }
                    watched => {
                        self.publish(found);
                        watched.err()
                    }
                },
                Err(error) => Some(error),
            };
            let is_watched = error.is_none();
            if let Some(error) = errors.set(error.map(|error| error.to_string())) {
                warn!(error, "cannot follow the files of companions; retrying");
            }
            let poll = if is_watched { POLL } else { POLL_UNWATCHED };
            tokio::select! {
                _ = self.wanted.changed() => {}
                () = self.scan_now.notified() => {}
                () = changed(folders.as_ref()) => sleep(SETTLE).await,
                () = sleep(poll) => {}
            }
        }
    }

    async fn scan(
        &self,
        wanted: WantedFiles,
        thread: &BlockingThread,
    ) -> Result<(FoundFiles, BTreeSet<PathBuf>), ScanError> {
        let scanner = self.scanner.clone();
        let scan = thread.run(move || scanner.scan(&wanted));
        let found = timeout(TIMEOUT, scan).await.map_err(|_| ScanError::NoAnswer)??;
        found.map_err(|error| ScanError::Root {
            host_root: self.scanner.host_root.clone(),
            error,
        })
    }

    fn publish(&self, found: FoundFiles) {
        let is_new = self.found.borrow().as_deref() != Some(&found);
        if is_new {
            self.found.send_replace(Some(Arc::new(found)));
        }
    }
}

/// Watches these folders. Returns true if one was not watched before.
async fn watch_folders(
    watch: &mut Option<Arc<FolderWatch>>,
    folders: BTreeSet<PathBuf>,
    thread: &BlockingThread,
) -> Result<bool, ScanError> {
    let watch = match watch {
        Some(watch) => watch.clone(),
        none => none.insert(Arc::new(FolderWatch::new()?)).clone(),
    };
    let set = thread.run(move || watch.set(&folders));
    let is_new = timeout(TIMEOUT, set).await.map_err(|_| ScanError::NoAnswer)??;
    Ok(is_new?)
}

/// Waits for a change of a watched folder; for ever without a watch.
async fn changed(folders: Option<&Arc<FolderWatch>>) {
    match folders {
        Some(folders) => folders.changed().await,
        None => pending().await,
    }
}
