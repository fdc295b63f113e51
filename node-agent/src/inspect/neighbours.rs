//! Other device plugins and DRA drivers, found by their sockets in the kubelet's folders.

use crate::plugin::socket::other_sockets;
use std::{
    fs,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

/// Folders below the kubelet's root.
const REGISTRY: &str = "plugins_registry";
const PLUGINS: &str = "plugins";

/// Most entries of a folder that are read.
const MAX_ENTRIES: usize = 1024;

/// Programs beside gpunode that offer devices to the kubelet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// File names of the sockets of other device plugins, in order.
    pub plugins: Vec<String>,
    /// Names of the DRA drivers, in order.
    pub dra_drivers: Vec<String>,
}

impl Neighbours {
    /// Finds the neighbours. Blocks.
    pub fn find(kubelet_root: &Path, device_plugins: &Path) -> Self {
        let plugins = other_sockets(device_plugins);
        Self {
            plugins: plugins
                .into_keys()
                .map(|name| name.to_string_lossy().into_owned())
                .collect(),
            dra_drivers: dra_drivers(kubelet_root),
        }
    }
}

/// Returns the drivers with a socket for the kubelet and one for their registration. The kubelet's library for drivers
/// (`k8s.io/dynamic-resource-allocation/kubeletplugin`) names them `plugins/DRIVER/dra.sock` and
/// `plugins_registry/DRIVER-reg.sock`, or with the pod's UID `dra-UID.sock` and `DRIVER-UID-reg.sock`; other kinds of plugins
/// have no `dra` socket.
fn dra_drivers(kubelet_root: &Path) -> Vec<String> {
    let registrations = sockets(&kubelet_root.join(REGISTRY));
    let is_registered = |driver: &str| {
        let names = registrations.iter();
        let mut ends = names.filter_map(|name| name.strip_prefix(driver)?.strip_suffix("-reg.sock"));
        ends.any(|uid| uid.is_empty() || uid.starts_with('-'))
    };
    let serves = |folder: &Path| sockets(folder).iter().any(|name| name.starts_with("dra"));
    let mut drivers: Vec<String> = entries(&kubelet_root.join(PLUGINS))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(driver, folder): &(String, PathBuf)| is_registered(driver) && serves(folder))
        .map(|(driver, _)| driver)
        .collect();
    drivers.sort();
    drivers
}

/// Returns the file names of the sockets in a folder.
fn sockets(folder: &Path) -> Vec<String> {
    entries(folder)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).take(MAX_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn neighbours_are_told_by_their_sockets() {
        let kubelet = tempfile::tempdir().unwrap();
        let find = || Neighbours::find(kubelet.path(), &kubelet.path().join("device-plugins"));
        assert_eq!(find(), Neighbours::default());
        let bind = |path: &str| {
            let path = kubelet.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            drop(UnixListener::bind(path).unwrap());
        };
        for socket in [
            "device-plugins/kubelet.sock",
            "device-plugins/gpunode-a-1.sock",
            "device-plugins/nvidia-gpu.sock",
            "plugins/gpu.nvidia.com/dra.sock",
            "plugins_registry/gpu.nvidia.com-reg.sock",
            "plugins/net.example.com/dra-0c1b.sock",
            "plugins_registry/net.example.com-0c1b-reg.sock",
            // No longer registered.
            "plugins/old.example.com/dra.sock",
            // For storage.
            "plugins/csi.example.com/csi.sock",
            "plugins_registry/csi.example.com-reg.sock",
        ] {
            bind(socket);
        }
        let expected = Neighbours {
            plugins: vec!["nvidia-gpu.sock".to_owned()],
            dra_drivers: vec!["gpu.nvidia.com".to_owned(), "net.example.com".to_owned()],
        };
        assert_eq!(find(), expected);
    }
}
