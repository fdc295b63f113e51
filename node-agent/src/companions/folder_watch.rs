//! Tells that names in a folder have changed. Of inotify's events only those of names are asked for: processes write to nodes in
//! `/dev` all the time, of which the general watchers of folders hear too.

use rustix::{
    fd::OwnedFd,
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    io,
    mem::MaybeUninit,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
};
use tokio::sync::Notify;

/// Changes of names in a folder, and its end.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Size of the buffer for events; one event has at most 272 bytes.
const BUFFER: usize = 4096;
/// Stack of the thread that waits for events.
const STACK: usize = 64 * 1024;

/// Watch of folders. A thread waits for events as long as the process runs.
#[derive(Debug)]
pub struct FolderWatch {
    inotify: Arc<OwnedFd>,
    changes: Arc<Notify>,
    /// Numbers of the watches.
    watched: Mutex<BTreeSet<i32>>,
}

impl FolderWatch {
    /// Returns a watch of no folder.
    pub fn new() -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let changes = Arc::new(Notify::new());
        let (events, told) = (inotify.clone(), changes.clone());
        thread::Builder::new()
            .name("folders".to_owned())
            .stack_size(STACK)
            .spawn(move || read_events(&events, &told))?;
        Ok(Self {
            inotify,
            changes,
            watched: Mutex::default(),
        })
    }

    /// Watches these folders and no others. Returns true if one was not watched before, so that a change of it may have been
    /// missed. A folder that is gone is none. Blocks.
    pub fn set(&self, folders: &BTreeSet<PathBuf>) -> io::Result<bool> {
        let mut watched = BTreeSet::new();
        for folder in folders {
            match inotify::add_watch(&*self.inotify, folder, CHANGES) {
                Ok(number) => _ = watched.insert(number),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut before = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !watched.is_subset(&before);
        for number in before.difference(&watched) {
            // The watch of a folder that is gone has ended by itself.
            _ = inotify::remove_watch(&*self.inotify, *number);
        }
        *before = watched;
        Ok(is_new)
    }

    /// Waits for a change.
    pub async fn changed(&self) {
        self.changes.notified().await;
    }
}

/// Reads events, and tells of each that is a change. Returns only if the kernel gives no more; the folders are polled then.
fn read_events(inotify: &OwnedFd, changes: &Notify) {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut events = Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            // The end of a watch that was removed is none.
            Ok(event) if event.events() == ReadFlags::IGNORED => {}
            Ok(_) => changes.notify_one(),
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
