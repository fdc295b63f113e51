//! Faults on disk: a restart of the agent is no evidence of recovery.

use crate::{api_server::gpu_node::GpuNodeState, driver::nvml::probe::LinkEnds, store::atomic_file};
use gpunode_gpu::{DeviceFaults, LastXids};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Name of the file in the state folder.
const FILE: &str = "health.json";
/// Version of this file's own format.
const FORMAT: u32 = 1;
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(30);
/// Time that the start waits for the disk.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedHealth {
    /// Faults by device.
    pub health: DeviceFaults,
    /// Last XIDs of each GPU.
    #[serde(default)]
    pub last_xids: LastXids,
    /// NVLinks that were up, by UUID of the GPU.
    #[serde(default)]
    pub links: BTreeMap<String, Vec<u32>>,
    /// GPUs at the other ends of NVLinks, by UUID of the GPU.
    #[serde(default)]
    pub link_ends: BTreeMap<String, LinkEnds>,
    /// Last time of recovery in the GpuNode.
    #[serde(default)]
    pub recovered: Option<Timestamp>,
    /// True if NVIDIA's DRA driver serves the GPUs, as the GpuNode said last.
    #[serde(default)]
    pub served_by_dra: bool,
    /// UID of the GpuNode that said last that NVIDIA's DRA driver serves the GPUs; none if it said since that it does not.
    #[serde(default)]
    pub dra_source: Option<String>,
    /// Last time of recovery by the file on the node.
    #[serde(default)]
    pub touched: Option<Timestamp>,
}

