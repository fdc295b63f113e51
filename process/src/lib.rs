//! Everything that the agent and the operator need alike as long-running processes.
//!
//! | module | what it does |
//! |---|---|
//! | `start` | the log, the runtime and the exit code |
//! | `http` | the server for probes and scrapes |
//! | `on_change` | logs an error that repeats only once |
//! | `event_series` | Kubernetes events: counts those that repeat |
//! | `client` | client that waits when the API server asks for it, and keeps to a rate |
//! | `retry_pace` | pauses between tries of something that should work for long |
//! | `silent_streams` | finds that watches no longer follow, by their silence |
//! | `jitter` | random parts of pauses |

mod client;
mod event_series;
mod http;
mod jitter;
mod on_change;
mod retry_pace;
mod silent_streams;
mod start;

pub use client::{RequestThrottle, paced_client, within};
pub use event_series::{EventContent, EventSeries};
pub use http::{StatusCode, TextResponse, serve};
pub use jitter::random_up_to;
pub use on_change::OnChange;
pub use retry_pace::RetryPace;
pub use silent_streams::SilentStreams;
pub use start::{exit_code, run, start_log};
