//! This process: its clock, channels, threads and signals.
//!
//! | module | what it does |
//! |---|---|
//! | `signals` | SIGTERM and SIGHUP as a stream |
//! | `clock` | the time since boot, which nobody sets |
//! | `channel` | sends over a watch channel only what changed |
//! | `one_thread` | runs blocking work that may hang on one thread |

pub mod channel;
pub mod clock;
pub mod one_thread;
pub mod signals;
