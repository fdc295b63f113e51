//! The hook `update-ldcache`: makes the loader of a container find the driver's libraries.
//!
//! NVIDIA's program runs the host's `ldconfig` on the container's files, in a mount namespace of its own. This one writes the cache
//! itself: hosts without NVIDIA's tools often have no `ldconfig`, and no program has to be trusted with files of an image.

use crate::{
    container_root::ContainerRoot,
    hook_error::{HookError, or_nothing},
    ld_so_cache,
    ld_so_conf::{self, LD_SO_CONF, LD_SO_CONF_D},
    library_scan::LibraryScan,
};
use std::{
    env::consts::ARCH,
    io,
    path::{Path, PathBuf},
};

const LD_SO_CACHE: &str = "/etc/ld.so.cache";
/// File with the folders that an image does not name. It comes after `00-cuda-compat.conf` of NVIDIA's images and before most others,
/// as `00-nvcr-*.conf` of NVIDIA's hook does.
const ADDED_FOLDERS: &str = "00-gpunode.conf";
/// Folders in which the loader and `ldconfig` of Debian and its derivatives search without being told (source:
/// NVIDIA/nvidia-container-toolkit, `internal/ldconfig/ldconfig.go`, from the loaders' own diagnostics).
const DEBIAN_FOLDERS: [&str; 4] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];
/// Those of other distributions.
const OTHER_FOLDERS: [&str; 2] = ["/lib64", "/usr/lib64"];
/// Those of all distributions.
const COMMON_FOLDERS: [&str; 2] = ["/lib", "/usr/lib"];
const DEBIAN: &str = "/etc/debian_version";
/// File that images of Alpine have; their loader, that of musl, has no cache and reads a list of folders.
const ALPINE: &str = "/etc/alpine-release";
const MUSL_FOLDERS: [&str; 3] = ["/lib", "/usr/local/lib", "/usr/lib"];
const MAX_LIST: u64 = 64 * 1024;

/// Adds `folders` to those that the loader searches, and writes its cache again.
pub fn update(root: &ContainerRoot, folders: &[PathBuf]) -> Result<(), HookError> {
    let folders = folders
        .iter()
        .map(|folder| plain(folder))
        .collect::<Result<Vec<String>, _>>()?;
    let configured = ld_so_conf::folders(root)?;
    let is_debian = or_nothing(root.exists(Path::new(DEBIAN)))?;
    let own: &[&str] = if is_debian { &DEBIAN_FOLDERS } else { &OTHER_FOLDERS };
    let new = missing(&folders, |folder| {
        own.contains(&folder) || COMMON_FOLDERS.contains(&folder) || configured.iter().any(|known| known == folder)
    });
    add_to_configuration(root, &new)?;
    add_to_musl(root, &folders)?;

    // Read again, now with what was added. An image whose configuration leaves the folder of added files out gets its folders first.
    let configured = ld_so_conf::folders(root)?;
    let unnamed = missing(&new, |folder| configured.iter().any(|known| known == folder));
    let system = [&DEBIAN_FOLDERS[..], &OTHER_FOLDERS, &COMMON_FOLDERS].concat();
    let system = system.into_iter().map(str::to_owned);
    let mut scan = LibraryScan::new(root, &folders)?;
    for folder in unnamed.into_iter().chain(configured).chain(system) {
        scan.search(&folder)?;
    }
    let cache = ld_so_cache::encode(scan.into_entries()).ok_or_else(|| {
        let source = io::Error::other("too many libraries for its format");
        HookError::container("write", Path::new(LD_SO_CACHE), source)
    })?;
    root.write(Path::new(LD_SO_CACHE), &cache)
}

