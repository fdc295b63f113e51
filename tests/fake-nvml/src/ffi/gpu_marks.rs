//! Marks of the processes that have a GPU open.
//!
//! A real process has the GPU's device node open. Here it has a lock on one byte of the scenario file per GPU: it needs
//! no right to write, others can ask for it, and it ends with the process however that ends.

use std::{fs::File, io, os::fd::AsRawFd, path::Path};

use gpunode_scenario::SCENARIO_FILE;

/// The marks of this process, which end with this value.
pub(crate) struct GpuMarks {
    file: File,
}

impl GpuMarks {
    /// Opens the file of the node whose library is in `dir`, without any mark.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let file = File::open(dir.join(SCENARIO_FILE))?;
        Ok(GpuMarks { file })
    }

    /// Marks a GPU as open in this process.
    pub(crate) fn mark(&self, gpu: u32) -> io::Result<()> {
        self.lock(gpu, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
    }

    /// Returns true if another process has the GPU open.
    pub(crate) fn is_open_elsewhere(&self, gpu: u32) -> io::Result<bool> {
        // Asking what is in the way of a lock takes none.
        let found = self.lock(gpu, libc::F_OFD_GETLK, libc::F_WRLCK)?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
    }

    fn lock(&self, gpu: u32, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::flock> {
        let mut lock = libc::flock {
            l_type: libc::c_short::try_from(kind).unwrap_or_default(),
            l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
            l_start: libc::off_t::from(gpu),
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the kernel reads and writes one structure.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) };
        if result == 0 {
            Ok(lock)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
