//! Which file a path leads to, so that a file that was removed and made again is noticed.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// Identity of a file. The change time tells apart files that got the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileId {
    /// The file at `path`; none where there is none.
    pub fn of(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|meta| Self::of_metadata(&meta))
    }

    /// An open file.
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

    /// The same for what changes its time while it stays: a folder, or a socket that is relabelled.
    pub fn without_time(path: &Path) -> Option<Self> {
        Self::of(path).map(|id| Self { changed: (0, 0), ..id })
    }
}
