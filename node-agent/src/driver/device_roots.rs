//! Finds device nodes below the folders of the host that can have them.

use crate::driver::{hardware_probe::DriverRoots, library::resolve_below};
use std::path::{Path, PathBuf};

/// Folders of the host below which each device node is searched, in this order: the one of `--dev-root` unless that is `/`, the root of
/// the driver in use, and `/`. A driver container makes nodes in a `dev` of its own (NVIDIA/gpu-operator#1741), but the kernel makes
/// those of graphics in the host's, and GPUDirect Storage too (NVIDIA/nvidia-container-toolkit#1150).
pub struct DeviceRoots(Vec<DeviceRoot>);

struct DeviceRoot {
    /// Path on the host.
    root: PathBuf,
    /// The same folder in this container, without links; none if the host has no such folder.
    mounted: Option<PathBuf>,
}

impl DeviceRoots {
    /// Returns the folders of a host. Blocks.
    pub fn of(roots: &DriverRoots) -> Self {
        let host = Path::new("/");
        let driver = roots.find().map(|driver| driver.root);
        let first = (roots.dev_root != host).then(|| roots.dev_root.clone());
        let second = driver.filter(|root| root != host && *root != roots.dev_root);
        let found = first.into_iter().chain(second).chain([host.to_owned()]);
        let found = found.map(|root| DeviceRoot {
            mounted: resolve_below(&roots.host_root, &root),
            root,
        });
        Self(found.collect())
    }

    /// Returns the folders as paths on the host.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.iter().map(|root| root.root.clone()).collect()
    }

    /// Returns where `path` of a container can be in this one.
    pub fn mounted(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        self.0.iter().filter_map(move |root| root.mounted(path))
    }

    /// Returns the path on the host of the first file at `path` of a container that `accepts` accepts, which gets its path in this
    /// container. Blocks.
    pub fn find(&self, path: &str, accepts: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let mut roots = self.0.iter();
        let root = roots.find(|root| root.mounted(path).is_some_and(|path| accepts(&path)))?;
        Some(root.root.join(path.trim_start_matches('/')))
    }
}

impl DeviceRoot {
    fn mounted(&self, path: &str) -> Option<PathBuf> {
        let mounted = self.mounted.as_ref()?;
        Some(mounted.join(path.trim_start_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_node_is_searched_below_the_flags_root_the_drivers_and_the_hosts() {
        let host = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        let find = |dev_root: &str, path: &str| {
            let roots = DriverRoots {
                dev_root: dev_root.into(),
                ..DriverRoots::of_host(host.path())
            };
            DeviceRoots::of(&roots).find(path, Path::exists)
        };
        make("dev/nvidia0");
        make("dev/dri/card0");
        assert_eq!(find("/", "/dev/nvidia0"), Some("/dev/nvidia0".into()));
        // Nodes of a driver that is not in use do not count.
        make("run/nvidia/driver/dev/nvidia0");
        assert_eq!(find("/", "/dev/nvidia0"), Some("/dev/nvidia0".into()));
        make("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1");
        assert_eq!(find("/", "/dev/nvidia0"), Some("/run/nvidia/driver/dev/nvidia0".into()));
        assert_eq!(find("/", "/dev/dri/card0"), Some("/dev/dri/card0".into()));
        make("srv/dev/nvidia0");
        assert_eq!(find("/srv", "/dev/nvidia0"), Some("/srv/dev/nvidia0".into()));
        assert_eq!(find("/srv", "/dev/dri/card0"), Some("/dev/dri/card0".into()));
        assert_eq!(find("/nowhere", "/dev/nvidia1"), None);
    }
}