/// Names the folders for an `ldconfig` that runs in the container later.
fn add_to_configuration(root: &ContainerRoot, new: &[String]) -> Result<(), HookError> {
    if new.is_empty() {
        return Ok(());
    }
    let file = format!("{LD_SO_CONF_D}/{ADDED_FOLDERS}");
    // Another CDI file may have added some in the same container.
    let mut added = ld_so_conf::folders_of_own_file(root, &file)?;
    added.extend(missing(new, |folder| added.iter().any(|known| known == folder)));
    root.write(Path::new(&file), lines(&added).as_bytes())?;
    if root.exists(Path::new(LD_SO_CONF))? {
        return Ok(());
    }
    let include = format!("include {LD_SO_CONF_D}/*.conf\n");
    root.write(Path::new(LD_SO_CONF), include.as_bytes())
}

fn add_to_musl(root: &ContainerRoot, folders: &[String]) -> Result<(), HookError> {
    if folders.is_empty() || !root.exists(Path::new(ALPINE))? {
        return Ok(());
    }
    let path = format!("/etc/ld-musl-{ARCH}.path");
    let list = match root.read_own(Path::new(&path), MAX_LIST)? {
        Some(list) => String::from_utf8_lossy(&list).into_owned(),
        None => MUSL_FOLDERS.join("\n"),
    };
    // Newlines and colons separate the folders (source: musl, `ldso/dynlink.c`).
    let mut listed: Vec<String> = list
        .split(['\n', ':'])
        .filter(|folder| !folder.is_empty())
        .map(str::to_owned)
        .collect();
    let new = missing(folders, |folder| listed.iter().any(|known| known == folder));
    if new.is_empty() {
        return Ok(());
    }
    listed.extend(new);
    root.write(Path::new(&path), lines(&listed).as_bytes())
}

/// Returns those of `folders` that are not known, each once.
fn missing(folders: &[String], is_known: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing: Vec<String> = Vec::new();
    for folder in folders.iter().filter(|folder| !is_known(folder)) {
        if !missing.contains(folder) {
            missing.push(folder.clone());
        }
    }
    missing
}

fn lines(folders: &[String]) -> String {
    folders.iter().flat_map(|folder| [folder.as_str(), "\n"]).collect()
}

