//! The hook `enable-cuda-compat`: prefers the user libraries of a newer driver that an image brings along, where they work with the
//! kernel driver of the host (source: NVIDIA/nvidia-container-toolkit, `cmd/nvidia-cdi-hook/cudacompat`).

use crate::{
    command_line::HostVersions, container_root::ContainerRoot, elf::Elf, hook_error::HookError,
    ld_so_conf::LD_SO_CONF_D,
};
use serde::Deserialize;
use std::{cmp::Ordering, path::Path};

const LIBRARY: &str = "libcuda.so.";
/// File that comes before all others of its folder, so that its libraries are found first.
const FILE: &str = "00-compat-gpunode.conf";
const NOTE: &str = ".note.cuda.fwd_compatibility";
const NOTE_OWNER: &str = "NVIDIA Corporation";

/// Description of the libraries, in a note of `libcuda.so`.
#[derive(Debug, Deserialize)]
struct CompatNote {
    #[serde(default, rename = "CUDA Version")]
    cuda: String,
    /// Branches of the kernel driver that the libraries work with.
    #[serde(default, rename = "Driver")]
    drivers: Vec<u64>,
}

/// Names the folder of the newer libraries in the loader's configuration; the hook `update-ldcache` comes afterwards.
pub fn enable(root: &ContainerRoot, host: &HostVersions) -> Result<(), HookError> {
    let Some(folder) = host
        .folder
        .to_str()
        .filter(|folder| folder.starts_with('/') && !folder.contains('\n'))
    else {
        return Ok(());
    };
    // Links such as `libcuda.so.1` have one number, the library has two or more.
    let versions: Vec<String> = root
        .names(&host.folder)?
        .into_iter()
        .filter(|found| !found.is_link)
        .filter_map(|found| found.name.strip_prefix(LIBRARY).map(str::to_owned))
        .filter(|version| version.contains('.'))
        .collect();
    // With two of them, nobody knows which one the image means.
    let [version] = versions.as_slice() else {
        return Ok(());
    };
    let path = format!("{folder}/{LIBRARY}{version}");
    let file = root
        .file(Path::new(&path))
        .map_err(|error| HookError::container("open", Path::new(&path), error))?;
    let note: Option<CompatNote> = Elf::read(&file)
        .and_then(|elf| elf.note(NOTE, NOTE_OWNER))
        .and_then(|note| serde_json::from_slice(note.split(|byte| *byte == 0).next()?).ok());
    if !prefers_container(note.as_ref(), version, host) {
        return Ok(());
    }
    let file = format!("{LD_SO_CONF_D}/{FILE}");
    root.write(Path::new(&file), format!("{folder}\n").as_bytes())
}

/// Returns whether the container's libraries of `version` go before those of the host. A note lists the kernel drivers that they work
/// with; without one, a greater major version will do.
fn prefers_container(note: Option<&CompatNote>, version: &str, host: &HostVersions) -> bool {
    let (container, driver, cuda) = (numbers(version), numbers(&host.driver), numbers(&host.cuda));
    let major = |version: &[u64]| version.first().copied();
    match (note, container, driver, cuda) {
        (Some(note), Some(container), Some(driver), _) => {
            major(&driver).is_some_and(|major| note.drivers.contains(&major)) && compare(&container, &driver).is_gt()
        }
        (Some(note), _, _, Some(cuda)) => {
            numbers(&note.cuda).is_some_and(|container| compare(&container, &cuda).is_gt())
        }
        (None, Some(container), Some(driver), None) => major(&container) > major(&driver),
        _ => false,
    }
}

/// Returns the numbers of a version such as 570.211.01.
fn numbers(version: &str) -> Option<Vec<u64>> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

/// Compares number by number; one that is missing is 0.
fn compare(one: &[u64], other: &[u64]) -> Ordering {
    let number = |version: &[u64], place: usize| version.get(place).copied().unwrap_or_default();
    (0..one.len().max(other.len()))
        .map(|place| number(one, place).cmp(&number(other, place)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    fn host(driver: &str, cuda: &str) -> HostVersions {
        HostVersions {
            driver: driver.into(),
            cuda: cuda.into(),
            folder: "/usr/local/cuda/compat".into(),
        }
    }

    /// Returns the folder that is preferred in a container with these libraries in `folder`.
    fn preferred(folder: &str, libraries: &[&str], host: &HostVersions) -> String {
        let container = tempfile::tempdir().unwrap();
        fs::create_dir_all(container.path().join(folder)).unwrap();
        for library in libraries {
            fs::write(container.path().join(folder).join(library), "").unwrap();
        }
        symlink("libcuda.so.1", container.path().join(folder).join("libcuda.so")).unwrap();
        let root = ContainerRoot::open(container.path()).unwrap();
        enable(&root, host).unwrap();
        fs::read_to_string(container.path().join("etc/ld.so.conf.d").join(FILE)).unwrap_or_default()
    }

    #[test]
    fn libraries_of_a_newer_branch_are_preferred() {
        let folder = "usr/local/cuda/compat";
        for (libraries, driver, expected) in [
            (vec!["libcuda.so.333.88.99"], "222.55.66", true),
            (vec!["libcuda.so.222.88.99"], "99.55.66", true),
            (vec!["libcuda.so.222.88.99"], "222.55.66", false),
            (vec!["libcuda.so.111.88.99"], "222.55.66", false),
            (vec!["libcuda.so.333.88.99"], "", false),
            (vec!["libcuda.so.333.88.99", "libcuda.so.444.1"], "222.55.66", false),
            (vec!["libcuda.so.1"], "222.55.66", false),
            (vec![], "222.55.66", false),
        ] {
            let expected = if expected { "/usr/local/cuda/compat\n" } else { "" };
            assert_eq!(
                preferred(folder, &libraries, &host(driver, "")),
                expected,
                "{libraries:?} on {driver}"
            );
        }
        assert_eq!(preferred("opt", &["libcuda.so.333.1.2"], &host("222.1", "")), "");
        let other = HostVersions {
            folder: PathBuf::from("/opt"),
            ..host("222.1", "")
        };
        assert_eq!(preferred("opt", &["libcuda.so.333.1.2"], &other), "/opt\n");
    }

    #[test]
    fn the_note_of_the_library_decides_where_there_is_one() {
        let note: CompatNote = serde_json::from_str(
            r#"{"Format": 1, "CUDA Version": "12.9", "Driver": [535, 550, 570, 575], "Device": [0]}"#,
        )
        .unwrap();
        for (driver, cuda, expected) in [
            ("590.44.01", "", false),
            ("570.211.01", "", true),
            ("575.10.10", "", true),
            ("575.57.08", "", false),
            ("575.99.99", "", false),
            ("", "12.8", true),
            ("", "12.9", false),
            ("", "12.10", false),
            ("", "", false),
        ] {
            assert_eq!(
                prefers_container(Some(&note), "575.57.08", &host(driver, cuda)),
                expected,
                "{driver} {cuda}"
            );
        }
        // Without a note, the version of CUDA says nothing about the driver.
        assert!(!prefers_container(None, "575.57.08", &host("570.211.01", "12.8")));
    }
}
