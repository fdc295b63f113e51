//! The GPUs and MIG devices of a node, as NVML and sysfs describe them.
//!
//! | module | what it does |
//! |---|---|
//! | `inventory` | the GPUs of a node, their MIG devices and links |
//! | `device` | a full GPU or a MIG device: one thing that containers can get |
//! | `gpu_state` | mode and instances of a GPU, as the driver shows them |
//! | `gpu_layout` | mode and instances of a GPU, as they are wanted or were before |
//! | `product` | product names as label values |

mod device;
mod gpu_layout;
mod gpu_state;
mod inventory;
mod product;

pub use device::Device;
pub use gpu_layout::GpuLayout;
pub use gpu_state::{ComputeInstance, GpuInstance, GpuMigState, GpuVirtualization};
pub use inventory::{FabricRegistration, Gpu, Inventory, MigInstance};
pub use product::product_label;
