//! Opens sessions with NVML.

use super::{elf, error::DriverError};
use nvml_wrapper::Nvml;
use object::{ReadCache, ReadRef as _};
use std::{fs::File, path::Path};

/// Opens a session, which ends when the value is dropped.
pub fn open(path: &Path) -> Result<Nvml, DriverError> {
    check(path)?;
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
    Ok(nvml)
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
