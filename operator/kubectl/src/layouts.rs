//! MIG layouts of a node's GPUs: those that they have, and those that a configuration wants. Pure.
//!
//! | module | what it does |
//! |---|---|
//! | `observed` | the layout that a GPU has, from the status of its node |

mod observed;

pub use observed::{GpuLayout, observed};
