//! Opens files and folders of the host that only root can replace.
//!
//! Whoever can write to a folder can put another file in the place of one that was checked, before a container gets it. So no folder
//! of somebody else counts, and no link is followed but a file's own, which has to lead to a file below a root.

use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2, readlinkat},
    io::Errno,
    process::{Uid, geteuid},
};
use std::{
    ffi::OsStr,
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// Tries to resolve a path while folders are renamed, for which openat2(2) fails with EAGAIN.
const MAX_TRIES: usize = 32;
/// Most names that are read of one folder.
const MAX_NAMES: usize = 65_536;

/// Reason to refuse a file or a folder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFileError {
    /// It does not exist.
    #[error("does not exist")]
    Missing,
    /// A folder is a link.
    #[error("is a link; name the folder that it leads to")]
    FolderLink,
    /// Somebody other than root can change the names in a folder.
    #[error("can be changed by others than root, who could put any file there; give it to root, with mode 755")]
    NotOfRoot,
    /// A folder has too many names.
    #[error("has more than {MAX_NAMES} files")]
    TooManyNames,
    /// The operating system refuses it.
    #[error("cannot be read: {0}")]
    Io(Errno),
}

impl From<Errno> for HostFileError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NOTDIR => Self::Missing,
            Errno::LOOP => Self::FolderLink,
            error => Self::Io(error),
        }
    }
}

/// The host's root, as this container sees it.
#[derive(Debug)]
pub struct HostRoot {
    folder: OwnedFd,
    /// Its path here, without links.
    path: PathBuf,
}

/// A file of the host.
#[derive(Debug)]
pub struct OpenedFile {
    /// Its path on the host, without links.
    pub path: PathBuf,
    /// Kind, and number of a device.
    pub stat: Stat,
}

impl HostRoot {
    /// Opens the root. Blocks.
    pub fn open(path: &Path) -> Result<Self, HostFileError> {
        let folder = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = path_of(folder.as_fd())?;
        Ok(Self { folder, path })
    }

    /// Returns the root as a folder.
    pub fn folder(&self) -> Result<OwnedFd, HostFileError> {
        Ok(self.folder.try_clone().map_err(|_| Errno::MFILE)?)
    }

    /// Opens a file by its path on the host, and follows its links. Blocks.
    pub fn file(&self, path: &str) -> Result<OpenedFile, HostFileError> {
        let flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        let file = loop {
            tries += 1;
            match openat2(
                &self.folder,
                below(path),
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
                flags,
            ) {
                Err(Errno::AGAIN) if tries < MAX_TRIES => {}
                opened => break opened,
            }
        };
        // A link to nothing, or to itself, is none of a folder.
        let file = file.map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => HostFileError::Missing,
            error => HostFileError::Io(error),
        })?;
        let stat = fstat(&file)?;
        if stat.st_nlink == 0 {
            // It was removed meanwhile; its path has " (deleted)" then.
            return Err(HostFileError::Missing);
        }
        let real = path_of(file.as_fd())?;
        let path = real.strip_prefix(&self.path).map_err(|_| HostFileError::Missing)?;
        Ok(OpenedFile {
            path: Path::new("/").join(path),
            stat,
        })
    }

    /// Returns the reason why somebody other than root could replace the file at a path, if there is one. Blocks.
    pub fn check_folders_of(&self, path: &Path) -> Result<(), HostFileError> {
        let mut folder = self.folder()?;
        for part in path.parent().into_iter().flat_map(Path::components).skip(1) {
            folder = open_folder(&folder, part.as_os_str())?;
        }
        Ok(())
    }
}

/// Opens a folder in another one; refuses links, and folders that others than root can write to. Blocks.
pub fn open_folder(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, HostFileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat2(folder, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let stat = fstat(&opened)?;
    let (owner, mode) = (Uid::from_raw(stat.st_uid), Mode::from_raw_mode(stat.st_mode));
    let is_trusted = owner.is_root() || owner == geteuid();
    if !is_trusted || mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Err(HostFileError::NotOfRoot);
    }
    Ok(opened)
}

/// Returns the names in a folder, sorted. Blocks.
pub fn names(folder: &OwnedFd) -> Result<Vec<Vec<u8>>, HostFileError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_owned());
        }
        if names.len() > MAX_NAMES {
            return Err(HostFileError::TooManyNames);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns true for a folder.
pub fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns a path that counts from the host's root.
fn below(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// Returns the path of an open file in this container, without links.
fn path_of(file: BorrowedFd<'_>) -> Result<PathBuf, HostFileError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
}
