//! Identity of the file at a path, to detect a file that was removed and created again.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// Identity of a file. The change time distinguishes files that had the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileId {
    /// Returns the identity of the file at `path`; none if it does not exist.
    pub fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|meta| Self::of_metadata(&meta))
    }

    /// Returns the identity of an open file.
    pub fn of_open(file: &File) -> io::Result<Self> {
        file.metadata().map(|meta| Self::of_metadata(&meta))
    }

    fn of_metadata(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Like [`Self::of`], for files whose time changes: a folder, or a socket that is relabelled.
    pub fn without_time(path: &Path) -> Option<Self> {
        Self::of(path).map(|id| Self { changed: (0, 0), ..id })
    }
}
