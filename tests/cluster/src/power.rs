//! Switching nodes off and on.

use std::fs;

use anyhow::{Context, Result};
use gpunode_scenario::{DriverState, StateFile};

use crate::{
    cgroup::{self, Trees},
    control_plane::ControlPlane,
    network,
    node::Node,
    node_start,
};

impl Node {
    /// Takes the power away: everything on the node ends at once, without a word to anybody.
    pub fn power_off(&self) -> Result<()> {
        let Ok(holder) = self.sandbox().holder() else {
            return Ok(());
        };
        holder
            .kill()
            .with_context(|| format!("switch node {} off", self.name()))?;
        let control_plane = ControlPlane::new(self.layout());
        network::disconnect_node(control_plane.sandbox(), self.index())
    }

    /// Boots a node that is switched off, with a new boot id. Returns when the kubelet has started.
    pub fn power_on(&self) -> Result<()> {
        self.boot().with_context(|| format!("switch node {} on", self.name()))
    }

    /// Switches the node off and on.
    pub fn reboot(&self) -> Result<()> {
        self.power_off()?;
        self.power_on()
    }

    fn boot(&self) -> Result<()> {
        // What a machine keeps in memory.
        let run = self.path("/run");
        fs::remove_dir_all(&run).with_context(|| format!("empty {}", run.display()))?;
        if self.spec().gpus.is_some() {
            let (dir, files) = (self.driver_dir()?, self.kernel_files());
            StateFile::open(&dir)?.reboot().context("reset the driver's modes")?;
            files.forget_nodes()?;
            files
                .write(&DriverState::gpus(&dir)?)
                .context("show what the boot left")?;
        }
        let trees = Trees::find()?;
        let group = cgroup::group(self.layout().folder());
        trees.remove(&format!("{group}/{}", self.name()))?;
        trees.create(&group, self.name())?;

        node_start::start_sandbox(self)?;
        let control_plane = ControlPlane::new(self.layout());
        network::connect_node(control_plane.sandbox(), self)?;
        node_start::start_containerd(self)?;
        node_start::start_kube_proxy(self)?;
        self.start_kubelet()
    }
}
