//! `/livez`, `/readyz` and `/metrics`.

use crate::metrics::Metrics;
use anyhow::{Context as _, Result};
use gpunode_http::{Answer, StatusCode};
use std::net::SocketAddr;
use tokio::{net::TcpListener, sync::watch};
use tracing::info;

/// Whether the agent does its work, or why not yet.
pub type Readiness = Result<(), String>;

/// Takes the address, so that one that is in use is noticed at the start.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}; choose another --admin-address"))?;
    info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    Ok(listener)
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, readiness: watch::Receiver<Readiness>, metrics: Metrics) {
    gpunode_http::serve(listener, move |path| answer(path, &readiness.borrow(), &metrics)).await;
}

fn answer(path: &str, readiness: &Readiness, metrics: &Metrics) -> Answer {
    match (path, readiness) {
        // An answer shows that the event loop runs; that is all that a restart could cure.
        ("/livez", _) | ("/readyz", Ok(())) => Answer::line(StatusCode::OK, "ok"),
        ("/readyz", Err(reason)) => Answer::line(StatusCode::SERVICE_UNAVAILABLE, reason),
        ("/metrics", _) => Answer::metrics(metrics.render()),
        _ => Answer::line(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics"),
    }
}
