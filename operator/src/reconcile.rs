//! Work on what the index asks for, while this process leads.
//!
//! | module | what it does |
//! |---|---|
//! | `controller` | the index, its queue and what follows from a change |
//! | `workers` | carry out the keys of the queue |

mod controller;
mod workers;

pub use controller::Controller;
pub use workers::run_workers;
