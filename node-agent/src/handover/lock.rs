//! One registered agent per node, by a lock on a file of the node. The lock goes with the process that holds it.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

const LOCK_FILE: &str = "agent.lock";

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
    file: File,
}

impl NodeLock {
    /// The lock, if no other agent of this node holds it, for an agent that is to register GPUs.
    pub fn take(state_dir: &Path) -> Result<Option<Self>, Error> {
        let Some(lock) = Self::try_take(state_dir)? else { return Ok(None) };
        // What [`Self::taken`] tells.
        let touched = lock.file.set_modified(SystemTime::now());
        touched.map_err(|source| Error { action: "touch", path: state_dir.join(LOCK_FILE), source })?;
        Ok(Some(lock))
    }

    /// When an agent last took it to register GPUs, which [`Self::try_take`] is not for. To be compared, not to be reckoned
    /// with: it is the machine's clock.
    pub fn taken(&self) -> Option<SystemTime> {
        self.file.metadata().and_then(|meta| meta.modified()).ok()
    }

    /// The lock, if no other agent of this node holds it.
    pub fn try_take(state_dir: &Path) -> Result<Option<Self>, Error> {
        let path = state_dir.join(LOCK_FILE);
        let file = open(&path)?;
        Ok(lock(&file, &path)?.then_some(Self { file }))
    }
}

/// Locks the file, unless another process has.
fn lock(file: &File, path: &Path) -> Result<bool, Error> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(Error { action: "lock", path: path.to_owned(), source }),
    }
}

fn open(path: &Path) -> Result<File, Error> {
    let error = |action| move |source| Error { action, path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(error("create the folder of"))?;
    }
    let mut options = File::options();
    options.create(true).truncate(false).write(true).open(path).map_err(error("open the lock file"))
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
        let seen = NodeLock::try_take(folder.path()).unwrap().unwrap().taken();
        assert_eq!(NodeLock::try_take(folder.path()).unwrap().unwrap().taken(), seen);
        drop(NodeLock::take(folder.path()).unwrap().unwrap());
        assert_ne!(NodeLock::try_take(folder.path()).unwrap().unwrap().taken(), seen);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = NodeLock::take(&file.path().join("state")).unwrap_err().to_string();
        assert!(error.contains("agent.lock") && error.contains("--state-dir"), "{error}");
    }
}
