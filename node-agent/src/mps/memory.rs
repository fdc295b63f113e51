//! File systems in memory for the folders that containers write to: what they leave there is theirs to fill, and the host's
//! `/run` is not. Where `--mps-dir` is mounted with propagation, the host and its containers see them under the same path;
//! they outlive this process, and another supervisor takes them over.

use super::device_folder::DeviceFolder;
use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    system::sysinfo,
};
use std::{ffi::CString, fs, io, os::unix::fs::MetadataExt as _, path::Path};

/// Sockets, pipes, locks and a process id.
const PIPE: &str = "mode=0755,size=16m,nr_inodes=512";
/// Part of the node's memory that the clients of a device may fill through `/dev/shm` (`docs/sharing.md`).
const SHM_PART: u64 = 8;
/// What `/dev/shm` has at least, as that of containers.
const MIN_SHM: u64 = 64 * 1024 * 1024;
/// A file without a byte in it takes memory, too.
const SHM_FILES: u32 = 16 * 1024;
/// Daemons have the host's root: no link of a client leads them there. Kernels before 5.10 know nothing of that flag.
const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOSYMFOLLOW);
/// Mounts on one folder that are taken away; there is one, unless somebody else made more.
const MAX_LAYERS: usize = 8;

/// Mounts what is not mounted yet on folders that are there; blocks. Each mount is one step: killed in between, the rest is
/// done the next time.
pub fn provide(place: &DeviceFolder) -> io::Result<()> {
    let memory = sysinfo();
    let shm_size = shm_size(memory.totalram.saturating_mul(memory.mem_unit.into()));
    let shm = format!("mode=1777,size={shm_size},nr_inodes={SHM_FILES}");
    for (folder, data) in [(place.pipe(), PIPE.to_owned()), (place.shm(), shm)] {
        if !is_mounted(&folder, place)? {
            mount("gpunode-mps", &folder, "tmpfs", FLAGS, CString::new(data)?.as_c_str())?;
        }
    }
    Ok(())
}

/// Bytes of `/dev/shm` on a node with that much memory.
fn shm_size(memory: u64) -> u64 {
    (memory / SHM_PART).max(MIN_SHM)
}

/// Unmounts both; blocks. They leave every place under this path, here and where mounts propagate to, also while somebody
/// uses them: containers that have one mounted elsewhere keep it until they end, and nobody waits for them.
pub fn remove(place: &DeviceFolder) -> io::Result<()> {
    for folder in [place.pipe(), place.shm()] {
        for _ in 0..MAX_LAYERS {
            match unmount(&folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                // Nothing is mounted there, or there is no such folder.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn is_mounted(folder: &Path, place: &DeviceFolder) -> io::Result<bool> {
    Ok(fs::metadata(folder)?.dev() != fs::metadata(place.folder())?.dev())
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
