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
/// SELinux label of files that any container may use. Without it, a container may not open the daemon's sockets; NVIDIA's MPS
/// daemon sets the same (`unprivilegedContainerSELinuxLabel` in k8s-device-plugin's `cmd/mps-control-daemon/mps/daemon.go`).
const SELINUX_LABEL: &str = "system_u:object_r:container_file_t:s0";
/// File below the host's root that exists while SELinux is on. A kernel without it refuses a mount with a label.
const SELINUX: &str = "sys/fs/selinux/enforce";
/// Most mounts to remove from one folder; there is one, unless another process added more.
const MAX_LAYERS: usize = 8;

/// Adds the missing mounts to existing folders; blocks. After an abort in between, the next call adds the rest.
pub fn mount_missing(folder: &DeviceFolder, host_root: &Path) -> io::Result<()> {
    let memory = sysinfo();
    let shm_size = shm_size(memory.totalram.saturating_mul(memory.mem_unit.into()));
    let shm = format!("mode=1777,size={shm_size},nr_inodes={MAX_SHM_FILES}");
    for (path, data) in [(folder.pipe(), PIPE.to_owned()), (folder.shm(), shm)] {
        if !is_mounted(&path, folder)? {
            let data = CString::new(labelled(data, host_root))?;
            mount("gpunode-mps", &path, "tmpfs", FLAGS, data.as_c_str())?;
        }
    }
    Ok(())
}

/// Adds the label of all files to the options of a mount, if the host has SELinux on.
fn labelled(options: String, host_root: &Path) -> String {
    if host_root.join(SELINUX).exists() {
        format!("{options},context={SELINUX_LABEL}")
    } else {
        options
    }
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
    fn files_get_the_label_of_containers_where_selinux_is_on() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(labelled(PIPE.to_owned(), host.path()), PIPE);
        let file = host.path().join(SELINUX);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "0").unwrap();
        let expected = "mode=0755,size=16m,nr_inodes=512,context=system_u:object_r:container_file_t:s0";
        assert_eq!(labelled(PIPE.to_owned(), host.path()), expected);
    }

    #[test]
    fn shared_memory_is_a_part_of_the_nodes_and_no_less_than_containers_have() {
        const GIB: u64 = 1024 * 1024 * 1024;
        assert_eq!([0, GIB / 4, 512 * GIB].map(shm_size), [MIN_SHM, MIN_SHM, 64 * GIB]);
    }
}
