//! The records of the GPUs on disk: what a later agent has to know of their layouts.

use crate::store::atomic_file;
use gpunode_gpu::MigRecord;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::watch;

/// Name of the file in the state folder.
const FILE: &str = "mig.json";
const FORMAT: u32 = 1;

/// Records by the UUID of the GPU.
pub type MigRecords = BTreeMap<String, MigRecord>;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct RecordsOnDisk {
    format: u32,
    gpus: MigRecords,
    /// UUIDs of the GPUs whose persistence mode is off only until their change is over.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    persistent: BTreeSet<String>,
}

/// The records, in memory and on disk.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    on_disk: RecordsOnDisk,
    /// Told of each save, also in the middle of a job: what is under way is held from the first call on.
    published: watch::Sender<Option<Arc<MigRecords>>>,
}

impl RecordFile {
    /// Reads the records in a state folder; blocks. A damaged file is set aside and counts as none: every layout is then compared
    /// with the GPU alone.
    pub fn load(state_dir: &Path, published: watch::Sender<Option<Arc<MigRecords>>>) -> Self {
        let path = state_dir.join(FILE);
        let on_disk = atomic_file::load::<RecordsOnDisk>(&path, FORMAT).unwrap_or_else(|| RecordsOnDisk {
            format: FORMAT,
            gpus: MigRecords::default(),
            persistent: BTreeSet::default(),
        });
        published.send_replace(Some(Arc::new(on_disk.gpus.clone())));
        Self {
            path,
            on_disk,
            published,
        }
    }

    /// Returns the records.
    pub fn records(&self) -> &MigRecords {
        &self.on_disk.gpus
    }

    /// Changes the record of a GPU, and saves it unless it stays the same; blocks. After an error the record is as before.
    pub fn update(&mut self, gpu: &str, change: impl FnOnce(&mut MigRecord)) -> io::Result<()> {
        let mut new = self.on_disk.clone();
        change(new.gpus.entry(gpu.to_owned()).or_default());
        self.save(new)
    }

    /// Returns true if the persistence mode of a GPU has to be switched on again.
    pub fn is_persistent(&self, gpu: &str) -> bool {
        self.on_disk.persistent.contains(gpu)
    }

    /// Saves if the persistence mode of a GPU has to be switched on again; blocks.
    pub fn set_persistent(&mut self, gpu: &str, is_persistent: bool) -> io::Result<()> {
        let mut new = self.on_disk.clone();
        if is_persistent {
            new.persistent.insert(gpu.to_owned());
        } else {
            new.persistent.remove(gpu);
        }
        self.save(new)
    }

    fn save(&mut self, new: RecordsOnDisk) -> io::Result<()> {
        if new == self.on_disk {
            return Ok(());
        }
        let text = serde_json::to_vec(&new).map_err(io::Error::other)?;
        atomic_file::replace(&self.path, &text)?;
        self.on_disk = new;
        self.published.send_replace(Some(Arc::new(self.on_disk.gpus.clone())));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::GpuLayout;
    use std::fs;

    #[test]
    fn a_record_outlives_its_process_and_a_damaged_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let applied = Some(GpuLayout {
            enabled: true,
            instances: Vec::new(),
        });
        let load = || RecordFile::load(folder.path(), watch::Sender::default());
        let mut file = load();
        file.update("GPU-0", |record| record.applied.clone_from(&applied))
            .unwrap();
        let published = file.published.borrow().clone().unwrap();
        assert_eq!(published["GPU-0"].applied, applied);
        file.set_persistent("GPU-0", true).unwrap();
        assert_eq!(load().records()["GPU-0"].applied, applied);
        assert!(load().is_persistent("GPU-0"));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(load().records().is_empty());
        assert!(folder.path().join("mig.json.corrupt").exists());
    }

    #[test]
    fn an_update_that_cannot_be_saved_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = RecordFile::load(&folder.path().join("missing"), watch::Sender::default());
        file.update("GPU-0", |record| record.run.boot = "b".to_owned())
            .unwrap_err();
        assert!(file.records().is_empty());
    }
}
