//! A device: one file, or files that belong together.

use super::file::CompanionFile;
use gpunode_config::CompanionInjection;
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeSet, fmt::Write as _};

/// Start of the ids of companions. UUIDs of GPUs begin with `GPU-`, those of MIG devices with `MIG-`.
const PREFIX: &str = "path-";
/// Bytes of the hash in an id.
const HASH_BYTES: usize = 8;

/// A device that is a file, or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompanionDevice {
    /// Id: `path-` and a hash of the file, of the PCI slot, or of the resource for all files together.
    pub id: String,
    /// Its files, ordered by path.
    pub files: Vec<CompanionFile>,
    /// Ways in which containers get it.
    pub injection: CompanionInjection,
}

impl CompanionDevice {
    /// Returns a device whose id follows `identity`.
    pub(super) fn new(identity: &str, files: Vec<CompanionFile>, injection: CompanionInjection) -> Self {
        let digest = Sha256::digest(identity.as_bytes());
        let id = digest.iter().take(HASH_BYTES).fold(PREFIX.to_owned(), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        });
        Self { id, files, injection }
    }

    /// Returns the name for people, such as `/dev/infiniband/uverbs0 and 2 more files`.
    pub fn name(&self) -> String {
        let first = self.files.first().map_or("no file", |file| file.path.as_str());
        match self.files.len() {
            0 | 1 => first.to_owned(),
            2 => format!("{first} and 1 more file"),
            count => format!("{first} and {} more files", count - 1),
        }
    }

    /// Returns the NUMA node, if sysfs shows one for a file and the same for all.
    pub fn numa_node(&self) -> Option<u32> {
        let mut nodes = self.files.iter().filter_map(|file| file.numa_node);
        let first = nodes.next()?;
        nodes.all(|node| node == first).then_some(first)
    }

    /// Returns the globs that the files match, by index.
    pub fn globs(&self) -> BTreeSet<usize> {
        self.files.iter().flat_map(|file| &file.globs).copied().collect()
    }

    /// Returns the files on the host.
    pub fn host_paths(&self) -> impl Iterator<Item = &String> {
        self.files.iter().map(|file| &file.host_path)
    }
}

/// Returns true for the id of a companion, or of a share of one.
pub fn is_companion(id: &str) -> bool {
    id.starts_with(PREFIX)
}
