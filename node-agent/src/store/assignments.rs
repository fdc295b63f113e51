//! The assignments of this node's devices, kept on disk: a share's id has the device, but not the resource and the
//! size of the share (`docs/adr/0004-sharing.md`).

use crate::{
    runtime::blocking_thread::BlockingThread,
    store::{atomic_file, file_id::FileId},
};
use gpunode_gpu::{Assignment, fits_list};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};
use tracing::warn;

/// Name of the file in the state folder; the supervisor of MPS daemons reads it too.
const FILE: &str = "assignments.json";
const VERSION: u32 = 1;

/// Assignments by the UUID of the device.
pub type Assignments = BTreeMap<String, Assignment>;

/// Ids of companions by their files, as paths on the host.
pub type ClaimedFiles = BTreeMap<String, String>;

#[derive(Deserialize, Serialize)]
struct AssignmentsFile {
    version: u32,
    devices: Assignments,
    /// Files that containers of companions may have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    files: ClaimedFiles,
}

/// Error of reading the assignments.
#[derive(Debug, thiserror::Error)]
pub enum AssignmentsError {
    /// The file cannot be read.
    #[error("read the assignments {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("read the assignments {path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A device has more shares than a configuration can give it.
    #[error("read the assignments {path}: {device} has {shares} shares, more than fit into a list of the kubelet")]
    TooManyShares {
        /// The file.
        path: PathBuf,
        /// UUID of the device.
        device: String,
        /// Their number.
        shares: u32,
    },
    /// Another version of the agent wrote the file.
    #[error("read the assignments {path}: version {version} is not {VERSION}, the version that this agent reads")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

/// Reads the assignments; blocks. A missing file means no assignments.
pub fn read(state_dir: &Path) -> Result<Assignments, AssignmentsError> {
    read_all(state_dir).map(|(devices, _)| devices)
}

/// Reads the assignments and the files of companions; blocks.
fn read_all(state_dir: &Path) -> Result<(Assignments, ClaimedFiles), AssignmentsError> {
    let path = state_dir.join(FILE);
    let text = match atomic_file::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(source) => return Err(AssignmentsError::Read { path, source }),
    };
    match serde_json::from_slice(&text) {
        Ok(AssignmentsFile {
            version: VERSION,
            devices,
            files,
        }) => match devices.iter().find(|(_, assignment)| !fits_list(&assignment.sharing)) {
            None => Ok((devices, files)),
            Some((device, assignment)) => Err(AssignmentsError::TooManyShares {
                path,
                device: device.clone(),
                shares: assignment.sharing.shares(),
            }),
        },
        Ok(AssignmentsFile { version, .. }) => Err(AssignmentsError::Version { path, version }),
        Err(source) => Err(AssignmentsError::Parse { path, source }),
    }
}

/// The assignments on disk.
#[derive(Debug)]
pub struct SavedAssignments {
    state_dir: PathBuf,
    content: Option<(Assignments, ClaimedFiles)>,
    /// Identity of the file that has them; none without a file.
    id: Option<FileId>,
    /// Thread that writes, one write after the other: a late write must not undo the next.
    disk: BlockingThread,
}

impl SavedAssignments {
    /// Reads the assignments of an earlier agent; blocks. An unreadable file counts as none: held devices then wait for
    /// their holders under the names that the kubelet knows.
    pub fn load(state_dir: &Path) -> Self {
        let id = FileId::of(&state_dir.join(FILE));
        let content = read_all(state_dir).inspect_err(|error| {
            warn!(%error, "the assignments are lost; held devices wait for their holders");
            // A file that the disk cannot read now may be intact.
            if !matches!(error, AssignmentsError::Read { .. }) {
                atomic_file::set_aside(&state_dir.join(FILE), error);
            }
        });
        Self {
            state_dir: state_dir.to_owned(),
            content: content.ok(),
            id,
            disk: BlockingThread::default(),
        }
    }

    /// Returns the assignments.
    pub fn assignments(&self) -> Assignments {
        self.content.clone().unwrap_or_default().0
    }

    /// Returns the files that containers of companions may have.
    pub fn claimed_files(&self) -> ClaimedFiles {
        self.content.clone().unwrap_or_default().1
    }

    /// Returns true if these were saved last. Does not read the disk.
    pub fn has(&self, assignments: &Assignments, files: &ClaimedFiles) -> bool {
        self.content.as_ref().map(|(devices, files)| (devices, files)) == Some((assignments, files))
    }

