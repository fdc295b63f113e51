//! The agent's process against the simulated NVML and the kubelet's double. The tests share nothing and run side by side.

mod cdi;
mod change;
mod configuration;
mod container_runtime;
mod device_plugin;
mod driver_places;
mod faults;
mod figures;
mod handover;
mod hardware;
mod health;
mod holders;
mod lifecycle;
mod memory;
mod metrics;
mod mig;
mod mig_layout;
mod mps;
mod mps_mounts;
mod mps_shares;
mod nvml_wrapper_bugs;
mod refusals;
mod registration;
mod time_slicing;
mod topology;
