//! The hook `disable-device-node-modification`: keeps `nvidia-smi` and other programs of a container from making the device nodes
//! of all GPUs. They make them where the driver's parameters say so (source: NVIDIA/nvidia-container-toolkit,
//! `cmd/nvidia-cdi-hook/disable-device-node-modification`).

use crate::{
    container_root::{ContainerRoot, path_of},
    hook_error::HookError,
};
use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags, openat},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsmount, fsopen, mount_remount, move_mount, open_tree, unmount,
    },
};
use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
};

const ALLOWED: &str = "ModifyDeviceFiles: 1";
const FORBIDDEN: &str = "ModifyDeviceFiles: 0";

/// Returns the driver's parameters without the permission to make device nodes; `None` if they do not give it.
pub fn without_device_files(params: &str) -> Option<String> {
    params.lines().any(|line| line == ALLOWED).then(|| {
        params
            .lines()
            .flat_map(|line| [if line == ALLOWED { FORBIDDEN } else { line }, "\n"])
            .collect()
    })
}

/// Mounts a read-only file with `content` over the file at `path` of a container; does nothing if the container has none.
pub fn cover(root: &ContainerRoot, path: &Path, content: &str) -> Result<(), HookError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let cover = || -> io::Result<()> {
        let (file, folder) = (root.handle(path)?, root.handle(folder)?);
        let mount = mounted_file(&folder, content.as_bytes())?;
        attach(&mount, &file)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        Ok(mount_remount(path_of(&mount), flags, "")?)
    };
    match cover() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|error| HookError::container("mount a file over", path, error)),
    }
}

/// Returns a mount of one file with `content`, not yet attached. Its file system is in memory and never had a path in the container:
/// no scratch folder stays behind.
fn mounted_file(folder: &OwnedFd, content: &[u8]) -> io::Result<OwnedFd> {
    let file_system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&file_system)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&file_system, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
    File::from(openat(&mount, "params", flags, mode)?).write_all(content)?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(&mount, "params", clone) {
        // Before Linux 6.15, a part of a mount can be had only while that is attached somewhere.
        Err(Errno::INVAL) => {
            attach(&mount, folder)?;
            let file = open_tree(&mount, "params", clone);
            unmount(path_of(&mount), UnmountFlags::DETACH)?;
            Ok(file?)
        }
        file => Ok(file?),
    }
}

fn attach(mount: &OwnedFd, place: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_root::tests::in_mount_namespace;
    use std::fs;

    #[test]
    fn the_permission_is_taken_away_and_the_rest_stays() {
        let params = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n";
        assert_eq!(
            without_device_files(params).unwrap(),
            "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n"
        );
        for params in [
            "",
            "ModifyDeviceFiles: 0\n",
            " ModifyDeviceFiles: 1\n",
            "ModifyDeviceFiles: 11\n",
        ] {
            assert_eq!(without_device_files(params), None, "{params}");
        }
    }

    #[test]
    fn a_container_without_the_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = ContainerRoot::open(folder.path()).unwrap();
        cover(&root, Path::new("/proc/driver/nvidia/params"), "x").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    #[ignore = "needs root for a mount namespace"]
    fn the_file_of_the_container_is_covered_and_cannot_be_changed() {
        let name = "driver_params::tests::the_file_of_the_container_is_covered_and_cannot_be_changed";
        in_mount_namespace(name, cover_a_file);
    }

    fn cover_a_file() {
        let container = tempfile::tempdir().unwrap();
        let folder = container.path().join("proc/driver/nvidia");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("version"), "580").unwrap();
        fs::write(folder.join("params"), "ModifyDeviceFiles: 1\n").unwrap();
        // Links of an image lead to places below its root.
        std::os::unix::fs::symlink("/proc/driver", container.path().join("link")).unwrap();
        let root = ContainerRoot::open(container.path()).unwrap();
        cover(&root, Path::new("/link/nvidia/params"), "ModifyDeviceFiles: 0\n").unwrap();
        assert_eq!(
            fs::read_to_string(folder.join("params")).unwrap(),
            "ModifyDeviceFiles: 0\n"
        );
        let error = fs::write(folder.join("params"), "ModifyDeviceFiles: 1\n").unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
        // The other files are in sight, and nothing was added.
        assert_eq!(fs::read_to_string(folder.join("version")).unwrap(), "580");
        assert_eq!(fs::read_dir(container.path()).unwrap().count(), 2);
        unmount(folder.join("params"), UnmountFlags::empty()).unwrap();
        assert_eq!(
            fs::read_to_string(folder.join("params")).unwrap(),
            "ModifyDeviceFiles: 1\n"
        );
    }
}
