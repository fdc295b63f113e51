//! Files of the driver, and device nodes, as they were found on a node.

use std::collections::BTreeSet;

/// A file, a socket, a folder or a device node of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFile {
    /// Path on the host, with no link below the driver's root in it.
    pub host: String,
    /// Path in containers.
    pub container: String,
}

/// A symbolic link in containers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SymbolicLink {
    /// Content of the link.
    pub target: String,
    /// Path of the link.
    pub path: String,
}

/// A library of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLibrary {
    /// The file itself, not a link to it.
    pub file: HostFile,
    /// Name in its ELF headers, by which programs ask for it.
    pub soname: Option<String>,
    /// Names of symbolic links beside it on the host that lead to it or to its `soname`.
    pub links: BTreeSet<String>,
}

/// Parts of a driver that every container with a device gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverContent {
    /// Version of the driver, such as `580.95.05`.
    pub version: String,
    /// Folders of its libraries in containers.
    pub library_folders: Vec<String>,
    /// Its libraries, in the order of their paths.
    pub libraries: Vec<DriverLibrary>,
    /// Its programs, its firmware, and files for graphics.
    pub files: Vec<HostFile>,
    /// Sockets of its daemons.
    pub sockets: Vec<HostFile>,
    /// Device nodes that belong to no single GPU.
    pub device_nodes: Vec<HostFile>,
}

/// A GPU or a MIG device as the host shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiGpu {
    /// UUID, such as `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// `/dev/nvidiaN` of the GPU, then the capabilities of a MIG device.
    pub nodes: Vec<HostFile>,
    /// Device nodes for graphics, `/dev/dri/...`.
    pub graphics_nodes: Vec<HostFile>,
    /// Links to `graphics_nodes` by PCI address.
    pub graphics_links: Vec<SymbolicLink>,
    /// Device nodes that it needs and the host does not have.
    pub missing: Vec<String>,
    /// True for a GPU on which MIG is on: its node alone lets nobody compute.
    pub is_divided: bool,
}
