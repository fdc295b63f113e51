//! MIG layouts of a node's GPUs: those that they have, and those that a configuration wants.
//!
//! | module | what it does |
//! |---|---|
//! | `observed` | the layout that a GPU has, from the status of its node |
//! | `selection` | the group of a configuration that selects a GPU |
//! | `wanted` | the layout that a group gives a GPU, if it can have it |
//! | `preview` | the layouts that the GPUs of a node would get |

pub mod observed;
pub mod preview;
pub mod selection;
pub mod wanted;
