//! HTTP server for `/livez`, `/readyz` and `/metrics`.

use crate::admin::metrics::AgentMetrics;
use anyhow::{Context as _, Result};
use gpunode_process::{StatusCode, TextResponse};
use std::net::SocketAddr;
use tokio::{net::TcpListener, sync::watch};
use tracing::info;

/// Readiness of the process; the error is the text of `/readyz`.
pub type Readiness = Result<(), String>;

/// Liveness of the process; the error is the text of `/livez`, and the kubelet restarts the container.
pub type Liveness = Result<(), String>;

/// Binds the address, so that an address in use fails the start.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}; choose another --admin-address"))?;
    info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    Ok(listener)
}

/// Serves until the process ends.
pub async fn serve(
    listener: TcpListener,
    readiness: watch::Receiver<Readiness>,
    liveness: watch::Receiver<Liveness>,
    metrics: AgentMetrics,
) {
    gpunode_process::serve(listener, move |path| {
        answer(path, &readiness.borrow(), &liveness.borrow(), &metrics)
    })
    .await;
}

/// Returns a liveness that is always ok: the answer itself shows that the process works.
pub fn always_live() -> watch::Receiver<Liveness> {
    watch::channel(Ok(())).1
}

fn answer(path: &str, readiness: &Readiness, liveness: &Liveness, metrics: &AgentMetrics) -> TextResponse {
    let said = match path {
        // An answer shows that the event loop runs.
        "/livez" => liveness,
        "/readyz" => readiness,
        "/metrics" => return TextResponse::metrics(metrics.render()),
        _ => {
            return TextResponse::line(
                StatusCode::NOT_FOUND,
                "not found; the paths are /livez, /readyz and /metrics",
            );
        }
    };
    match said {
        Ok(()) => TextResponse::line(StatusCode::OK, "ok"),
        Err(reason) => TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, reason),
    }
}
