//! Lists MIG instances from the files of the driver's kernel module, which is cheaper than NVML.

use std::{collections::BTreeSet, fs, path::Path};

/// Folder below the host's root; has a folder for each GPU, `gpu0/mig`, with one for each instance, `gi7/ci0`.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// Returns GPU instances and compute instances, such as `gpu0/gi7` and `gpu0/gi7/ci0`. None when no GPU is listed: the
/// kernel module may be too old, or the folder may be missing in this container.
pub fn instances(host_root: &Path) -> Option<BTreeSet<String>> {
    let root = host_root.join(CAPABILITIES);
    let mut found = BTreeSet::new();
    let mut is_listed = false;
    for gpu in folders(&root, "gpu") {
        let mig = root.join(&gpu).join("mig");
        is_listed |= mig.is_dir();
        for instance in folders(&mig, "gi") {
            let parts = folders(&mig.join(&instance), "ci");
            found.extend(parts.iter().map(|part| format!("{gpu}/{instance}/{part}")));
            found.insert(format!("{gpu}/{instance}"));
        }
    }
    is_listed.then_some(found)
}

/// Returns the names in a folder that begin with `start`.
fn folders(folder: &Path, start: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(start))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_listed_as_they_come_and_go() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(instances(host.path()), None);
        let root = host.path().join(CAPABILITIES);
        fs::create_dir_all(root.join("mig")).unwrap();
        assert_eq!(
            instances(host.path()),
            None,
            "the folder of rights alone says nothing of a GPU"
        );
        fs::create_dir_all(root.join("gpu0/mig")).unwrap();
        assert_eq!(instances(host.path()), Some(BTreeSet::new()));
        fs::create_dir_all(root.join("gpu0/mig/gi7/ci0")).unwrap();
        fs::write(root.join("gpu0/mig/gi7/access"), "").unwrap();
        let found = ["gpu0/gi7", "gpu0/gi7/ci0"].map(str::to_owned);
        assert_eq!(instances(host.path()), Some(found.into()));
        fs::remove_dir_all(root.join("gpu0/mig/gi7")).unwrap();
        assert_eq!(instances(host.path()), Some(BTreeSet::new()));
    }
}
