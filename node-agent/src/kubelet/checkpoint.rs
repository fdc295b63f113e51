//! What the kubelet's device manager remembers on disk.
//!
//! PodResources leaves out the devices of init containers that run to their end, though the kubelet keeps them until the
//! pod is gone (`pkg/kubelet/apis/podresources/server_v1.go`). The checkpoint has them. It is written after each
//! allocation and after each device list (`pkg/kubelet/cm/devicemanager/manager.go`, `writeCheckpoint`): it may name
//! holders that are gone, and names all that are there. Where no device plugin is registered, nothing of it is forgotten
//! for minutes; then the kubelet's folder of the pod tells whether it is gone.

use crate::store::file_id::FileId;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The kubelet's folders of pods below the root of the host, unless it has another `--root-dir`.
const POD_FOLDERS: &str = "var/lib/kubelet/pods";

/// Name of the file in the kubelet's folder of device plugins
/// (`pkg/kubelet/cm/devicemanager/types.go`, `kubeletDeviceManagerCheckpoint`).
pub const CHECKPOINT_FILE: &str = "kubelet_internal_checkpoint";

/// How long a checkpoint has been seen unchanged before a pod without folder is taken for gone, and not for one that is being
/// started: the kubelet makes the folder before the first container, and removes it after the last one has ended
/// (`pkg/kubelet/kubelet.go`, `makePodDataDirs`; `kubelet_volumes.go`, `cleanupOrphanedPodDirs`).
const STARTED_AFTER: Duration = Duration::from_secs(30);

/// Why the checkpoint tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("read the kubelet's checkpoint {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is not in the format of Kubernetes 1.20 and newer.
    #[error("parse the kubelet's checkpoint {path}: {source}; is the kubelet newer than this agent knows?")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
}

/// The part of the file that matters here (`checkpoint/checkpoint.go`).
#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: CheckpointData,
}

#[derive(Deserialize)]
struct CheckpointData {
    /// `null` without any allocation.
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<CheckpointEntry>>,
}

#[derive(Deserialize)]
struct CheckpointEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// Ids by NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
}

/// The folders that the kubelet keeps of the pods of this node.
#[derive(Clone, Debug, Default)]
pub struct PodFolders {
    /// Where they are, `/var/lib/kubelet/pods` of the host as a rule.
    pub folder: PathBuf,
    /// UID of the pod of this process, whose folder must be among them: otherwise the kubelet has its folders elsewhere.
    pub own: String,
}

impl PodFolders {
    /// Those of the host whose root is mounted at `host_root`, for the pod with the UID `own`.
    pub fn on_host(host_root: &Path, own: &str) -> Self {
        Self {
            folder: host_root.join(POD_FOLDERS),
            own: own.to_owned(),
        }
    }

    /// Whether a pod that was admitted a while ago is certainly gone.
    fn is_gone(&self, pod: &str) -> bool {
        let has = |uid: &str| !uid.is_empty() && self.folder.join(uid).is_dir();
        has(&self.own) && !pod.is_empty() && !has(pod)
    }
}

/// Since when the checkpoint has been seen as it is. Its own time would do, were it not for clocks that jump.
#[derive(Clone, Debug, Default)]
pub struct CheckpointAge(Arc<Mutex<Option<(FileId, Instant)>>>);

impl CheckpointAge {
    /// How long the file that is `id` at `now` has been it.
    fn age(&self, id: FileId, now: Instant) -> Duration {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, since) = *seen.filter(|(before, _)| *before == id).get_or_insert((id, now));
        *seen = Some((id, since));
        now.saturating_duration_since(since)
    }
}

/// Notes the checkpoint that is there, for who reads it only now and then; blocks.
pub fn notice(device_plugin_dir: &Path, unchanged: &CheckpointAge, now: Instant) {
    if let Some(id) = FileId::of(&device_plugin_dir.join(CHECKPOINT_FILE)) {
        unchanged.age(id, now);
    }
}

/// Resource and id of every device that the kubelet remembers as given to a container of a pod that may still be there;
/// blocks. A kubelet that never allocated anything has no file.
pub fn remembered(
    device_plugin_dir: &Path,
    pods: &PodFolders,
    unchanged: &CheckpointAge,
    now: Instant,
) -> Result<BTreeSet<(String, String)>, CheckpointError> {
    let path = device_plugin_dir.join(CHECKPOINT_FILE);
    let (id, text) = match read(&path) {
        Ok(read) => read,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(source) => return Err(CheckpointError::Read { path, source }),
    };
    let entries = parse(&text).map_err(|source| CheckpointError::Parse { path, source })?;
    let is_old = unchanged.age(id, now) >= STARTED_AFTER;
    let may_hold = entries.into_iter().filter(|entry| !is_old || !pods.is_gone(&entry.pod));
    Ok(may_hold.flat_map(CheckpointEntry::shares).collect())
}

