//! Use of GPUs by the containers that hold them, for metrics and for `kubectl gpunode status NODE`.
//!
//! | module | what it does |
//! |---|---|
//! | `sampler` | reads the figures at an interval, and publishes them |
//! | `owners` | finds the pod and the container of each process |

mod owners;
pub mod sampler;
