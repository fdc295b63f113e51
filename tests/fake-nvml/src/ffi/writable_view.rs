//! A second, writable way into a folder that is mounted read-only.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::CWD,
    mount::{OpenTreeFlags, open_tree},
};

/// `struct mount_attr` of `linux/mount.h`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;

/// A mount that nobody else sees, and that ends with this value. Making one takes CAP_SYS_ADMIN, which privileged
/// containers have.
pub(crate) struct WritableView {
    mount: OwnedFd,
}

impl WritableView {
    /// A view of `dir`.
    pub(crate) fn of(dir: &Path) -> io::Result<Self> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let mount = open_tree(CWD, dir, flags)?;
        let attributes = MountAttributes {
            set: 0,
            clear: READ_ONLY,
            propagation: 0,
            user_namespace: 0,
        };
        // SAFETY: the descriptor is open, the path is an empty string with a NUL at its end, and the kernel reads as
        // many bytes of the structure as it is told there are.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                mount.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<MountAttributes>(),
            )
        };
        if result == 0 {
            Ok(WritableView { mount })
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// A path that leads through the mount, while this value lives.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.mount.as_raw_fd()))
    }
}
