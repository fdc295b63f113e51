//! What the kubelet's device manager remembers on disk.
//!
//! PodResources leaves out the devices of init containers that run to their end, though the kubelet keeps them until the
//! pod is gone (`pkg/kubelet/apis/podresources/server_v1.go`). The checkpoint has them. It is written after each
//! allocation and after each device list (`pkg/kubelet/cm/devicemanager/manager.go`, `writeCheckpoint`): it may name
//! holders that are gone, and names all that are there.

use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

/// Name of the file in the kubelet's folder of device plugins
/// (`pkg/kubelet/cm/devicemanager/types.go`, `kubeletDeviceManagerCheckpoint`).
pub const CHECKPOINT_FILE: &str = "kubelet_internal_checkpoint";

/// Why the checkpoint tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    /// `null` without any allocation.
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "ResourceName")]
    resource: String,
    /// Ids by NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<String, Vec<String>>,
}

/// Resource and id of every device that the kubelet remembers as given to a container; blocks. A kubelet that never
/// allocated anything has no file.
pub fn remembered(device_plugin_dir: &Path) -> Result<BTreeSet<(String, String)>, Error> {
    let path = device_plugin_dir.join(CHECKPOINT_FILE);
    match fs::read(&path) {
        Ok(text) => parse(&text).map_err(|source| Error::Parse { path, source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(source) => Err(Error::Read { path, source }),
    }
}

fn parse(text: &[u8]) -> serde_json::Result<BTreeSet<(String, String)>> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    let of_entry = |entry: Entry| {
        let resource = entry.resource;
        entry.ids.into_values().flatten().map(move |id| (resource.clone(), id))
    };
    Ok(checkpoint.data.entries.into_iter().flatten().flat_map(of_entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_container_and_numa_node_are_remembered() {
        // As kubelet 1.36.3 wrote it, allocation answers shortened.
        let text = br#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"a","ContainerName":"init","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-1"],"1":["GPU-2"]},"AllocResp":"CgA="},
            {"PodUID":"b","ContainerName":"main","ResourceName":"a.b/c","DeviceIDs":{"-1":["GPU-3::0"]},"AllocResp":""}],
            "RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}},"Checksum":4294967295}"#;
        let pair = |resource: &str, id: &str| (resource.to_owned(), id.to_owned());
        let expected = [pair("a.b/c", "GPU-3::0"), pair("nvidia.com/gpu", "GPU-1"), pair("nvidia.com/gpu", "GPU-2")];
        assert_eq!(parse(text).unwrap(), expected.into());
    }

    #[test]
    fn a_kubelet_without_allocations_remembers_nothing() {
        assert!(
            parse(br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#).unwrap().is_empty()
        );
        let folder = tempfile::tempdir().unwrap();
        assert!(remembered(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_is_no_checkpoint_is_an_error_and_not_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "{}", "[]", r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a"}]}}"#] {
            fs::write(folder.path().join(CHECKPOINT_FILE), text).unwrap();
            let error = remembered(folder.path()).unwrap_err().to_string();
            assert!(error.starts_with("parse the kubelet's checkpoint "), "{error}");
        }
    }
}
