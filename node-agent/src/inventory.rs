//! `gpunode-agent inventory`: prints the GPUs of the node as the agent reads them.

use crate::{driver::hardware_probe::DriverRoots, health::node_health::NodeHealth, status::hardware::device};
use anyhow::{Context as _, Result, bail};
use gpunode_crds::GpuNodeStatus;
use gpunode_gpu::Inventory;
use std::io::{self, Write as _};

/// Reads the hardware once and prints it as the status of a `GpuNode`, in JSON. Fails afterwards if the driver, a GPU or a MIG
/// device does not answer. Blocks.
pub fn print(roots: &DriverRoots) -> Result<()> {
    let call = roots.calls.begin().context("begin a call to the driver")?;
    let (_, hardware) = roots.probe(None, false, &call);
    let inventory = hardware.inventory();
    let unknown_health = NodeHealth::default();
    let status = GpuNodeStatus {
        hardware: inventory.map(Inventory::summary),
        driver_version: inventory.and_then(|inventory| inventory.driver_version.clone()),
        cuda_version: inventory.and_then(|inventory| inventory.cuda_version.clone()),
        gpus: inventory
            .iter()
            .flat_map(|inventory| &inventory.gpus)
            .map(|gpu| device(gpu, &unknown_health))
            .collect(),
        ..GpuNodeStatus::default()
    };
    let json = serde_json::to_string(&status).context("write the inventory as JSON")?;
    writeln!(io::stdout(), "{json}").context("print the inventory")?;
    match hardware.problem() {
        Some(problem) => bail!("{problem}"),
        None => Ok(()),
    }
}
