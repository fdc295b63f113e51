//! The CDI file of the node, by which container runtimes give containers their devices.
//!
//! | module | what it does |
//! |---|---|
//! | `keeper` | keeps the file up to date, and publishes its state |
//! | `demand` | use of the file: its optional parts, and the devices that it has to name |
//! | `state` | devices that the file describes, and reasons for those that it does not |
//! | `survey` | describes the devices of the node with its driver |
//! | `content` | finds the driver's files on the host |
//! | `device_nodes` | finds device nodes on the host |
//! | `capability_nodes` | makes those of MIG instances that are missing |
//! | `driver_folder` | files below the driver's root |
//! | `soname` | reads the name of a library from its ELF headers |
//! | `hook_program` | chooses the program that the container runtime calls, and installs gpunode's own |
//! | `earlier` | keeps what containers were given by the file while no strategy uses it |
//! | `file` | the file on disk |

mod capability_nodes;
mod content;
pub mod demand;
mod device_nodes;
mod driver_folder;
pub mod earlier;
pub mod file;
mod hook_program;
pub mod keeper;
mod soname;
pub mod state;
pub mod survey;
