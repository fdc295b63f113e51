//! Files of which only the start is read.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

/// Returns the first `max` bytes of a file. Blocks.
pub fn start(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}
