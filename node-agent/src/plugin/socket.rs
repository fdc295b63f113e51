//! Paths of the agent's sockets, removal of stale ones, and the sockets of others.

use crate::store::file_id::FileId;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    hash::{BuildHasher as _, RandomState},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};
use tracing::{info, warn};

/// File name of the kubelet's own socket.
const KUBELET_SOCKET: &str = "kubelet.sock";
/// Prefix of the file names of gpunode's sockets.
const SOCKET_PREFIX: &str = "gpunode-";
/// Maximum bytes in the path of a unix socket on Linux (`sun_path` without its NUL).
pub const MAX_SOCKET_PATH: usize = 107;
/// Maximum characters of the resource's name in the file name of its socket.
const MAX_NAME_PART: usize = 24;

/// Returns a unique path, never used by an earlier server: the kubelet may still know the old path.
pub fn socket_path(directory: &Path, resource: &str) -> PathBuf {
    let unique = RandomState::new().hash_one(resource);
    let name: String = resource
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
        .take(MAX_NAME_PART)
        .collect();
    directory.join(format!("{SOCKET_PREFIX}{name}-{unique:016x}.sock"))
}

/// Removes the sockets of a killed agent. The caller must hold the node's lock: then no other agent serves on such a
/// socket.
pub fn remove_stale_sockets(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with(SOCKET_PREFIX) && name.ends_with(".sock");
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if ours && is_socket {
            match fs::remove_file(entry.path()) {
                Ok(()) => info!(socket = %entry.path().display(), "removed the socket of a killed agent"),
                Err(error) => {
                    warn!(socket = %entry.path().display(), %error, "cannot remove the socket of a killed agent");
                }
            }
        }
    }
}

/// Returns the sockets of other plugins by file name.
pub fn other_sockets(directory: &Path) -> BTreeMap<OsString, Option<FileId>> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let others = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_known = name.starts_with(SOCKET_PREFIX) || name == KUBELET_SOCKET;
        !is_known && entry.file_type().is_ok_and(|kind| kind.is_socket())
    });
    others
        .map(|entry| (entry.file_name(), FileId::of(&entry.path())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_paths_are_unique_and_fit_the_kubelets_folder() {
        let folder = Path::new("/var/lib/kubelet/device-plugins");
        let long = format!("{}.example.com/{}", "a".repeat(200), "b".repeat(63));
        let path = socket_path(folder, &long);
        assert!(path.as_os_str().len() <= MAX_SOCKET_PATH, "{}", path.display());
        assert_ne!(path, socket_path(folder, &long));
        let short = socket_path(folder, "nvidia.com/gpu");
        assert!(
            short.display().to_string().contains("/gpunode-nvidia.com-gpu-"),
            "{}",
            short.display()
        );
    }

    #[test]
    fn only_sockets_of_gpunode_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for socket in ["gpunode-a-1.sock", "nvidia-gpu.sock", "kubelet.sock"] {
            drop(std::os::unix::net::UnixListener::bind(at(socket)).unwrap());
        }
        fs::write(at("gpunode-file.sock"), "").unwrap();
        let others = other_sockets(folder.path());
        assert_eq!(others.keys().collect::<Vec<_>>(), ["nvidia-gpu.sock"]);
        remove_stale_sockets(folder.path());
        assert!(!at("gpunode-a-1.sock").exists());
        assert!(at("nvidia-gpu.sock").exists() && at("kubelet.sock").exists() && at("gpunode-file.sock").exists());
        assert_eq!(other_sockets(folder.path()), others);
    }
}