/// Which file it is and what it says; both of one file, since the kubelet replaces it.
fn read(path: &Path) -> io::Result<(FileId, Vec<u8>)> {
    let mut file = File::open(path)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok((FileId::of_open(&file)?, text))
}

fn parse(text: &[u8]) -> serde_json::Result<Vec<CheckpointEntry>> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    Ok(checkpoint.data.entries.unwrap_or_default())
}

impl CheckpointEntry {
    fn shares(self) -> impl Iterator<Item = (String, String)> {
        let resource = self.resource;
        self.ids.into_values().flatten().map(move |id| (resource.clone(), id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::SystemTime};

    // As kubelet 1.36.3 wrote it, allocation answers shortened.
    const TEXT: &str = r#"{"Data":{"PodDeviceEntries":[
        {"PodUID":"a","ContainerName":"init","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-1"],"1":["GPU-2"]},"AllocResp":"CgA="},
        {"PodUID":"b","ContainerName":"main","ResourceName":"a.b/c","DeviceIDs":{"-1":["GPU-3::0"]},"AllocResp":""}],
        "RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}},"Checksum":4294967295}"#;

    fn write(folder: &Path, text: &str) -> File {
        fs::write(folder.join(CHECKPOINT_FILE), text).unwrap();
        File::options().write(true).open(folder.join(CHECKPOINT_FILE)).unwrap()
    }

    fn ids(folder: &Path, own: &str) -> Vec<String> {
        ids_at(folder, own, &CheckpointAge::default(), Instant::now())
    }

    fn ids_at(folder: &Path, own: &str, unchanged: &CheckpointAge, now: Instant) -> Vec<String> {
        let pods = PodFolders {
            folder: folder.join("pods"),
            own: own.to_owned(),
        };
        remembered(folder, &pods, unchanged, now)
            .unwrap()
            .into_iter()
            .map(|(resource, id)| format!("{resource} {id}"))
            .collect()
    }

    #[test]
    fn ids_of_every_container_and_numa_node_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), TEXT);
        assert_eq!(
            ids(folder.path(), ""),
            ["a.b/c GPU-3::0", "nvidia.com/gpu GPU-1", "nvidia.com/gpu GPU-2"]
        );
    }

    #[test]
    fn a_pod_whose_folder_is_gone_is_forgotten_once_it_cannot_be_starting() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), TEXT);
        for pod in ["own", "a"] {
            fs::create_dir_all(folder.path().join("pods").join(pod)).unwrap();
        }
        let (seen, start) = (CheckpointAge::default(), Instant::now());
        let at = |own: &str, seconds: u64| ids_at(folder.path(), own, &seen, start + Duration::from_secs(seconds));
        assert_eq!(at("own", 0).len(), 3, "pod b may be starting");
        assert_eq!(at("own", 29).len(), 3);
        assert_eq!(at("own", 30), ["nvidia.com/gpu GPU-1", "nvidia.com/gpu GPU-2"]);
        for own in ["", "elsewhere"] {
            assert_eq!(at(own, 60).len(), 3, "these are not the kubelet's folders: {own:?}");
        }
    }

    #[test]
    fn no_time_of_the_file_makes_a_checkpoint_that_was_just_written_an_old_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("pods/own")).unwrap();
        let (seen, start) = (CheckpointAge::default(), Instant::now());
        let at = |seconds: u64| ids_at(folder.path(), "own", &seen, start + Duration::from_secs(seconds)).len();
        let written = |time: SystemTime| write(folder.path(), TEXT).set_modified(time).unwrap();
        // As after a jump of the clock, to either side.
        written(SystemTime::UNIX_EPOCH);
        assert_eq!(at(0), 3);
        assert_eq!(at(31), 0);
        written(SystemTime::now() + Duration::from_hours(1));
        assert_eq!(at(32), 3, "the kubelet has written it anew");
        assert_eq!(at(63), 0);
    }

    #[test]
    fn a_checkpoint_that_was_noticed_is_as_old_as_one_that_was_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("pods/own")).unwrap();
        let (seen, start) = (CheckpointAge::default(), Instant::now());
        notice(folder.path(), &seen, start);
        write(folder.path(), TEXT);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        notice(folder.path(), &seen, at(10));
        assert_eq!(ids_at(folder.path(), "own", &seen, at(39)).len(), 3);
        assert_eq!(ids_at(folder.path(), "own", &seen, at(40)).len(), 0);
    }

    #[test]
    fn a_kubelet_without_allocations_remembers_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ids(folder.path(), "").is_empty());
        write(
            folder.path(),
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#,
        );
        assert!(ids(folder.path(), "").is_empty());
    }

    #[test]
    fn a_file_that_is_no_checkpoint_is_an_error_and_not_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", "[]", r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a"}]}}"#] {
            write(folder.path(), text);
            let error = remembered(
                folder.path(),
                &PodFolders::default(),
                &CheckpointAge::default(),
                Instant::now(),
            );
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("parse the kubelet's checkpoint "), "{error}");
        }
    }
}
