//! What the agent serves over HTTP to the kubelet's probes and to Prometheus.
//!
//! | module | what it does |
//! |---|---|
//! | `server` | serves `/livez`, `/readyz` and `/metrics` |
//! | `metrics` | counts and measures |

pub mod metrics;
pub mod server;
