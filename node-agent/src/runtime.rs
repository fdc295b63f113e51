//! This process: its clock, channels, threads and signals.
//!
//! | module | what it does |
//! |---|---|
//! | `signals` | SIGTERM and SIGHUP as a stream |
//! | `clock` | the time since boot, which nobody sets |
//! | `channel` | sends over a watch channel only what changed |
//! | `blocking_thread` | runs blocking work that may hang on one thread |

pub mod blocking_thread;
pub mod channel;
pub mod clock;
pub mod signals;
