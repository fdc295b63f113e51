//! Reads files of processes and of the host that are small unless somebody makes them large.

use crate::runtime::bounded_file;
use std::{io, path::Path};

/// Most bytes that are read: the kernel has at most a dozen lines with a path each for a process.
const MAX_BYTES: u64 = 64 * 1024;

/// Returns the start of a file as text. Blocks.
pub fn text(path: &Path) -> io::Result<String> {
    let bytes = bounded_file::start(path, MAX_BYTES)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
