//! Waiting for a file of a node to change.

use std::{
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{CreateFlags, WatchFlags, add_watch, init},
};

/// Interval between reads of the file if the kernel has no more inotify instances.
const WITHOUT_INOTIFY: Duration = Duration::from_millis(20);
/// Two threads may wait on one watch, and one of them takes the notice of both.
const SHARED_WATCH: Duration = Duration::from_secs(1);

/// A watch on a folder, from the moment it is made.
///
/// On the folder, as the file is replaced; and it works where the folder is mounted read-only,
/// since changes through another mount of the same files are seen too.
pub struct FolderWatch {
    inotify: Option<OwnedFd>,
}

impl FolderWatch {
    /// Begins to watch.
    pub fn new(dir: &Path) -> Self {
        let watch = || {
            let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            add_watch(
                &inotify,
                dir,
                WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE,
            )?;
            Ok::<_, rustix::io::Errno>(inotify)
        };
        FolderWatch { inotify: watch().ok() }
    }

    /// Returns when something in the folder may have changed since the last call, and at `deadline`.
    pub fn wait_until(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(inotify) = &self.inotify else {
            thread::sleep(left.min(WITHOUT_INOTIFY));
            return;
        };
        let left = left.min(SHARED_WATCH);
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // An interrupted wait is a wait that ended early, as nvml.h allows.
        let _ = poll(&mut [PollFd::new(inotify, PollFlags::IN)], Some(&timeout));
        let mut notices = [0; 4096];
        while rustix::io::read(inotify, &mut notices).is_ok_and(|read| read > 0) {}
    }
}
