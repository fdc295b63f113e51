//! `GpuNode.status`, as the agent writes it.
//!
//! | module | what it does |
//! |---|---|
//! | `report` | makes the status of what is known, pure |

pub mod report;
