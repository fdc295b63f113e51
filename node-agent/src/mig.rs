//! Gives the GPUs of the node their MIG layouts: carries out the work that the main loop decides on.
//!
//! | module | what it does |
//! |---|---|
//! | `executor` | takes work, and publishes its results |
//! | `job` | does the work on one GPU, on a thread of its own |
//! | `occupants` | finds processes and open handles on what has to go |
//! | `persistenced` | makes the socket of nvidia-persistenced reachable for NVML |
//! | `record_file` | keeps the records of the GPUs on disk |

pub mod executor;
mod job;
mod occupants;
mod persistenced;
pub mod record_file;
