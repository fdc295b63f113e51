//! Use of the CDI file: its optional parts, and the devices that it has to name.

use gpunode_cdi::DevicesInUse;
use gpunode_config::AgentConfig;

/// Optional parts of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiOptions {
    /// Adds GPUDirect Storage: `/dev/nvidia-fs*`, `/run/udev` and `/etc/cufile.json`.
    pub gds: bool,
    /// Adds the devices of RDMA network cards: `/dev/infiniband/uverbs*` and `rdma_cm`.
    pub mofed: bool,
    /// Adds `/dev/gdrdrv`.
    pub gdrcopy: bool,
    /// Numbers of the IMEX channels to add, where the node has them.
    pub imex_channels: Vec<u32>,
}

impl CdiOptions {
    /// Returns the options of a configuration; none if no strategy uses CDI.
    pub fn of(config: &AgentConfig) -> Option<Self> {
        config.uses_cdi().then(|| Self {
            gds: config.gds(),
            mofed: config.mofed(),
            gdrcopy: config.gdrcopy(),
            imex_channels: config.imex_channels(),
        })
    }
}

/// Use of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiDemand {
    /// Optional parts; none while no strategy uses CDI.
    pub options: Option<CdiOptions>,
    /// Reason why the container runtime does not read the file, so that containers would fail for its names.
    pub unread: Option<String>,
    /// Devices that stay in the file while they are in use.
    pub in_use: DevicesInUse,
}