/// Returns an absolute path without a slash at its end, which fits a line of the configuration.
fn plain(folder: &Path) -> Result<String, HookError> {
    folder
        .to_str()
        .map(|folder| folder.trim_end_matches('/'))
        .filter(|folder| folder.starts_with('/') && !folder.contains(['\n', '#', '=']))
        .map(str::to_owned)
        .ok_or_else(|| HookError::CommandLine(format!("{} is no folder for libraries", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_root::tests::in_mount_namespace;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use std::{fs, os::unix::fs::symlink};

    fn text(container: &Path, path: &str) -> String {
        fs::read_to_string(container.join(path)).unwrap_or_default()
    }

    fn run(container: &Path, folders: &[&str]) {
        let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
        update(&ContainerRoot::open(container).unwrap(), &folders).unwrap();
    }

    #[test]
    fn an_empty_image_gets_a_configuration_and_a_cache() {
        let container = tempfile::tempdir().unwrap();
        run(
            container.path(),
            &["/usr/lib/x86_64-linux-gnu", "/opt/driver/lib/", "/opt/driver/lib"],
        );
        assert_eq!(
            text(container.path(), "etc/ld.so.conf"),
            "include /etc/ld.so.conf.d/*.conf\n"
        );
        assert_eq!(
            text(container.path(), "etc/ld.so.conf.d/00-gpunode.conf"),
            "/usr/lib/x86_64-linux-gnu\n/opt/driver/lib\n"
        );
        assert!(
            fs::read(container.path().join("etc/ld.so.cache"))
                .unwrap()
                .starts_with(b"glibc-ld.so.cache1.1")
        );
        // A second CDI file, and the same once more.
        for _ in 0..2 {
            run(container.path(), &["/opt/other"]);
            assert_eq!(
                text(container.path(), "etc/ld.so.conf.d/00-gpunode.conf"),
                "/usr/lib/x86_64-linux-gnu\n/opt/driver/lib\n/opt/other\n"
            );
        }
        assert!(!container.path().join(format!("etc/ld-musl-{ARCH}.path")).exists());
    }

    #[test]
    fn an_image_of_another_distribution_gets_the_folder_of_the_host() {
        let debian = "/usr/lib/x86_64-linux-gnu";
        for (is_debian, folder, is_named) in [
            (true, debian, false),
            (true, "/usr/lib64", true),
            (true, "/usr/lib", false),
            (false, debian, true),
            (false, "/usr/lib64", false),
            (false, "/usr/lib", false),
        ] {
            let container = tempfile::tempdir().unwrap();
            fs::create_dir_all(container.path().join("etc")).unwrap();
            if is_debian {
                fs::write(container.path().join("etc/debian_version"), "12.12\n").unwrap();
            }
            run(container.path(), &[folder]);
            let named = text(container.path(), "etc/ld.so.conf.d/00-gpunode.conf");
            assert_eq!(!named.is_empty(), is_named, "{is_debian} {folder}");
        }
    }

    #[test]
    fn an_image_that_names_the_folder_keeps_its_configuration() {
        let container = tempfile::tempdir().unwrap();
        fs::create_dir_all(container.path().join("etc")).unwrap();
        fs::write(container.path().join("etc/ld.so.conf"), "/opt/driver/lib\n").unwrap();
        run(container.path(), &["/opt/driver/lib", "/usr/lib64"]);
        assert_eq!(text(container.path(), "etc/ld.so.conf"), "/opt/driver/lib\n");
        assert!(!container.path().join("etc/ld.so.conf.d").exists());
    }

    #[test]
    fn the_loader_of_alpine_gets_a_list() {
        let container = tempfile::tempdir().unwrap();
        fs::create_dir_all(container.path().join("etc")).unwrap();
        fs::write(container.path().join("etc/alpine-release"), "3.22.0\n").unwrap();
        let list = format!("etc/ld-musl-{ARCH}.path");
        run(container.path(), &["/usr/lib64"]);
        assert_eq!(
            text(container.path(), &list),
            "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib64\n"
        );
        fs::write(container.path().join(&list), "/lib:/opt").unwrap();
        run(container.path(), &["/usr/lib64", "/opt"]);
        assert_eq!(text(container.path(), &list), "/lib\n/opt\n/usr/lib64\n");
    }

    #[test]
    fn folders_that_would_write_other_lines_are_refused() {
        let container = tempfile::tempdir().unwrap();
        let root = ContainerRoot::open(container.path()).unwrap();
        for folder in ["relative", "/a\n/b", "/"] {
            update(&root, &[folder.into()]).unwrap_err();
        }
        assert_eq!(fs::read_dir(container.path()).unwrap().count(), 0);
    }

    #[test]
    #[ignore = "needs root for a mount namespace"]
    fn an_image_cannot_have_files_of_a_volume_copied() {
        let name = "update_ldcache::tests::an_image_cannot_have_files_of_a_volume_copied";
        in_mount_namespace(name, link_lists_to_a_volume);
    }

    fn link_lists_to_a_volume() {
        let container = tempfile::tempdir().unwrap();
        let volume = container.path().join("data");
        fs::create_dir_all(&volume).unwrap();
        fs::create_dir_all(container.path().join("etc/ld.so.conf.d")).unwrap();
        fs::write(container.path().join("etc/alpine-release"), "3.22.0\n").unwrap();
        mount("none", volume.as_path(), "tmpfs", MountFlags::empty(), c"").unwrap();
        fs::write(volume.join("secret"), "/of/root\n").unwrap();
        let musl = format!("etc/ld-musl-{ARCH}.path");
        for list in ["etc/ld.so.conf.d/00-gpunode.conf", &musl] {
            symlink("/data/secret", container.path().join(list)).unwrap();
            let root = ContainerRoot::open(container.path()).unwrap();
            let error = update(&root, &["/opt/driver".into()]).unwrap_err();
            assert!(matches!(error, HookError::InVolume { .. }), "{error}");
            let target = fs::read_link(container.path().join(list)).unwrap();
            assert_eq!(target, Path::new("/data/secret"));
            fs::remove_file(container.path().join(list)).unwrap();
        }
        unmount(volume.as_path(), UnmountFlags::DETACH).unwrap();
    }
}
