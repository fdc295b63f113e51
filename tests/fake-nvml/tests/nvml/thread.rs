//! Threads that see or may do less than the process.

#![expect(unsafe_code, reason = "namespaces are a thread's own")]

use std::{path::Path, thread};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount},
    process::Uid,
    thread::{UnshareFlags, set_thread_res_uid, unshare_unsafe},
};

/// Runs `body` where `dir` is mounted read-only.
pub(crate) fn with_read_only(dir: &Path, body: impl FnOnce() + Send) {
    in_a_thread(|| {
        // SAFETY: neither namespace nor root folder is relied on by anything in this thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount_bind(dir, dir).unwrap();
        mount_remount(dir, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        body();
    });
}

/// Runs `body` without root's rights.
pub(crate) fn as_nobody(body: impl FnOnce() + Send) {
    in_a_thread(|| {
        let nobody = Uid::from_raw(65534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
        body();
    });
}

/// Runs `body` in a thread, whose settings end with it.
fn in_a_thread(body: impl FnOnce() + Send) {
    thread::scope(|scope| scope.spawn(body).join()).unwrap();
}
