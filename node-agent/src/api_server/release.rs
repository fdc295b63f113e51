//! The request to release the node's GPUs: their driver is being replaced, and no agent may use it.

use crate::api_server::gpu_node::GpuNodeState;
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

/// File in the state folder that exists while the GPUs are released. An agent that starts then waits for the API server before
/// it uses the driver, and no MPS daemon is started.
const FILE: &str = "released";

/// The request, as this node's GpuNode has it.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// None without API server: nobody can request a release.
    gpu_node: Option<watch::Receiver<GpuNodeState>>,
    file: PathBuf,
    /// State that an earlier agent left in the file; counts until the GpuNode is known.
    before: bool,
}

impl ReleaseRequest {
    /// Follows the GpuNode, if there is an API server.
    pub fn new(gpu_node: Option<watch::Receiver<GpuNodeState>>, state_dir: &Path) -> Self {
        let before = gpu_node.is_some() && is_saved(state_dir);
        Self {
            gpu_node,
            file: state_dir.join(FILE),
            before,
        }
    }

    /// Returns whether the GPUs are released.
    pub fn is_on(&self) -> bool {
        self.gpu_node
            .as_ref()
            .is_some_and(|gpu_node| is_released(&gpu_node.borrow(), self.before))
    }

    /// Waits until the request changes.
    pub async fn wait_for(&mut self, on: bool) {
        let Some(gpu_node) = &mut self.gpu_node else {
            return std::future::pending().await;
        };
        if gpu_node
            .wait_for(|state| is_released(state, self.before) == on)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Writes or removes the file, for an agent that starts and for the supervisor of MPS daemons.
    pub async fn save(&self, on: bool) {
        let file = self.file.clone();
        let saved = spawn_blocking(move || {
            let done = if on {
                fs::write(&file, "")
            } else {
                fs::remove_file(&file)
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !on => Ok(()),
                done => done,
            }
        });
        if let Err(error) = saved.await.map_err(io::Error::other).flatten() {
            warn!(%error, file = %self.file.display(), "cannot save whether the GPUs are released");
        }
    }
}

/// Returns whether the file says that the GPUs are released; blocks.
pub fn is_saved(state_dir: &Path) -> bool {
    state_dir.join(FILE).exists()
}

fn is_released(gpu_node: &GpuNodeState, before: bool) -> bool {
    match gpu_node {
        GpuNodeState::Unknown => before,
        GpuNodeState::Absent => false,
        GpuNodeState::Present(object) => object.spec.release,
    }
}
