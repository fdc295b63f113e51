//! Files below the driver's root, with their paths on the host and in containers.

use crate::driver::library::{FoundDriver, resolve_below};
use gpunode_cdi::HostFile;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Limit on the entries of a folder, above that of any distribution's folder of libraries.
const MAX_ENTRIES: usize = 20_000;

/// Root of the driver. All its paths are absolute ones below the root.
pub struct DriverFolder<'a>(pub &'a FoundDriver);

impl DriverFolder<'_> {
    /// Returns the path in this container of what `path` leads to; none if it leads nowhere. Blocks.
    pub fn resolve(&self, path: &str) -> Option<PathBuf> {
        resolve_below(&self.0.mounted, Path::new(path))
    }

    /// Returns the path below the root of `resolved`, which is a path in this container.
    pub fn below(&self, resolved: &Path) -> Option<String> {
        let below = resolved.strip_prefix(&self.0.mounted).ok()?;
        Path::new("/").join(below).to_str().map(str::to_owned)
    }

    /// Returns what `path` leads to, with `container` as its path in containers. A runtime resolves links from the host's root
    /// and not from the driver's, so that the path on the host has none. Blocks.
    pub fn file(&self, path: &str, container: &str) -> Option<HostFile> {
        let resolved = self.resolve(path)?;
        Some(HostFile {
            host: self.on_host(&resolved)?,
            container: container.to_owned(),
        })
    }

    /// Returns the path on the host of `resolved`, which is a path in this container.
    pub fn on_host(&self, resolved: &Path) -> Option<String> {
        let below = resolved.strip_prefix(&self.0.mounted).ok()?;
        self.0.root.join(below).to_str().map(str::to_owned)
    }

    /// Returns the names in a folder, in order; none if it does not exist. Blocks.
    pub fn names(&self, folder: &str) -> Vec<String> {
        self.resolve(folder).map(|folder| names(&folder)).unwrap_or_default()
    }
}

/// Returns the names in a folder of this container, in order; none if it does not exist. Blocks.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let names = entries.take(MAX_ENTRIES).map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(OsString::into_string).filter_map(Result::ok).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_counts_from_the_drivers_root_and_the_path_on_the_host_has_none() {
        let host = tempfile::tempdir().unwrap();
        let mounted = host.path().join("run/nvidia/driver");
        fs::create_dir_all(mounted.join("usr/lib")).unwrap();
        fs::write(mounted.join("usr/lib/a"), "").unwrap();
        symlink("/usr/lib", mounted.join("lib")).unwrap();
        let driver = FoundDriver {
            root: "/run/nvidia/driver".into(),
            library: mounted.join("usr/lib/a"),
            mounted,
        };
        let folder = DriverFolder(&driver);
        let file = folder.file("/lib/a", "/lib/a").unwrap();
        assert_eq!(
            (file.host.as_str(), file.container.as_str()),
            ("/run/nvidia/driver/usr/lib/a", "/lib/a")
        );
        assert_eq!(folder.below(&driver.library).as_deref(), Some("/usr/lib/a"));
        assert_eq!(folder.names("/lib"), ["a"]);
        assert_eq!(folder.file("/lib/b", "/lib/b"), None);
        assert!(folder.names("/nowhere").is_empty());
    }
}
