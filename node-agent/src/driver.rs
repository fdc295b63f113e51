//! The hardware and its driver: NVML, PCI, and the machine around them.
//!
//! | module | what it does |
//! |---|---|
//! | `hardware` | the hardware and the state of its driver |
//! | `hardware_probe` | probes the hardware once |
//! | `hardware_watch` | probes the hardware, and again when it may have changed |
//! | `nvml` | the only module that calls NVML |
//! | `calls` | the calls that hold the driver, and the gate that a release closes |
//! | `driver_events` | receives driver events on a thread |
//! | `library` | finds the driver on the host: its root, library and programs |
//! | `device_roots` | finds device nodes on the host |
//! | `pci` | reads NVIDIA's PCI functions in sysfs |
//! | `platform` | recognises WSL2 and Tegra |
//! | `machine` | reads the machine's name and whether it is virtual |
//! | `utilisation` | reads how busy the GPUs are |

pub mod calls;
pub mod device_roots;
pub mod driver_events;
pub mod hardware;
pub mod hardware_probe;
pub mod hardware_watch;
pub mod library;
pub mod machine;
pub mod nvml;
pub mod pci;
mod platform;
pub mod utilisation;
