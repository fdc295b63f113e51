//! Mounts a tmpfs on each folder that containers write to, so that they cannot fill the host's `/run`. If `--mps-dir` is mounted
//! with propagation, the host and its containers see the mounts under the same path. The mounts outlive this process, and
//! another supervisor takes them over.

use super::device_folder::DeviceFolder;
use rustix::{
    io::Errno,
    mount::{self, MountFlags, UnmountFlags, mount},
    system::sysinfo,
};
use std::{ffi::CString, fs, io, os::unix::fs::MetadataExt as _, path::Path};

/// Options for sockets, pipes, locks and a PID file.
const PIPE: &str = "mode=0755,size=16m,nr_inodes=512";
/// Divisor of the node's memory: the share that clients of a device may fill through `/dev/shm` (`docs/sharing.md`).
const SHM_DIVISOR: u64 = 8;
/// Smallest size of `/dev/shm` in bytes, the default of containers.
const MIN_SHM: u64 = 64 * 1024 * 1024;
/// Most files in `/dev/shm`: an empty file takes memory as well.
const MAX_SHM_FILES: u32 = 16 * 1024;
/// Options of the mounts. Daemons see the host's root, so they must not follow links of a client; kernels before 5.10 ignore
/// that flag.
const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOSYMFOLLOW);
/// Most mounts to remove from one folder; there is one, unless another process added more.
const MAX_LAYERS: usize = 8;

/// Adds the missing mounts to existing folders; blocks. After an abort in between, the next call adds the rest.
pub fn mount_missing(folder: &DeviceFolder) -> io::Result<()> {
    let memory = sysinfo();
    let shm_size = shm_size(memory.totalram.saturating_mul(memory.mem_unit.into()));
    let shm = format!("mode=1777,size={shm_size},nr_inodes={MAX_SHM_FILES}");
    for (path, data) in [(folder.pipe(), PIPE.to_owned()), (folder.shm(), shm)] {
        if !is_mounted(&path, folder)? {
            mount("gpunode-mps", &path, "tmpfs", FLAGS, CString::new(data)?.as_c_str())?;
        }
    }
    Ok(())
}

/// Returns the size of `/dev/shm` in bytes, for a node with `memory` bytes.
fn shm_size(memory: u64) -> u64 {
    (memory / SHM_DIVISOR).max(MIN_SHM)
}

/// Unmounts both folders; blocks. They leave this path everywhere the mounts propagate to, even while in use: a container that
/// has one mounted elsewhere keeps it until it ends, and this call does not wait for it.
pub fn unmount(folder: &DeviceFolder) -> io::Result<()> {
    for path in [folder.pipe(), folder.shm()] {
        for _ in 0..MAX_LAYERS {
            match mount::unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                // No mount, or no such folder.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_mounted(path: &Path, folder: &DeviceFolder) -> io::Result<bool> {
    Ok(fs::metadata(path)?.dev() != fs::metadata(folder.path())?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_a_part_of_the_nodes_and_no_less_than_containers_have() {
        const GIB: u64 = 1024 * 1024 * 1024;
        assert_eq!([0, GIB / 4, 512 * GIB].map(shm_size), [MIN_SHM, MIN_SHM, 64 * GIB]);
    }
}
