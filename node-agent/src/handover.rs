//! One registered agent per node, by a lock on a file of the node. The lock goes with the process that holds it.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;
use tracing::info;

const LOCK_FILE: &str = "agent.lock";
/// How soon a successor notices that the lock is free.
const RETRY: Duration = Duration::from_millis(200);

/// Why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}; is --state-dir writable?")]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The right to register the GPUs of this node; given back when dropped.
#[derive(Debug)]
pub struct NodeLock {
    _file: File,
}

impl NodeLock {
    /// Waits until no other agent of this node holds the lock.
    pub async fn take(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join(LOCK_FILE);
        let error = |action| {
            let path = path.clone();
            move |source| Error { action, path, source }
        };
        fs::create_dir_all(state_dir).map_err(error("create the folder of"))?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(error("open the lock file"))?;
        let mut waiting = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(error("lock")(source)),
            }
            if !waiting {
                info!(lock = %path.display(), reason = "WaitingForPredecessor", "another agent of this node is registered");
                waiting = true;
            }
            sleep(RETRY).await;
        }
    }
}

/// Whether some agent of the node holds the lock. A folder that cannot be read has never had one.
pub fn is_held(state_dir: &Path) -> bool {
    // A shared lock: two that ask at once do not see each other.
    File::open(state_dir.join(LOCK_FILE))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_held(folder.path()));
        let lock = NodeLock::take(folder.path()).await.unwrap();
        assert!(is_held(folder.path()));
        drop(lock);
        assert!(!is_held(folder.path()));
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = NodeLock::take(&file.path().join("state")).await.unwrap_err().to_string();
        assert!(error.contains("agent.lock") && error.contains("--state-dir"), "{error}");
    }
}
