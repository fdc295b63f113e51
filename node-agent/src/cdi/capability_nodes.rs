//! Makes the device nodes of MIG instances that the host lacks, or has with the number of another driver.
//!
//! The kernel module makes none: `nvidia-modprobe` does, which NVML calls beside itself. Where NVML runs in a container, as in that of
//! the agent, the host gets no node of an instance that it creates (NVIDIA/gpu-operator#117, NVIDIA/mig-parted#82).

use super::device_nodes::DeviceNodeFinder;
use crate::driver::device_roots::DeviceRoots;
use gpunode_gpu::Inventory;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};
use tracing::{info, warn};

/// Folder of the nodes.
const FOLDER: &str = "/dev/nvidia-caps";
/// Beginning of their names, before the minor number.
const NAME: &str = "nvidia-cap";
/// Node of the driver itself, beside which the others are.
const CONTROL: &str = "/dev/nvidiactl";
/// Table of major numbers below the host's root, and the driver's name in it.
const MAJORS: (&str, &str) = ("proc/devices", "nvidia-caps");
/// Mode of the nodes of instances (NVIDIA's MIG user guide, "Device Nodes and Capabilities").
const MODE: u32 = 0o444;

/// Makes the nodes of the MIG devices that are missing on the host, where the kernel has a number for them. One that cannot be made is
/// logged; the survey says what it means. Blocks.
pub fn make_missing(nodes: &DeviceNodeFinder<'_>, inventory: &Inventory) {
    let devices = inventory.gpus.iter().flat_map(|gpu| &gpu.mig_devices);
    let paths: BTreeSet<&str> = devices
        .flat_map(|mig| &mig.device_nodes)
        .map(String::as_str)
        .filter(|path| path.starts_with(FOLDER))
        .collect();
    if paths.is_empty() {
        return;
    }
    let major = major(nodes.host_root);
    if let Some(major) = major {
        for path in &paths {
            remove_stale(&nodes.roots, path, major);
        }
    }
    let missing: Vec<&str> = paths.into_iter().filter(|path| !exists(&nodes.roots, path)).collect();
    if missing.is_empty() {
        return;
    }
    let folder = nodes.roots.mounted(CONTROL).find(|path| path.exists());
    let (Some(control), Some(major)) = (folder, major) else {
        return;
    };
    for path in missing {
        match make(&control, path, |path, minor| make_node(path, major, minor)) {
            Ok(path) => info!(node = %path.display(), "made the device node of a MIG instance"),
            Err(error) => warn!(%error, node = path, "cannot make the device node of a MIG instance"),
        }
    }
}

fn exists(roots: &DeviceRoots, path: &str) -> bool {
    roots.mounted(path).any(|path| path.symlink_metadata().is_ok())
}

/// Removes the nodes of `path` with another number than the kernel's: the module got another major number when it was loaded again.
fn remove_stale(roots: &DeviceRoots, path: &str, major: u32) {
    let Ok(minor) = minor(path) else { return };
    for node in roots.mounted(path).filter(|node| is_other_device(node, major, minor)) {
        match fs::remove_file(&node) {
            Ok(()) => {
                info!(node = %node.display(), "removed the device node of a MIG instance: its number is not the driver's");
            }
            Err(error) => warn!(%error, node = %node.display(), "cannot remove a device node with a wrong number"),
        }
    }
}

fn is_other_device(node: &Path, major: u32, minor: u32) -> bool {
    node.symlink_metadata()
        .is_ok_and(|node| node.file_type().is_char_device() && node.rdev() != makedev(major, minor))
}

/// Returns the minor number in the name of a node.
fn minor(path: &str) -> io::Result<u32> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let minor = name.strip_prefix(NAME).and_then(|minor| minor.parse().ok());
    minor.ok_or_else(|| io::Error::other(format!("{path} is no name of such a node")))
}

/// Returns the major number of the driver's capabilities.
fn major(host_root: &Path) -> Option<u32> {
    let table = fs::read_to_string(host_root.join(MAJORS.0)).ok()?;
    let mut entries = table.lines().filter_map(|line| line.trim().split_once(' '));
    entries.find(|(_, name)| name.trim() == MAJORS.1)?.0.parse().ok()
}

/// Makes the node that containers know as `path` beside the node `control`. One that somebody makes meanwhile is as good.
fn make(control: &Path, path: &str, node: impl FnOnce(&Path, u32) -> io::Result<()>) -> io::Result<PathBuf> {
    let minor = minor(path)?;
    let name = path.rsplit('/').next().unwrap_or(path);
    let folder = control.with_file_name(FOLDER.trim_start_matches("/dev/"));
    match fs::create_dir(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = folder.join(name);
    match node(&path, minor) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(path),
    }
}

fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    mknodat(
        CWD,
        path,
        FileType::CharacterDevice,
        Mode::from_raw_mode(MODE),
        makedev(major, minor),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_the_number_of_another_driver_is_none_of_this_one() {
        let null = Path::new("/dev/null");
        assert!(!is_other_device(null, 1, 3));
        assert!(is_other_device(null, 237, 3) && is_other_device(null, 1, 4));
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_other_device(file.path(), 1, 3), "no device at all");
        assert!(!is_other_device(Path::new("/nowhere"), 1, 3));
        assert_eq!(minor("/dev/nvidia-caps/nvidia-cap66").unwrap(), 66);
    }

    #[test]
    fn nodes_are_made_beside_that_of_the_driver_with_the_kernels_number() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join("proc")).unwrap();
        fs::create_dir_all(host.path().join("dev")).unwrap();
        assert_eq!(major(host.path()), None);
        let table = "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n235 nvidia-caps-imex-channels\n";
        fs::write(host.path().join("proc/devices"), table).unwrap();
        assert_eq!(major(host.path()), Some(237));

        let control = host.path().join("dev/nvidiactl");
        let file = |path: &Path, minor: u32| {
            fs::OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(path)
                .map(|_| assert_eq!(minor, 66))
        };
        for _ in 0..2 {
            let made = make(&control, "/dev/nvidia-caps/nvidia-cap66", file).unwrap();
            assert_eq!(made, host.path().join("dev/nvidia-caps/nvidia-cap66"));
            assert!(made.exists());
        }
        assert!(make(&control, "/dev/nvidia-caps/other", file).is_err());
    }
}
