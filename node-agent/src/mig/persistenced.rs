//! Makes the socket of nvidia-persistenced reachable for NVML.
//!
//! NVML switches persistence mode through the daemon, whose socket it looks up at `/var/run/nvidia-persistenced` of this container
//! (NVIDIA/mig-parted#259). That is a link of the agent's image to a link in the state folder, which leads to the socket's folder
//! below the host's root: that of the host, or that of a driver container.

use crate::driver::{hardware_probe::DriverRoots, library::resolve_below};
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};
use tracing::warn;

/// Name of the link in the state folder.
const LINK: &str = "nvidia-persistenced";
/// Folder of the socket below the root of the driver, or of the host.
const FOLDER: &str = "run/nvidia-persistenced";

/// Lets the link in the state folder lead to the folder of the socket, if the node has one. Blocks.
pub fn link(roots: &DriverRoots, state_dir: &Path) {
    let Some(folder) = folder(roots) else { return };
    let link = state_dir.join(LINK);
    if let Err(error) = replace_link(&folder, &link) {
        warn!(%error, link = %link.display(), "cannot make nvidia-persistenced reachable; a GPU that it keeps cannot change its MIG mode");
    }
}

/// Returns the folder of the socket in this container, without links.
fn folder(roots: &DriverRoots) -> Option<PathBuf> {
    let driver = roots.find().map(|driver| driver.mounted);
    let mut found = driver.into_iter().chain([roots.host_root.clone()]);
    let socket = found.find_map(|root| resolve_below(&root, &Path::new(FOLDER).join("socket")))?;
    Some(socket.parent()?.to_owned())
}

fn replace_link(to: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|known| known == to) {
        return Ok(());
    }
    let new = link.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(to, &new)?;
    fs::rename(new, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_leads_to_the_socket_of_the_driver_in_use() {
        let host = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        let roots = DriverRoots::of_host(host.path());
        let make = |path: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        let linked = || {
            link(&roots, state.path());
            let to = fs::read_link(state.path().join(LINK)).ok()?;
            Some(to.strip_prefix(host.path()).unwrap().to_owned())
        };
        make("usr/lib64/libnvidia-ml.so.1");
        assert_eq!(linked(), None, "no daemon");
        make("run/nvidia-persistenced/socket");
        assert_eq!(linked(), Some("run/nvidia-persistenced".into()));
        make("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1");
        assert_eq!(
            linked(),
            Some("run/nvidia-persistenced".into()),
            "a driver container may share it"
        );
        make("run/nvidia/driver/run/nvidia-persistenced/socket");
        for _ in 0..2 {
            assert_eq!(linked(), Some("run/nvidia/driver/run/nvidia-persistenced".into()));
        }
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1);
    }
}
