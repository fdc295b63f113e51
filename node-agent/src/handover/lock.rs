//! Lock on a file of the node, so that one agent at a time is registered. The kernel releases it when the process ends.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};
use tracing::warn;

const LOCK_FILE: &str = "agent.lock";

/// Failure to take or keep the lock.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}; is --state-dir writable?")]
pub struct LockError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Right to register the GPUs of this node; released when dropped.
#[derive(Debug)]
pub struct NodeLock {
    file: File,
}

impl NodeLock {
    /// Takes the lock for an agent that registers GPUs, if no other agent of this node holds it.
    pub fn take(state_dir: &Path) -> Result<Option<Self>, LockError> {
        let Some(lock) = Self::try_take(state_dir)? else {
            return Ok(None);
        };
        // [`Self::last_taken`] reads this time.
        let touched = lock.file.set_modified(SystemTime::now());
        touched.map_err(|source| LockError {
            action: "touch",
            path: state_dir.join(LOCK_FILE),
            source,
        })?;
        Ok(Some(lock))
    }

    /// Returns the last time an agent took the lock with [`Self::take`], to register GPUs. Fit for comparison only: the
    /// machine's clock may jump.
    pub fn last_taken(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|meta| meta.modified()).ok()
    }

    /// Takes the lock without a change of [`Self::last_taken`], if no other agent of this node holds it.
    pub fn try_take(state_dir: &Path) -> Result<Option<Self>, LockError> {
        let path = state_dir.join(LOCK_FILE);
        let file = open(&path)?;
        Ok(lock(&file, &path)?.then_some(Self { file }))
    }

    /// Takes the lock again if the file was removed or replaced, because the next agent would lock the new file. Fails if another
    /// agent has the new lock, or the folder is gone; other errors may pass and are ignored.
    pub fn keep(&mut self, state_dir: &Path) -> Result<(), LockError> {
        let path = state_dir.join(LOCK_FILE);
        let own = self.file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
        match fs::symlink_metadata(&path) {
            Ok(meta) if own.is_none_or(|own| own == (meta.dev(), meta.ino())) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(()),
            _ => {}
        }
        match Self::take(state_dir) {
            Ok(Some(again)) => {
                warn!(file = %path.display(), "the lock file of this node was removed; took the lock again");
                *self = again;
                Ok(())
            }
            Ok(None) => {
                let source = io::Error::other("the file was removed, and another agent has locked the new one");
                Err(LockError {
                    action: "keep the lock",
                    path,
                    source,
                })
            }
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Err(error),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        // A closed file is not enough: a child process that is being started has it, too, until it runs its program.
        _ = self.file.unlock();
    }
}

/// Locks the file and returns true, or false if another process holds it.
fn lock(file: &File, path: &Path) -> Result<bool, LockError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(LockError {
            action: "lock",
            path: path.to_owned(),
            source,
        }),
    }
}

fn open(path: &Path) -> Result<File, LockError> {
    let error = |action| {
        move |source| LockError {
            action,
            path: path.to_owned(),
            source,
        }
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("create the folder of"))?;
    }
    let mut options = File::options();
    options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(error("open the lock file"))
}

/// Returns true if an agent of the node holds the lock; false if the file cannot be opened.
pub fn is_held(state_dir: &Path) -> bool {
    // With a shared lock, two concurrent checks do not block each other.
    File::open(state_dir.join(LOCK_FILE)).is_ok_and(|file| {
        let is_held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        // For the reason of [`NodeLock`]'s end.
        _ = file.unlock();
        is_held
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_held(folder.path()));
        let lock = NodeLock::take(folder.path()).unwrap().unwrap();
        assert!(is_held(folder.path()));
        assert!(NodeLock::try_take(folder.path()).unwrap().is_none());
        assert!(NodeLock::take(folder.path()).unwrap().is_none());
        drop(lock);
        assert!(!is_held(folder.path()));
        let seen = NodeLock::try_take(folder.path()).unwrap().unwrap().last_taken();
        assert_eq!(NodeLock::try_take(folder.path()).unwrap().unwrap().last_taken(), seen);
        drop(NodeLock::take(folder.path()).unwrap().unwrap());
        assert_ne!(NodeLock::try_take(folder.path()).unwrap().unwrap().last_taken(), seen);
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_taken_anew_unless_another_agent_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut lock = NodeLock::take(&state).unwrap().unwrap();
        lock.keep(&state).unwrap();
        fs::remove_file(state.join(LOCK_FILE)).unwrap();
        assert!(!is_held(&state));
        lock.keep(&state).unwrap();
        assert!(is_held(&state));

        fs::remove_dir_all(&state).unwrap();
        let another = NodeLock::take(&state).unwrap().unwrap();
        let error = lock.keep(&state).unwrap_err().to_string();
        assert!(error.contains("another agent has locked the new one"), "{error}");
        drop(another);
        lock.keep(&state).unwrap();
        assert!(NodeLock::take(&state).unwrap().is_none());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = NodeLock::take(&file.path().join("state")).unwrap_err().to_string();
        assert!(error.contains("agent.lock") && error.contains("--state-dir"), "{error}");
    }
}
