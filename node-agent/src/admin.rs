//! HTTP endpoints for the kubelet's probes and for Prometheus.
//!
//! | module | what it does |
//! |---|---|
//! | `server` | serves `/livez`, `/readyz`, `/metrics` and `/usage` |
//! | `metrics` | the Prometheus metrics |

pub mod metrics;
pub mod server;
