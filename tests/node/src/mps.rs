//! Stands in for the supervisor of MPS daemons: what the agent reads of it in `--mps-dir`, one folder per device with a
//! file `answered` that says when its daemon answered last.

use crate::{Node, wait::POLL};
use anyhow::{Context as _, Result};
use rustix::time::{ClockId, clock_gettime};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::task::JoinHandle;

/// Daemons that answer, until this is dropped.
#[derive(Debug)]
pub struct MpsDaemons {
    folder: PathBuf,
    answering: Arc<Mutex<BTreeSet<String>>>,
    writer: JoinHandle<()>,
}

impl MpsDaemons {
    /// None yet.
    pub fn none(node: &Node) -> Self {
        let answering: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (folder, now_answering) = (node.mps_dir(), answering.clone());
        let writer = tokio::spawn(async move {
            loop {
                for device in now_answering.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    // The folder is gone when the node is.
                    _ = answered(&folder.join(device));
                }
                tokio::time::sleep(20 * POLL).await;
            }
        });
        Self {
            folder: node.mps_dir(),
            answering,
            writer,
        }
    }

    /// The daemon of a device answers from now on.
    pub fn start(&self, device: &str) -> Result<()> {
        let folder = self.folder.join(device);
        fs::create_dir_all(&folder)?;
        answered(&folder)?;
        self.devices(|answering| answering.insert(device.to_owned()));
        Ok(())
    }

    /// The daemon of a device answers no more; its folder stays.
    pub fn kill(&self, device: &str) {
        self.devices(|answering| answering.remove(device));
    }

    /// The daemon of a device is gone for good.
    pub fn remove(&self, device: &str) -> Result<()> {
        // Nobody writes while it is removed.
        self.devices(|answering| {
            answering.remove(device);
            fs::remove_dir_all(self.folder.join(device))
        })
        .context("remove the folder of the MPS daemon")
    }

    fn devices<T>(&self, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        change(&mut self.answering.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for MpsDaemons {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Writes when the daemon answered: now.
fn answered(folder: &Path) -> Result<()> {
    let now = clock_gettime(ClockId::Boottime);
    let new = folder.join("answered.new");
    fs::write(&new, (now.tv_sec * 1000 + now.tv_nsec / 1_000_000).to_string())?;
    Ok(fs::rename(new, folder.join("answered"))?)
}
