//! The checkpoint file of the kubelet's device manager.
//!
//! PodResources leaves out the devices of init containers that run to completion, though the kubelet keeps them until
//! the pod is gone (`pkg/kubelet/apis/podresources/server_v1.go`). The checkpoint has them. The kubelet writes it after
//! each allocation and after each device list (`pkg/kubelet/cm/devicemanager/manager.go`, `writeCheckpoint`): it lists
//! all holders, and may list some that are gone. Without a registered device plugin the kubelet drops no entry for
//! minutes; then a pod is gone if the kubelet's folder of the pod is gone.

use crate::store::file_id::FileId;
use gpunode_gpu::device_of;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Name of the file in the kubelet's folder of device plugins
/// (`pkg/kubelet/cm/devicemanager/types.go`, `kubeletDeviceManagerCheckpoint`).
pub const CHECKPOINT_FILE: &str = "kubelet_internal_checkpoint";

/// Age of an unchanged checkpoint from which a pod without folder counts as gone rather than as starting: the kubelet
/// creates the folder before the first container, and removes it after the last one ends
/// (`pkg/kubelet/kubelet.go`, `makePodDataDirs`; `kubelet_volumes.go`, `cleanupOrphanedPodDirs`).
const STARTED_AFTER: Duration = Duration::from_secs(30);

/// Error of reading the checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("read the kubelet's checkpoint {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not in the format of Kubernetes 1.20 and newer.
    #[error("parse the kubelet's checkpoint {path}: {source}; is the kubelet too new for this agent?")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

/// The part of the file that the agent reads (`checkpoint/checkpoint.go`).
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
    /// Device ids by NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
}

/// The kubelet's folders of the pods of this node.
#[derive(Clone, Debug, Default)]
pub struct PodFolders {
    /// Their parent folder: `pods` in the kubelet's `--root-dir` (`pkg/kubelet/kubelet_getters.go`, `getPodsDir`).
    pub folder: PathBuf,
    /// UID of this process's own pod. If it has no folder here, the kubelet keeps its folders elsewhere.
    pub own: String,
}

impl PodFolders {
    /// Returns true if a pod that was admitted a while ago is certainly gone.
    fn is_gone(&self, pod: &str) -> bool {
        let has = |uid: &str| !uid.is_empty() && self.folder.join(uid).is_dir();
        has(&self.own) && !pod.is_empty() && !has(pod)
    }
}

/// Time since the checkpoint last changed, by a monotonic clock: the file's own time follows clock jumps.
#[derive(Clone, Debug, Default)]
pub struct CheckpointAge(Arc<Mutex<Option<(FileId, Instant)>>>);

impl CheckpointAge {
    /// Returns the time for which the file has been `id`, up to `now`.
    fn age(&self, id: FileId, now: Instant) -> Duration {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, since) = *seen.filter(|(before, _)| *before == id).get_or_insert((id, now));
        *seen = Some((id, since));
        now.saturating_duration_since(since)
    }
}

/// Notes the current checkpoint, for callers that rarely read it; blocks.
pub fn notice(device_plugin_dir: &Path, unchanged: &CheckpointAge, now: Instant) {
    if let Some(id) = FileId::of(&device_plugin_dir.join(CHECKPOINT_FILE)) {
        unchanged.age(id, now);
    }
}

/// Returns resource and id of every device in the checkpoint whose pod may still exist; blocks. A kubelet that never
/// allocated a device has no file.
pub fn remembered(
    device_plugin_dir: &Path,
    pods: &PodFolders,
    unchanged: &CheckpointAge,
    now: Instant,
) -> Result<BTreeSet<(String, String)>, CheckpointError> {
    let Some((id, entries)) = entries(device_plugin_dir)? else {
        return Ok(BTreeSet::new());
    };
    let is_old = unchanged.age(id, now) >= STARTED_AFTER;
    let may_hold = entries.into_iter().filter(|entry| !is_old || !pods.is_gone(&entry.pod));
    Ok(may_hold.flat_map(CheckpointEntry::shares).collect())
}

/// Returns the UUIDs of the devices of each pod in the checkpoint, by the UID of the pod, of any plugin; blocks. Pods that are gone may
/// be among them.
pub fn devices_of_pods(device_plugin_dir: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, CheckpointError> {
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in entries(device_plugin_dir)?.into_iter().flat_map(|(_, entries)| entries) {
        let devices = pods.entry(entry.pod.clone()).or_default();
        devices.extend(entry.shares().map(|(_, id)| device_of(&id).to_owned()));
    }
    Ok(pods)
}

/// Returns the UID of the pod of each share in the checkpoint, by resource and id; blocks.
pub fn pods_of_shares(device_plugin_dir: &Path) -> Result<BTreeMap<(String, String), String>, CheckpointError> {
    let entries = entries(device_plugin_dir)?.into_iter().flat_map(|(_, entries)| entries);
    let of_entry = |entry: CheckpointEntry| {
        let pod = entry.pod.clone();
        entry.shares().map(move |share| (share, pod.clone()))
    };
    Ok(entries.flat_map(of_entry).collect())
}

/// Returns the entries of the checkpoint and the file's identity; none without a file.
fn entries(device_plugin_dir: &Path) -> Result<Option<(FileId, Vec<CheckpointEntry>)>, CheckpointError> {
    let path = device_plugin_dir.join(CHECKPOINT_FILE);
    let (id, text) = match read(&path) {
        Ok(read) => read,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CheckpointError::Read { path, source }),
    };
    let entries = parse(&text).map_err(|source| CheckpointError::Parse { path, source })?;
    Ok(Some((id, entries)))
}

/// Returns the file's identity and content, read from one open file because the kubelet replaces it.
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
    fn devices_of_each_pod_are_remembered_without_the_numbers_of_shares() {
        let folder = tempfile::tempdir().unwrap();
        assert!(devices_of_pods(folder.path()).unwrap().is_empty());
        write(folder.path(), TEXT);
        let devices = |ids: &[&str]| -> BTreeSet<String> { ids.iter().map(|id| (*id).to_owned()).collect() };
        assert_eq!(
            devices_of_pods(folder.path()).unwrap(),
            [
                ("a".to_owned(), devices(&["GPU-1", "GPU-2"])),
                ("b".to_owned(), devices(&["GPU-3"]))
            ]
            .into()
        );
        let share = |resource: &str, id: &str| (resource.to_owned(), id.to_owned());
        let pods = pods_of_shares(folder.path()).unwrap();
        assert_eq!(pods.get(&share("a.b/c", "GPU-3::0")).map(String::as_str), Some("b"));
        assert_eq!(
            pods.get(&share("nvidia.com/gpu", "GPU-2")).map(String::as_str),
            Some("a")
        );
        assert_eq!(pods.len(), 3);
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
