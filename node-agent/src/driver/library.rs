//! Finds the NVIDIA driver on the host: its root, its library, and its programs.
//!
//! Paths on the host are found below the host's root in this container. A root may be a file system of its own, such as that of a
//! driver container, or a folder with the driver's files alone, such as that of GKE. Symbolic links count from the root in which
//! they lie, as they do for the programs of that root.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Folders of the driver's libraries below a root, in the order of the search.
pub const LIBRARY_FOLDERS: [&str; 18] = [
    // Those of NVIDIA's container tools (nvidia-container-toolkit, `internal/lookup/library.go`).
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
    // Talos (siderolabs/extensions): `nvidia-gpu/nvidia-driver/userspace`; before 1.13 (siderolabs/extensions#940) and with
    // `nvidia-gpu/nvidia-container-toolkit/nvidia-pkgs` in the other two.
    "usr/local/glibc/usr/lib64",
    "usr/local/glibc/usr/lib",
    "usr/local/lib",
    // Bottlerocket (bottlerocket-kernel-kit, `packages/kmod-6.12-nvidia-r580`), where `/usr` is a link.
    "usr/lib/nvidia/tesla",
    // NixOS (NixOS/nixpkgs#83713); links lead to `/nix/store`.
    "run/opengl-driver/lib",
    // Jetson: JetPack 6 (apptainer/apptainer#3646), and those before and after it (ollama/ollama#18067).
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    // A driver root that is a folder of libraries, such as `/opt/nvidia/lib`.
    "",
];

/// Folders of the driver's programs below a root, in the order of the search.
pub const PROGRAM_FOLDERS: [&str; 9] = [
    // Those of NVIDIA's container tools (nvidia-container-toolkit, `internal/lookup/path.go`), with one of Talos.
    "usr/local/sbin",
    "usr/local/bin",
    "usr/sbin",
    "usr/bin",
    "sbin",
    "bin",
    // Talos, as above.
    "usr/local/glibc/usr/bin",
    // Bottlerocket (bottlerocket-kernel-kit, `kmod-*-nvidia.spec`).
    "usr/libexec/nvidia/tesla/bin",
    // NixOS (nixpkgs, `nixos/modules/hardware/video/nvidia.nix`, `environment.systemPackages`).
    "run/current-system/sw/bin",
];

/// Mount point of a containerised driver's root on the host.
pub const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

/// Limit on the symbolic links of one path, that of Linux (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// The driver's root, and its library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDriver {
    /// Root of the driver, a path on the host, such as `/run/nvidia/driver` or `/`.
    pub root: PathBuf,
    /// The same folder in this container, without links.
    pub mounted: PathBuf,
    /// The library in this container, without links.
    pub library: PathBuf,
}

/// Returns the driver below the first of `roots`, which are paths on the host, that has its library. Blocks.
pub fn find_driver(host_root: &Path, roots: &[PathBuf]) -> Option<FoundDriver> {
    roots.iter().find_map(|root| {
        let mounted = resolve_below(host_root, root)?;
        let library = find_library(&mounted)?;
        let root = root.clone();
        Some(FoundDriver { root, mounted, library })
    })
}

/// Returns the NVML library below a root, which is a folder in this container. Blocks.
fn find_library(mounted: &Path) -> Option<PathBuf> {
    find_file(mounted, &LIBRARY_FOLDERS, LIBRARY)
}

/// Returns a program below a root, which is a folder in this container. Blocks.
pub fn find_program(mounted: &Path, name: &str) -> Option<PathBuf> {
    find_file(mounted, &PROGRAM_FOLDERS, name)
}

/// Returns the path of the first file of that name, without links.
fn find_file(mounted: &Path, folders: &[&str], name: &str) -> Option<PathBuf> {
    let mut found = folders
        .iter()
        .filter_map(|folder| resolve_below(mounted, &Path::new(folder).join(name)));
    found.find(|path| path.is_file())
}

/// Lists the roots for a sentence: "A, B and C".
pub fn join_roots(roots: &[PathBuf]) -> String {
    let roots: Vec<String> = roots.iter().map(|root| root.display().to_string()).collect();
    match roots.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => roots.concat(),
    }
}

/// Follows the symbolic links of a path, of folders as of the file, as a process does whose root is `root`: an absolute path counts
/// from there, and `..` leads no higher. Returns the path in this container of what exists there. Blocks.
pub fn resolve_below(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut resolved = root.to_owned();
    // The last one comes next.
    let mut pending = parts(path);
    let mut links = 0;
    while let Some(part) = pending.pop() {
        if part == Path::new("..") {
            if resolved != root {
                resolved.pop();
            }
            continue;
        }
        resolved.push(part);
        match fs::read_link(&resolved) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                if target.is_absolute() {
                    root.clone_into(&mut resolved);
                } else {
                    resolved.pop();
                }
                pending.extend(parts(&target));
            }
            // It is no link.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(_) => return None,
        }
    }
    resolved.exists().then_some(resolved)
}