impl SavedHealth {
    /// Takes in if NVIDIA's DRA driver serves the GPUs. What an earlier agent saved counts until the GpuNode is known; without
    /// API server nobody can tell when that driver is gone.
    ///
    /// Only the operator takes the statement back. A GpuNode that somebody deleted, and that was recreated without a
    /// configuration, takes nothing back: the operator makes the statement again.
    pub fn observe_dra(&mut self, gpu_node: &GpuNodeState, has_api_server: bool) {
        match gpu_node {
            GpuNodeState::Unknown => self.served_by_dra &= has_api_server,
            GpuNodeState::Absent => {}
            GpuNodeState::Present(object) => {
                let (spec, uid) = (&object.spec, &object.metadata.uid);
                if spec.served_by_dra || spec.config.is_some() || self.dra_source.is_none() || self.dra_source == *uid {
                    self.served_by_dra = spec.served_by_dra;
                    self.dra_source = uid.clone().filter(|_| spec.served_by_dra);
                }
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct HealthFile {
    format: u32,
    #[serde(flatten)]
    content: SavedHealth,
}

/// Reads the file of an earlier agent. A file that cannot be parsed is set aside.
pub async fn load(state_dir: &Path) -> SavedHealth {
    let path = state_dir.join(FILE);
    if let Ok(Ok(read)) = timeout(
        READ_TIMEOUT,
        spawn_blocking(move || atomic_file::load::<HealthFile>(&path, FORMAT)),
    )
    .await
    {
        return read.map(|file| file.content).unwrap_or_default();
    }
    warn!(file = %state_dir.join(FILE).display(), "cannot read the saved faults: the disk does not answer; starting without faults");
    SavedHealth::default()
}

/// Writes each content that differs from the one `written` last, until the sender is dropped.
pub async fn write(state_dir: PathBuf, mut written: SavedHealth, mut content: watch::Receiver<SavedHealth>) {
    let mut failing = false;
    loop {
        if !failing && content.changed().await.is_err() {
            return;
        }
        let now = content.borrow_and_update().clone();
        if now == written {
            failing = false;
            continue;
        }
        let path = state_dir.join(FILE);
        let file = HealthFile {
            format: FORMAT,
            content: now,
        };
        let result = spawn_blocking(move || {
            let text = serde_json::to_vec_pretty(&file)?;
            atomic_file::replace(&path, &text).map(|()| file.content)
        });
        match result.await.map_err(io::Error::other).flatten() {
            Ok(done) => {
                if failing {
                    info!("faults are saved again");
                }
                (written, failing) = (done, false);
            }
            Err(error) => {
                if !failing {
                    warn!(%error, folder = %state_dir.display(), "cannot save the faults; retrying");
                }
                failing = true;
                sleep(RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::gpu_node::ObservedGpuNode;
    use gpunode_config::HealthRules as Rules;
    use gpunode_crds::{Configuration, GpuNode, GpuNodeSpec};
    use gpunode_gpu::HealthObservation;
    use kube::core::ApiResource;
    use std::{fs, sync::Arc};

    fn broken() -> SavedHealth {
        let mut content = SavedHealth {
            links: [("GPU-1".to_owned(), vec![0, 1])].into(),
            link_ends: [("GPU-1".to_owned(), vec![(0, "00000000:07:00.0".to_owned())])].into(),
            ..SavedHealth::default()
        };
        let xid = HealthObservation::Xid("GPU-1".to_owned(), 79);
        content.health.observe(xid, &Rules::default(), Timestamp::UNIX_EPOCH);
        content
    }

    #[tokio::test]
    async fn what_is_broken_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()).await, SavedHealth::default());
        let (keep, kept) = watch::channel(SavedHealth::default());
        tokio::spawn(write(folder.path().to_owned(), SavedHealth::default(), kept));
        keep.send_replace(broken());
        let saved = async {
            while load(folder.path()).await != broken() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), saved).await.unwrap();
    }

    #[tokio::test]
    async fn a_fault_of_another_version_hides_no_other_fault() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = serde_json::to_value(HealthFile {
            format: FORMAT,
            content: broken(),
        })
        .unwrap();
        let mut unknown = file["health"]["faults"]["GPU-1"].clone();
        unknown[0]["reason"] = "Newer".into();
        file["health"]["faults"]["GPU-2"] = unknown;
        fs::write(folder.path().join(FILE), file.to_string()).unwrap();
        assert_eq!(load(folder.path()).await, broken());
    }

    #[tokio::test]
    async fn a_file_that_tells_nothing_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for text in ["", "{", r#"{"format":2,"health":{"faults":{},"run":null,"seen":0}}"#] {
            fs::write(&path, text).unwrap();
            assert_eq!(load(folder.path()).await, SavedHealth::default(), "{text}");
            assert_eq!(
                fs::read_to_string(folder.path().join("health.json.corrupt")).unwrap(),
                text
            );
        }
    }
    fn gpu_node(uid: &str, served_by_dra: bool, is_configured: bool) -> GpuNodeState {
        let spec = GpuNodeSpec {
            served_by_dra,
            config: is_configured.then(Configuration::default),
            ..GpuNodeSpec::default()
        };
        let mut object = ObservedGpuNode::new("a", &ApiResource::erase::<GpuNode>(&()), spec);
        object.metadata.uid = Some(uid.to_owned());
        GpuNodeState::Present(Arc::new(object))
    }

    #[test]
    fn a_deleted_gpu_node_gives_no_gpus_back_that_a_dra_driver_serves() {
        let mut saved = SavedHealth::default();
        let mut after = |gpu_node: GpuNodeState| {
            saved.observe_dra(&gpu_node, true);
            saved.served_by_dra
        };
        assert!(!after(GpuNodeState::Absent));
        assert!(!after(gpu_node("1", false, true)));
        assert!(after(gpu_node("1", true, true)));
        assert!(after(GpuNodeState::Absent));
        assert!(after(gpu_node("2", false, false)), "the agent created it");
        assert!(after(gpu_node("2", true, false)));
        assert!(!after(gpu_node("2", false, false)), "the operator took it back");
        assert!(after(gpu_node("2", true, true)));
        assert!(!after(gpu_node("3", false, true)), "the operator has written it");
    }

    #[test]
    fn without_api_server_nothing_is_left_to_a_dra_driver() {
        let mut saved = SavedHealth::default();
        saved.observe_dra(&gpu_node("1", true, true), true);
        saved.observe_dra(&GpuNodeState::Unknown, true);
        assert!(saved.served_by_dra);
        saved.observe_dra(&GpuNodeState::Unknown, false);
        assert!(!saved.served_by_dra);
    }
}
