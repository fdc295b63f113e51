//! Files that several processes read and change.
//!
//! Every change is a read, a change and a rename under a lock: readers see the old content or the
//! new one, and concurrent changes do not lose each other.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::StateError;

/// Reads a file; returns the default without one.
pub(crate) fn load<S: DeserializeOwned + Default>(path: &Path) -> Result<S, StateError> {
    match fs::read_to_string(path) {
        Ok(text) => serde_yaml::from_str(&text).map_err(|source| StateError::Parse {
            path: path.to_owned(),
            source,
        }),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(S::default()),
        Err(source) => Err(file_error("read", path)(source)),
    }
}

/// Changes a file. The lock and the new content are beside it.
pub(crate) fn update<S, T>(path: &Path, change: impl FnOnce(&mut S) -> T) -> Result<T, StateError>
where
    S: Serialize + DeserializeOwned + Default,
{
    let lock_path = path.with_extension("lock");
    let lock = File::create(&lock_path).map_err(file_error("create", &lock_path))?;
    lock.lock().map_err(file_error("lock", &lock_path))?;

    let mut content = load(path)?;
    let result = change(&mut content);
    let new_path = path.with_extension("yaml.new");
    let text = serde_yaml::to_string(&content).map_err(|source| StateError::Parse {
        path: path.to_owned(),
        source,
    })?;
    fs::write(&new_path, text).map_err(file_error("write", &new_path))?;
    set_newer(&new_path, path).map_err(file_error("date", &new_path))?;
    fs::rename(&new_path, path).map_err(file_error("replace", path))?;
    Ok(result)
}

/// Gives `new` a later time than `old`: readers notice a change by the time, and the clock that
/// dates files stands still for milliseconds.
fn set_newer(new: &Path, old: &Path) -> io::Result<()> {
    let mut modified = SystemTime::now();
    if let Ok(before) = fs::metadata(old).and_then(|old| old.modified())
        && modified <= before
    {
        modified = before + Duration::from_micros(1);
    }
    File::options().write(true).open(new)?.set_modified(modified)
}

/// Says what was tried on which file.
pub(crate) fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
