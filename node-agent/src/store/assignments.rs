//! The assignments of this node's devices, kept on disk: a share's id has the device, but not the resource and the
//! size of the share (`docs/adr/0004-sharing.md`). The files of companions are kept with them.

use crate::store::{atomic_file, file_id::FileId, saved_file::SavedFile};
use gpunode_gpu::{Assignment, fits_list, is_companion};
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

/// Name of the file with the files of companions: one of its own, which an agent that knows no companions leaves alone.
const CLAIMS_FILE: &str = "companion-files.json";
const CLAIMS_FORMAT: u32 = 1;

/// Assignments by the UUID of the device.
pub type Assignments = BTreeMap<String, Assignment>;

/// Ids of companions by their files, as paths on the host.
pub type ClaimedFiles = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct AssignmentsFile {
    version: u32,
    devices: Assignments,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct ClaimsFile {
    format: u32,
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
    let path = state_dir.join(FILE);
    let text = match atomic_file::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Assignments::new()),
        Err(source) => return Err(AssignmentsError::Read { path, source }),
    };
    match serde_json::from_slice(&text) {
        Ok(AssignmentsFile {
            version: VERSION,
            devices,
        }) => match devices.iter().find(|(_, assignment)| !fits_list(&assignment.sharing)) {
            None => Ok(devices),
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

/// The assignments and the files of companions on disk.
#[derive(Debug)]
pub struct SavedAssignments {
    devices: SavedFile<AssignmentsFile>,
    claims: SavedFile<ClaimsFile>,
}

impl SavedAssignments {
    /// Reads what an earlier agent saved; blocks. An unreadable file counts as none: held devices then wait for their holders
    /// under the names that the kubelet knows.
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let id = FileId::of(&path);
        let content = read(state_dir).inspect_err(|error| {
            warn!(%error, "the assignments are lost; held devices wait for their holders");
            // A file that the disk cannot read now may be intact.
            if !matches!(error, AssignmentsError::Read { .. }) {
                atomic_file::set_aside(&path, error);
            }
        });
        let claims_path = state_dir.join(CLAIMS_FILE);
        let claims_id = FileId::of(&claims_path);
        let claims = match claims_id {
            Some(_) => atomic_file::load(&claims_path, CLAIMS_FORMAT),
            None => Some(claims_file(&ClaimedFiles::new())),
        };
        Self {
            devices: SavedFile::new(path, content.ok().as_ref().map(assignments_file), id),
            claims: SavedFile::new(claims_path, claims, claims_id),
        }
    }

    /// Returns the assignments.
    pub fn assignments(&self) -> Assignments {
        let content = self.devices.content();
        content.map(|file| file.devices.clone()).unwrap_or_default()
    }

    /// Returns the files that containers of companions may have.
    pub fn claimed_files(&self) -> ClaimedFiles {
        let content = self.claims.content();
        content.map(|file| file.files.clone()).unwrap_or_default()
    }

    /// Returns true if these assignments of GPUs and MIG devices were saved last. Does not read the disk.
    pub fn has_gpus(&self, assignments: &Assignments) -> bool {
        let gpus = |of: &Assignments| -> Assignments {
            let gpus = of.iter().filter(|(id, _)| !is_companion(id));
            gpus.map(|(id, of)| (id.clone(), of.clone())).collect()
        };
        self.devices
            .content()
            .is_some_and(|file| gpus(&file.devices) == gpus(assignments))
    }

    /// Saves both, each if it differs from its file, or if somebody removed or replaced that.
    pub async fn save(&mut self, assignments: &Assignments, files: &ClaimedFiles) -> io::Result<()> {
        // A device without its files on disk could be given them again under another name.
        self.claims.save(claims_file(files)).await?;
        self.devices.save(assignments_file(assignments)).await
    }
}

fn assignments_file(devices: &Assignments) -> AssignmentsFile {
    AssignmentsFile {
        version: VERSION,
        devices: devices.clone(),
    }
}

fn claims_file(files: &ClaimedFiles) -> ClaimsFile {
    ClaimsFile {
        format: CLAIMS_FORMAT,
        files: files.clone(),
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
    async fn files_of_companions_are_there_after_a_restart_in_a_file_that_an_older_agent_leaves_alone() {
        let folder = tempfile::tempdir().unwrap();
        let files = ClaimedFiles::from([("/dev/x/a".to_owned(), "path-1".to_owned())]);
        let mut saved = SavedAssignments::load(folder.path());
        saved.save(&assignments(2), &ClaimedFiles::new()).await.unwrap();
        assert!(!folder.path().join(CLAIMS_FILE).exists(), "a node without companions");
        saved.save(&assignments(2), &files).await.unwrap();
        assert_eq!(SavedAssignments::load(folder.path()).claimed_files(), files);
        let mut with_companion = assignments(2);
        with_companion.extend([("path-1".to_owned(), assignments(2)["GPU-1"].clone())]);
        assert!(saved.has_gpus(&with_companion), "GPUs need nothing of the disk");
        assert!(!saved.has_gpus(&assignments(3)));
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(!text.contains("/dev/x/a"), "{text}");
        fs::remove_file(folder.path().join(CLAIMS_FILE)).unwrap();
        saved.save(&assignments(2), &files).await.unwrap();
        assert_eq!(
            SavedAssignments::load(folder.path()).claimed_files(),
            files,
            "written again"
        );
        fs::write(folder.path().join(CLAIMS_FILE), "{}").unwrap();
        assert!(SavedAssignments::load(folder.path()).claimed_files().is_empty());
        assert!(folder.path().join("companion-files.json.corrupt").exists());
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