/// Returns the names in a path and its `..`, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().rev();
    parts
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::DriverRootList;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// A host's root.
    struct HostFiles(TempDir);

    impl HostFiles {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn file(&self, path: &str) -> PathBuf {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }

        fn link(&self, path: &str, target: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }

        fn resolve(&self, path: &str) -> Option<PathBuf> {
            resolve_below(self.0.path(), Path::new(path))
        }

        /// Returns the driver below the default roots.
        fn driver(&self) -> Option<FoundDriver> {
            find_driver(self.0.path(), &DriverRootList::default().roots())
        }
    }

    #[test]
    fn a_containerised_driver_comes_before_the_hosts_and_that_before_the_folder_of_an_installer() {
        let host = HostFiles::new();
        assert_eq!(host.driver(), None);
        for (folder, root) in [
            ("home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia"),
            ("usr/lib/x86_64-linux-gnu", "/"),
            ("run/nvidia/driver/usr/lib64", "/run/nvidia/driver"),
        ] {
            let library = host.file(&format!("{folder}/{LIBRARY}"));
            let expected = FoundDriver {
                root: root.into(),
                mounted: host.at(root.trim_start_matches('/')),
                library,
            };
            assert_eq!(host.driver(), Some(expected));
        }
    }

    #[test]
    fn links_of_files_lead_below_the_root() {
        let host = HostFiles::new();
        host.link(&format!("usr/lib64/{LIBRARY}"), "/etc/alternatives/nvml");
        host.link("etc/alternatives/nvml", "/usr/lib64/libnvidia-ml.so.580");
        assert_eq!(host.driver(), None);
        let library = host.file("usr/lib64/libnvidia-ml.so.580");
        assert_eq!(host.driver().map(|driver| driver.library), Some(library));
    }

    #[test]
    fn links_of_folders_lead_below_the_root() {
        let host = HostFiles::new();
        let library = host.file("nix/store/a-nvidia-x11/lib/libnvidia-ml.so.580");
        host.link(
            &format!("nix/store/b-graphics-drivers/lib/{LIBRARY}"),
            "/nix/store/a-nvidia-x11/lib/libnvidia-ml.so.580",
        );
        host.link("run/opengl-driver", "/nix/store/b-graphics-drivers");
        assert_eq!(host.driver().map(|driver| driver.library), Some(library));
    }

    #[test]
    fn a_root_that_is_a_link_is_the_folder_to_which_it_leads_on_the_host() {
        let host = HostFiles::new();
        host.link("home", "/var/home");
        let library = host.file(&format!("var/home/kubernetes/bin/nvidia/lib64/{LIBRARY}"));
        let expected = FoundDriver {
            root: "/home/kubernetes/bin/nvidia".into(),
            mounted: host.at("var/home/kubernetes/bin/nvidia"),
            library,
        };
        assert_eq!(host.driver(), Some(expected));
    }

    #[test]
    fn no_link_leads_out_of_the_root() {
        let host = HostFiles::new();
        let file = host.file("etc/file");
        let outside = tempfile::NamedTempFile::new().unwrap();
        host.link("up", "../../../../../../../../etc/file");
        host.link("outside", outside.path().to_str().unwrap());
        host.link("a/b/up", "../../etc");
        assert_eq!(host.resolve("/up"), Some(file.clone()));
        assert_eq!(host.resolve("../../etc/./file"), Some(file.clone()));
        assert_eq!(host.resolve("a/b/up/file"), Some(file));
        assert_eq!(host.resolve("outside"), None);
        assert_eq!(host.resolve("/"), Some(host.at("")));
    }

    #[test]
    fn a_circle_of_links_and_a_file_as_a_folder_lead_nowhere() {
        let host = HostFiles::new();
        host.link(&format!("lib64/{LIBRARY}"), LIBRARY);
        host.link("one", "two/one");
        host.link("two", "/one/..");
        host.file("file");
        assert_eq!(host.driver(), None);
        for path in ["one", "two", "file/below", "missing/.."] {
            assert_eq!(host.resolve(path), None, "{path}");
        }
    }

    #[test]
    fn programs_are_found_in_the_places_of_distributions() {
        let name = "nvidia-cuda-mps-control";
        for folder in PROGRAM_FOLDERS {
            let host = HostFiles::new();
            assert_eq!(find_program(host.0.path(), name), None);
            host.link(&format!("{folder}/{name}"), "/nix/store/a-nvidia-x11/bin/program");
            assert_eq!(find_program(host.0.path(), name), None, "the link leads nowhere");
            let program = host.file("nix/store/a-nvidia-x11/bin/program");
            assert_eq!(find_program(host.0.path(), name), Some(program));
        }
    }

    #[test]
    fn roots_are_listed_as_in_a_sentence() {
        let list = |roots: &[&str]| join_roots(&roots.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(list(&["/"]), "/");
        assert_eq!(list(&["/a", "/"]), "/a and /");
        assert_eq!(list(&["/a", "/", "/b"]), "/a, / and /b");
    }
}
