//! Whether the GPUs of the node are released: their driver is being replaced, and no agent may use it.

use crate::api_server::gpu_node::GpuNodeState;
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

/// File in the state folder that is there while the GPUs are released. An agent that starts then waits for the API server
/// before it uses the driver, and no MPS daemon is started.
const FILE: &str = "released";

/// What the GpuNode says of it.
#[derive(Clone, Debug)]
pub struct ReleaseRequest {
    /// None without API server, where nobody can ask for it.
    gpu_node: Option<watch::Receiver<GpuNodeState>>,
    file: PathBuf,
    /// As an agent before this one left it; until the GpuNode is seen.
    before: bool,
}

impl ReleaseRequest {
    /// As the GpuNode says, if there is one.
    pub fn new(gpu_node: Option<watch::Receiver<GpuNodeState>>, state_dir: &Path) -> Self {
        let before = gpu_node.is_some() && is_noted(state_dir);
        Self {
            gpu_node,
            file: state_dir.join(FILE),
            before,
        }
    }

    /// Whether they are released.
    pub fn is_on(&self) -> bool {
        self.gpu_node
            .as_ref()
            .is_some_and(|gpu_node| is_released(&gpu_node.borrow(), self.before))
    }

    /// Waits until they are released, or are not any more.
    pub async fn is(&mut self, on: bool) {
        let Some(gpu_node) = &mut self.gpu_node else {
            return std::future::pending().await;
        };
        if gpu_node
            .wait_for(|seen| is_released(seen, self.before) == on)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Leaves word for an agent that starts, and for the supervisor of MPS daemons.
    pub async fn note(&self, on: bool) {
        let file = self.file.clone();
        let noted = spawn_blocking(move || {
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
        if let Err(error) = noted.await.map_err(io::Error::other).flatten() {
            warn!(%error, file = %self.file.display(), "leave word for the next agent that the GPUs are or were released");
        }
    }
}

/// Whether an agent of the node has left word that they are released; blocks.
pub fn is_noted(state_dir: &Path) -> bool {
    state_dir.join(FILE).exists()
}

fn is_released(seen: &GpuNodeState, before: bool) -> bool {
    match seen {
        GpuNodeState::Unknown => before,
        GpuNodeState::Absent => false,
        GpuNodeState::Present(object) => object.spec.release,
    }
}
