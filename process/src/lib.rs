//! Everything that the agent and the operator need alike as long-running processes.
//!
//! | module | what it does |
//! |---|---|
//! | `start` | the log, the runtime and the exit code |
//! | `http` | the server for probes and scrapes |
//! | `on_change` | logs an error that repeats only once |
//! | `event_series` | Kubernetes events: counts those that repeat |

mod event_series;
mod http;
mod on_change;
mod start;

pub use event_series::{EventContent, EventSeries};
pub use http::{StatusCode, TextResponse, serve};
pub use on_change::OnChange;
pub use start::{exit_code, run, start_log};
