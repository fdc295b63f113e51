//! Opens sessions with NVML.

use super::{elf, error::DriverError};
use nvml_wrapper::Nvml;
use object::{ReadCache, ReadRef as _};
use std::{
    collections::BTreeMap,
    fs::File,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Number of open sessions of this process, by path of the library.
static OPEN: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

/// A session, which ends when the value is dropped.
pub struct NvmlSession {
    // Dropped before it no longer counts as open.
    nvml: Nvml,
    _counted: CountedSession,
}

impl Deref for NvmlSession {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        &self.nvml
    }
}

/// A session that counts as open.
struct CountedSession(PathBuf);

impl CountedSession {
    fn new(path: &Path) -> Self {
        *open_sessions().entry(path.to_owned()).or_default() += 1;
        Self(path.to_owned())
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        let mut open = open_sessions();
        if let Some(count) = open.get_mut(&self.0) {
            *count -= 1;
        }
        open.retain(|_, count| *count > 0);
    }
}

fn open_sessions() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true while this process has a session with the library at `path`. NVML counts its initialisations (nvml.h,
/// `nvmlInit_v2`), and lists the GPUs that the first of them found until the last session has ended.
pub fn is_open(path: &Path) -> bool {
    open_sessions().contains_key(path)
}

/// Opens a session.
pub fn open(path: &Path) -> Result<NvmlSession, DriverError> {
    check(path)?;
    let counted = CountedSession::new(path);
    let nvml = Nvml::builder()
        .lib_path(path.as_os_str())
        .init()
        .map_err(|source| DriverError::Initialise {
            path: path.to_owned(),
            source,
        })?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping the session would call nvmlShutdown and panic.
        std::mem::forget(nvml);
        return Err(DriverError::NotNvml { path: path.to_owned() });
    }
    Ok(NvmlSession {
        nvml,
        _counted: counted,
    })
}

/// Checks that the library is safe to load.
fn check(path: &Path) -> Result<(), DriverError> {
    let file = File::open(path).map_err(|source| DriverError::Open {
        path: path.to_owned(),
        source,
    })?;
    let file = ReadCache::new(file);
    let needed = elf::needed(&file).map_err(|source| DriverError::NotElf {
        path: path.to_owned(),
        source,
    })?;
    match (&file).len() {
        Ok(length) if length < needed => Err(DriverError::Incomplete {
            path: path.to_owned(),
            length,
            needed,
        }),
        _ => Ok(()),
    }
}
