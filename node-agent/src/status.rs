//! The agent's part of `GpuNode.status`.
//!
//! | module | what it does |
//! |---|---|
//! | `writer` | writes the status to the API server when it changes |
//! | `report` | composes the status, pure |

pub mod report;
pub mod writer;
