//! File systems in memory for the folders that containers write to: what they leave there is theirs to fill, and the host's
//! `/run` is not. Where `--mps-dir` is mounted with propagation, the host and its containers see them under the same path;
//! they outlive this process, and another supervisor takes them over.

use super::place::Place;
use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
};
use std::{ffi::CStr, fs, io, os::unix::fs::MetadataExt as _, path::Path};

/// As the `/dev/shm` of a host: half of the memory, which is what tmpfs allows where nothing is said.
const SHM: &CStr = c"mode=1777";
/// Sockets, pipes, locks and a process id.
const PIPE: &CStr = c"mode=0755,size=16m,nr_inodes=4k";
/// Mounts on one folder that are taken away; there is one, unless somebody else made more.
const MAX_LAYERS: usize = 8;

/// Mounts what is not mounted yet on folders that are there; blocks. Each mount is one step: killed in between, the rest is
/// done the next time.
pub fn provide(place: &Place) -> io::Result<()> {
    for (folder, data) in [(place.pipe(), PIPE), (place.shm(), SHM)] {
        if !is_mounted(&folder, place)? {
            mount("gpunode-mps", &folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, data)?;
        }
    }
    Ok(())
}

/// Unmounts both; blocks. They leave every place under this path, here and where mounts propagate to, also while somebody
/// uses them: containers that have one mounted elsewhere keep it until they end, and nobody waits for them.
pub fn remove(place: &Place) -> io::Result<()> {
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

fn is_mounted(folder: &Path, place: &Place) -> io::Result<bool> {
    Ok(fs::metadata(folder)?.dev() != fs::metadata(place.folder())?.dev())
}
