//! The records of the GPUs on disk: what a later agent has to know of their layouts.

use crate::store::atomic_file;
use gpunode_gpu::MigRecord;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    /// True once another agent may write the file.
    stop: Arc<AtomicBool>,
}

impl RecordFile {
    /// Reads the records in a state folder; blocks. A damaged file is set aside and counts as none: every layout is then compared
    /// with the GPU alone. Once `stop` is true, nothing is saved: a call of the driver may end long after the hand-over, and the
    /// records are those of the next agent then.
    pub fn load(
        state_dir: &Path,
        published: watch::Sender<Option<Arc<MigRecords>>>,
        stop: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let path = state_dir.join(FILE);
        let on_disk = atomic_file::try_load::<RecordsOnDisk>(&path, FORMAT)?.unwrap_or_else(|| RecordsOnDisk {
            format: FORMAT,
            gpus: MigRecords::default(),
            persistent: BTreeSet::default(),
        });
        published.send_replace(Some(Arc::new(on_disk.gpus.clone())));
        Ok(Self {
            path,
            on_disk,
            published,
            stop,
        })
    }

    /// Returns the state folder.
    pub fn folder(&self) -> Option<&Path> {
        self.path.parent()
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

    /// Drops the record of a GPU, and saves that; blocks.
    pub fn forget(&mut self, gpu: &str) -> io::Result<()> {
        let mut new = self.on_disk.clone();
        new.gpus.remove(gpu);
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
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the agent ends; the next one goes on"));
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

    fn load(folder: &Path) -> io::Result<RecordFile> {
        RecordFile::load(folder, watch::Sender::default(), Arc::default())
    }

    #[test]
    fn a_record_outlives_its_process_and_a_damaged_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let applied = Some(GpuLayout {
            enabled: true,
            instances: Vec::new(),
        });
        let load = || load(folder.path()).unwrap();
        let mut file = load();
        file.update("GPU-0", |record| record.applied.clone_from(&applied))
            .unwrap();
        let published = file.published.borrow().clone().unwrap();
        assert_eq!(published["GPU-0"].applied, applied);
        file.set_persistent("GPU-0", true).unwrap();
        assert_eq!(load().records()["GPU-0"].applied, applied);
        assert!(load().is_persistent("GPU-0"));
        let mut file = load();
        file.forget("GPU-0").unwrap();
        assert!(load().records().is_empty() && load().is_persistent("GPU-0"));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(load().records().is_empty());
        assert!(folder.path().join("mig.json.corrupt").exists());
    }

    #[test]
    fn an_update_that_cannot_be_saved_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = load(&folder.path().join("missing")).unwrap();
        file.update("GPU-0", |record| record.run.boot = "b".to_owned())
            .unwrap_err();
        assert!(file.records().is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        // Reading a folder is an error of the file system, as a node out of file handles gives one.
        fs::create_dir(folder.path().join(FILE)).unwrap();
        load(folder.path()).unwrap_err();
        assert!(folder.path().join(FILE).is_dir());
    }

    #[test]
    fn an_agent_that_ends_writes_nothing_over_the_records_of_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let mut file = RecordFile::load(folder.path(), watch::Sender::default(), stop.clone()).unwrap();
        file.update("GPU-0", |record| record.run.boot = "first".to_owned())
            .unwrap();
        stop.store(true, Ordering::Relaxed);
        let mut next = load(folder.path()).unwrap();
        next.update("GPU-0", |record| record.run.boot = "second".to_owned())
            .unwrap();
        file.update("GPU-0", |record| record.run.boot = "third".to_owned())
            .unwrap_err();
        file.set_persistent("GPU-0", true).unwrap_err();
        file.forget("GPU-0").unwrap_err();
        let file = load(folder.path()).unwrap();
        assert_eq!(file.records()["GPU-0"].run.boot, "second");
        assert!(!file.is_persistent("GPU-0"));
    }
}
