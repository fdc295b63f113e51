//! The CDI file on disk. Container runtimes read it at any time, and more often when it changes.

use crate::store::atomic_file;
use gpunode_cdi::{CdiSpec, FILE_NAME};
use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};
use tracing::warn;

/// The CDI file of the node.
#[derive(Clone, Debug)]
pub struct CdiFile {
    path: PathBuf,
}

impl CdiFile {
    /// Returns the file in a folder of CDI files, normally `/var/run/cdi`.
    pub fn new(folder: &Path) -> Self {
        Self {
            path: folder.join(FILE_NAME),
        }
    }

    /// Returns true if there is a file. Blocks.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Returns the content; none without a file, and for a file that is damaged, which the next write replaces. Blocks.
    pub fn read(&self) -> io::Result<Option<CdiSpec>> {
        let text = match atomic_file::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let spec = serde_json::from_slice(&text);
        let spec = spec
            .inspect_err(|error| warn!(%error, file = %self.path.display(), "the CDI file is damaged; replacing it"));
        Ok(spec.ok())
    }

    /// Returns true if somebody removed the folder while this container has it as a mount: no file can be made in it any more, and
    /// only another container sees a folder that takes its place. Blocks.
    pub fn folder_is_removed(&self) -> bool {
        let folder = self.path.parent().map(fs::metadata);
        folder.is_some_and(|folder| folder.is_ok_and(|folder| folder.nlink() == 0))
    }

    /// Makes the file have that content, or removes it. A runtime sees the old file or the new one: the temporary file ends in
    /// `.new`, and runtimes read files that end in `.json` or `.yaml` (`scanSpecDirs` of container-device-interface's
    /// `pkg/cdi/spec-dirs.go`). Does nothing if the file has the content, to the byte: another version may have written fields that
    /// this one does not know. Blocks.
    pub fn put(&self, spec: Option<&CdiSpec>) -> io::Result<()> {
        let Some(spec) = spec else {
            // An agent that was killed may have left its temporary file.
            _ = fs::remove_file(self.path.with_extension("json.new"));
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            };
        };
        let text = serde_json::to_vec_pretty(spec)?;
        if atomic_file::read(&self.path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        atomic_file::replace(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_cdi::{CdiDevice, KIND};
    use std::{os::fd::AsRawFd as _, path::Path};

    fn spec(names: &[&str]) -> CdiSpec {
        let device = |name: &&str| CdiDevice {
            name: (*name).to_owned(),
            ..CdiDevice::default()
        };
        CdiSpec {
            version: "0.3.0".to_owned(),
            kind: KIND.to_owned(),
            devices: names.iter().map(device).collect(),
            ..CdiSpec::default()
        }
    }

    /// Files that a runtime reads.
    fn visible(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let specs = entries.filter(|path| path.extension().is_some_and(|end| end == "json" || end == "yaml"));
        specs
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn file_has_one_name_from_the_first_device_to_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let cdi = folder.path().join("cdi");
        let file = CdiFile::new(&cdi);
        assert_eq!((file.read().unwrap(), file.exists()), (None, false));
        file.put(None).unwrap();
        for names in [&["GPU-0"][..], &["GPU-0", "GPU-1"]] {
            file.put(Some(&spec(names))).unwrap();
            assert_eq!(file.read().unwrap(), Some(spec(names)));
            assert_eq!(visible(&cdi), ["gpunode.dev-gpu.json"]);
        }
        file.put(None).unwrap();
        assert!(visible(&cdi).is_empty() && !file.exists());
    }

    #[test]
    fn an_unchanged_file_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = CdiFile::new(folder.path());
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        // A write would need this name.
        fs::create_dir(folder.path().join("gpunode.dev-gpu.json.new")).unwrap();
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        assert!(file.put(Some(&spec(&["GPU-1"]))).is_err());
        assert_eq!(file.read().unwrap(), Some(spec(&["GPU-0"])), "the old file stays");
    }

    #[test]
    fn a_write_that_was_cut_off_leaves_the_old_file_and_the_next_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let file = CdiFile::new(folder.path());
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        let text = serde_json::to_vec_pretty(&spec(&["GPU-1"])).unwrap();
        for length in 0..text.len() {
            fs::write(folder.path().join("gpunode.dev-gpu.json.new"), &text[..length]).unwrap();
            assert_eq!(file.read().unwrap(), Some(spec(&["GPU-0"])));
            assert_eq!(visible(folder.path()), ["gpunode.dev-gpu.json"]);
        }
        file.put(Some(&spec(&["GPU-1"]))).unwrap();
        assert_eq!(file.read().unwrap(), Some(spec(&["GPU-1"])));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_with_fields_of_another_version_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = CdiFile::new(folder.path());
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        let path = folder.path().join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        let newer = text.replacen('{', r#"{"annotations": {"a": "b"},"#, 1);
        fs::write(&path, newer).unwrap();
        assert_eq!(file.read().unwrap(), Some(spec(&["GPU-0"])));
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), text);
    }

    #[test]
    fn the_temporary_file_of_a_killed_agent_goes_with_the_last_device() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gpunode.dev-gpu.json.new"), "{").unwrap();
        CdiFile::new(folder.path()).put(None).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_was_removed_below_its_mount_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        // As a mount, an open folder leads to the one that was removed.
        let opened = fs::File::open(folder.path()).unwrap();
        let file = CdiFile::new(Path::new(&format!("/proc/self/fd/{}", opened.as_raw_fd())));
        file.put(Some(&spec(&["GPU-0"]))).unwrap();
        assert!(!file.folder_is_removed());
        fs::remove_dir_all(folder.path()).unwrap();
        fs::create_dir(folder.path()).unwrap();
        assert!(file.put(Some(&spec(&["GPU-0"]))).is_err());
        assert!(file.folder_is_removed());
    }

    #[test]
    fn a_damaged_file_counts_as_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = CdiFile::new(folder.path());
        for text in ["", "{", "[]", r#"{"cdiVersion": "0.3.0"}"#] {
            fs::write(folder.path().join(FILE_NAME), text).unwrap();
            assert_eq!(file.read().unwrap(), None, "{text}");
            file.put(Some(&spec(&["GPU-0"]))).unwrap();
            assert_eq!(file.read().unwrap(), Some(spec(&["GPU-0"])));
        }
    }
}
