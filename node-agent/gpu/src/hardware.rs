//! The GPUs and MIG devices of a node, as NVML and sysfs describe them.
//!
//! | module | what it does |
//! |---|---|
//! | `inventory` | the GPUs of a node, their MIG devices and links |
//! | `device` | a full GPU or a MIG device: one thing that containers can get |
//! | `product` | product names as label values |

mod device;
mod inventory;
mod product;

pub use device::Device;
pub use inventory::{FabricRegistration, Gpu, Inventory, MigInstance};
pub use product::product_label;
