//! Clock, channels, threads and signals of the process.
//!
//! | module | what it does |
//! |---|---|
//! | `signals` | SIGTERM and SIGHUP as a stream |
//! | `clock` | the time since boot |
//! | `channel` | sends changed values only, and tells if a received one is new |
//! | `blocking_thread` | runs blocking work on one thread at most |
//! | `bounded_file` | reads the start of a file |

pub mod blocking_thread;
pub mod bounded_file;
pub mod channel;
pub mod clock;
pub mod signals;
