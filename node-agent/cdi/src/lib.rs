//! The CDI file of a node: how a container runtime gives a container a GPU or a MIG device.
//!
//! This crate does no IO: `gpunode-agent` finds the driver's files and device nodes on the host, and writes the result. The
//! format is that of the Container Device Interface (`SPEC.md` of cncf-tags/container-device-interface), the content that of
//! NVIDIA's `nvcdi` (`pkg/nvcdi` of nvidia-container-toolkit).
//!
//! | module | what it does |
//! |---|---|
//! | `spec` | the format of the file, and the lowest version of it that fits |
//! | `content` | files of the driver, and device nodes, as they were found on a node |
//! | `links` | symbolic links that containers need beside the driver's libraries |
//! | `hook_program` | the program that the container runtime calls for each container |
//! | `description` | the description of the devices, and the devices that it keeps from the file before |

mod content;
mod description;
mod hook_program;
mod links;
mod spec;

pub use content::{CdiGpu, DriverContent, DriverLibrary, HostFile, SymbolicLink};
pub use description::{CdiDescription, DevicesInUse, describe};
pub use hook_program::{HookKind, HookProgram};
pub use spec::{CdiDevice, CdiDeviceNode, CdiHook, CdiMount, CdiSpec, ContainerEdits};

/// Vendor and class of the devices.
pub const KIND: &str = "gpunode.dev/gpu";

/// Name of the file in `/var/run/cdi`: vendor and class, as the Go library names files (`GenerateSpecName` of `pkg/cdi`).
pub const FILE_NAME: &str = "gpunode.dev-gpu.json";

/// Returns the name by which a device plugin requests the device with that UUID.
pub fn qualified_name(uuid: &str) -> String {
    format!("{KIND}={uuid}")
}
