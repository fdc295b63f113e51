//! The records of the GPUs on disk: what a later agent has to know of their layouts.

use crate::store::atomic_file;
use gpunode_gpu::MigRecord;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
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

#[derive(Deserialize, Serialize)]
struct RecordsOnDisk {
    format: u32,
    gpus: MigRecords,
}

/// The records, in memory and on disk.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    records: MigRecords,
    /// Told of each save, also in the middle of a job: what is under way is held from the first call on.
    published: watch::Sender<Option<Arc<MigRecords>>>,
}

impl RecordFile {
    /// Reads the records in a state folder; blocks. A damaged file is set aside and counts as none: every layout is then compared
    /// with the GPU alone.
    pub fn load(state_dir: &Path, published: watch::Sender<Option<Arc<MigRecords>>>) -> Self {
        let path = state_dir.join(FILE);
        let records = atomic_file::load::<RecordsOnDisk>(&path, FORMAT).map(|on_disk| on_disk.gpus);
        let records = records.unwrap_or_default();
        published.send_replace(Some(Arc::new(records.clone())));
        Self {
            path,
            records,
            published,
        }
    }

    /// Returns the records.
    pub fn records(&self) -> &MigRecords {
        &self.records
    }

    /// Changes the record of a GPU, and saves it unless it stays the same; blocks. After an error the record is as before.
    pub fn update(&mut self, gpu: &str, change: impl FnOnce(&mut MigRecord)) -> io::Result<()> {
        let mut records = self.records.clone();
        change(records.entry(gpu.to_owned()).or_default());
        if records == self.records {
            return Ok(());
        }
        let on_disk = RecordsOnDisk {
            format: FORMAT,
            gpus: records,
        };
        let text = serde_json::to_vec(&on_disk).map_err(io::Error::other)?;
        atomic_file::replace(&self.path, &text)?;
        self.records = on_disk.gpus;
        self.published.send_replace(Some(Arc::new(self.records.clone())));
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
        assert_eq!(load().records()["GPU-0"].applied, applied);
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
