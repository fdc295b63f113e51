//! A GPU that breaks, by what its simulated driver reports.

use crate::{Lab, eventually};
use anyhow::{Context, Result, ensure};
use gpunode_scenario::{RecoveryAction, StateError, StateFile};
use serde_json::Value;
use std::time::Duration;

/// NVIDIA's number of a GPU timeout, which a reset cures.
const TIMEOUT: u64 = 46;
/// Agents look at their GPUs every 15 seconds.
const LIMIT: Duration = Duration::from_mins(3);

/// A GPU with a fault until it is mended or the value is dropped.
pub struct BrokenGpu<'a> {
    lab: &'a Lab,
    state: StateFile,
    node: String,
    index: u32,
}

impl Lab {
    /// Breaks a GPU, which needs a reset then, and waits until its agent has said so.
    pub fn break_gpu(&self, node: &str, uuid: &str) -> Result<BrokenGpu<'_>> {
        self.break_gpu_by(node, uuid, |state, index| {
            state.inject_xid_with_recovery(index, TIMEOUT, RecoveryAction::GpuReset)
        })
    }

    /// Changes a GPU so that it gets no new work, and waits until its agent has said so.
    pub fn break_gpu_by<T>(
        &self,
        node: &str,
        uuid: &str,
        change: impl FnOnce(&StateFile, u32) -> Result<T, StateError>,
    ) -> Result<BrokenGpu<'_>> {
        let uuids = self.gpu_uuids(node)?;
        let index = uuids
            .iter()
            .position(|of| of == uuid)
            .with_context(|| format!("find {uuid} on {node}"))?;
        let state = StateFile::open(self.cluster().node(node)?.driver_dir()?)?;
        let broken = BrokenGpu {
            lab: self,
            state,
            node: node.to_owned(),
            index: u32::try_from(index)?,
        };
        change(&broken.state, broken.index)?;
        broken.await_health("Unhealthy")?;
        Ok(broken)
    }
}

impl BrokenGpu<'_> {
    /// Mends the GPU and waits until its agent has seen that.
    pub fn repair(self) -> Result<()> {
        self.state.repair(self.index)?;
        self.await_health("Healthy")
    }

    fn await_health(&self, state: &str) -> Result<()> {
        eventually(
            &format!("GPU {} of {} is {state}", self.index, self.node),
            LIMIT,
            || {
                let object = self.lab.get(&["gpunode", &self.node])?;
                let mut gpus = object["status"]["gpus"].as_array().into_iter().flatten();
                let health = gpus
                    .find(|gpu| gpu["index"] == self.index)
                    .map(|gpu| gpu["health"].clone());
                ensure!(
                    health.as_ref().map(|health| &health["state"]) == Some(&Value::from(state)),
                    "it is {health:?}"
                );
                Ok(())
            },
        )
    }
}

impl Drop for BrokenGpu<'_> {
    fn drop(&mut self) {
        // The next test finds a GPU that agents see to be whole at their next look.
        let _ = self.state.repair(self.index);
    }
}
