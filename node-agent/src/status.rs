//! `GpuNode.status`, as the agent writes it.
//!
//! | module | what it does |
//! |---|---|
//! | `writer` | writes it to the API server when it changes |
//! | `report` | makes the status of what is known, pure |

pub mod report;
pub mod writer;
