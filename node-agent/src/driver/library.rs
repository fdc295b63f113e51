//! Finds the NVIDIA driver's library on the host.

use std::{
    fs,
    path::{Path, PathBuf},
};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Folders below a driver root, in the search order of NVIDIA's container tools.
const FOLDERS: [&str; 8] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
];

/// Mount point of a containerised driver's root on the host.
pub const DRIVER_CONTAINER: &str = "run/nvidia/driver";

/// Limit on symbolic links in a row, above that of any distribution.
const MAX_LINKS: usize = 16;

/// Returns the roots to search: the given one, or that of a containerised driver and then the host's own.
pub fn roots(host_root: &Path, driver_root: Option<&Path>) -> Vec<PathBuf> {
    match driver_root {
        Some(root) => vec![root.to_owned()],
        None => vec![host_root.join(DRIVER_CONTAINER), host_root.to_owned()],
    }
}

/// Joins the roots with "and".
pub fn join_roots(roots: &[PathBuf]) -> String {
    let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
    roots.join(" and ")
}

/// Returns the NVML library below the first of `roots` that has one.
pub fn find_library(roots: &[PathBuf]) -> Option<PathBuf> {
    roots.iter().find_map(|root| {
        FOLDERS
            .iter()
            .map(|folder| root.join(folder).join(LIBRARY))
            .find_map(|path| resolve(root, path))
    })
}

/// Follows symbolic links of the file itself. Distributions with alternatives link to absolute paths, which count from
/// the driver's root, not from this container's.
fn resolve(root: &Path, mut path: PathBuf) -> Option<PathBuf> {
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else {
            return path.is_file().then_some(path);
        };
        path = match target.strip_prefix("/") {
            Ok(absolute) => root.join(absolute),
            Err(_) => path.parent()?.join(target),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_containerised_driver_comes_before_the_hosts() {
        let host = tempfile::tempdir().unwrap();
        let roots = roots(host.path(), None);
        assert_eq!(find_library(&roots), None);
        let put = |folder: &str| {
            let folder = host.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(LIBRARY), "").unwrap();
            folder.join(LIBRARY)
        };
        let own = put("usr/lib/x86_64-linux-gnu");
        assert_eq!(find_library(&roots), Some(own));
        let containerised = put("run/nvidia/driver/usr/lib64");
        assert_eq!(find_library(&roots), Some(containerised));
    }

    #[test]
    fn links_lead_below_the_driver_root() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib64");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.path().join("etc/alternatives")).unwrap();
        symlink("/etc/alternatives/nvml", folder.join(LIBRARY)).unwrap();
        symlink(
            "/usr/lib64/libnvidia-ml.so.580",
            root.path().join("etc/alternatives/nvml"),
        )
        .unwrap();
        let roots = [root.path().to_owned()];
        assert_eq!(find_library(&roots), None);
        fs::write(folder.join("libnvidia-ml.so.580"), "").unwrap();
        assert_eq!(find_library(&roots), Some(folder.join("libnvidia-ml.so.580")));
    }

    #[test]
    fn a_circle_of_links_ends() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("lib64")).unwrap();
        symlink(LIBRARY, root.path().join("lib64").join(LIBRARY)).unwrap();
        assert_eq!(find_library(&[root.path().to_owned()]), None);
    }
}