    /// Saves `assignments` and the files of companions if they differ from the file, or if somebody removed or replaced the file.
    pub async fn save(&mut self, assignments: &Assignments, files: &ClaimedFiles) -> io::Result<()> {
        let path = self.state_dir.join(FILE);
        if self.has(assignments, files) && FileId::of(&path) == self.id {
            return Ok(());
        }
        // The content is unknown until the write succeeds.
        let before = self.content.take();
        let text = serde_json::to_vec_pretty(&AssignmentsFile {
            version: VERSION,
            devices: assignments.clone(),
            files: files.clone(),
        })?;
        let file = path.clone();
        let replace = move || atomic_file::replace(&file, &text).map(|()| FileId::of(&file));
        match self.disk.run(replace).await.map_err(io::Error::other)? {
            Ok(id) => (self.id, self.content) = (id, Some((assignments.clone(), files.clone()))),
            Err(error) => {
                // A full disk keeps the old file.
                self.content = before.filter(|_| FileId::of(&path) == self.id);
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::DeviceSharing;
    use std::fs;

    fn assignments(replicas: u32) -> Assignments {
        let sharing = DeviceSharing::TimeSlicing { replicas };
        let assignment = Assignment {
            resource: "a.b/c".to_owned(),
            sharing,
            gpu_uuid: None,
        };
        [("GPU-1".to_owned(), assignment)].into()
    }

    #[tokio::test]
    async fn what_was_kept_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut saved = SavedAssignments::load(folder.path());
        assert!(saved.assignments().is_empty());
        for replicas in [2, 3] {
            saved.save(&assignments(replicas), &ClaimedFiles::new()).await.unwrap();
            assert_eq!(
                SavedAssignments::load(folder.path()).assignments(),
                assignments(replicas)
            );
        }
    }

    #[tokio::test]
    async fn files_of_companions_are_there_after_a_restart_and_unknown_to_an_older_agent() {
        let folder = tempfile::tempdir().unwrap();
        let files = ClaimedFiles::from([("/dev/x/a".to_owned(), "path-1".to_owned())]);
        let mut saved = SavedAssignments::load(folder.path());
        saved.save(&assignments(2), &files).await.unwrap();
        assert!(saved.has(&assignments(2), &files) && !saved.has(&assignments(2), &ClaimedFiles::new()));
        assert_eq!(SavedAssignments::load(folder.path()).claimed_files(), files);
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(!text.contains("files"), "{text}");
    }

    #[tokio::test]
    async fn what_has_not_changed_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut saved = SavedAssignments::load(folder.path());
        saved.save(&Assignments::new(), &ClaimedFiles::new()).await.unwrap();
        assert!(!file.exists());
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        let written = FileId::of(&file);
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        let mut saved = SavedAssignments::load(folder.path());
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        assert_eq!(FileId::of(&file), written);
    }

    #[tokio::test]
    async fn a_file_that_somebody_removed_or_replaced_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let mut saved = SavedAssignments::load(folder.path());
        for spoil in [|file: &Path| fs::remove_file(file), |file: &Path| fs::write(file, "{}")] {
            saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
            spoil(&file).unwrap();
            saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
            assert_eq!(read(folder.path()).unwrap(), assignments(2));
        }
    }

    #[tokio::test]
    async fn what_could_not_be_kept_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let later = folder.path().join("later");
        let mut saved = SavedAssignments::load(&later);
        assert!(saved.save(&assignments(2), &ClaimedFiles::new()).await.is_err());
        fs::create_dir(&later).unwrap();
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        assert_eq!(read(&later).unwrap(), assignments(2));
    }

    #[tokio::test]
    async fn what_the_disk_has_needs_no_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut saved = SavedAssignments::load(folder.path());
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        fs::create_dir(folder.path().join("assignments.json.new")).unwrap();
        assert!(saved.save(&assignments(3), &ClaimedFiles::new()).await.is_err());
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        assert_eq!(read(folder.path()).unwrap(), assignments(2));
    }

    #[tokio::test]
    async fn a_file_that_tells_nothing_counts_as_none_and_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", r#"{"version":7,"devices":{}}"#, r#"{"version":1}"#] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert!(read(folder.path()).is_err(), "{text}");
            let mut saved = SavedAssignments::load(folder.path());
            assert!(saved.assignments().is_empty());
            assert_eq!(
                fs::read_to_string(folder.path().join("assignments.json.corrupt")).unwrap(),
                text
            );
            saved.save(&Assignments::new(), &ClaimedFiles::new()).await.unwrap();
            assert!(read(folder.path()).unwrap().is_empty());
        }
    }

    #[test]
    fn assignments_with_more_shares_than_a_list_has_room_for_are_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let text = r#"{"version": 1, "devices": {"GPU-0": {"resource": "a.b/c", "sharing": {"strategy": "TimeSlicing", "replicas": 4294967295}}}}"#;
        fs::write(&file, text).unwrap();
        assert!(matches!(
            read(folder.path()),
            Err(AssignmentsError::TooManyShares { .. })
        ));
        assert!(SavedAssignments::load(folder.path()).assignments().is_empty());
        assert!(!file.exists());
    }
}
