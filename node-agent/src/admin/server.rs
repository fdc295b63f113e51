//! HTTP server for `/livez`, `/readyz`, `/metrics` and `/usage`.

use crate::admin::metrics::AgentMetrics;
use anyhow::{Context as _, Result};
use gpunode_crds::UsageReport;
use gpunode_process::{StatusCode, TextResponse};
use std::{net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, sync::watch};
use tracing::info;

/// Reason of a failing probe: the text of the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeFailure(String);

impl From<String> for ProbeFailure {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for ProbeFailure {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// Readiness of the process, for `/readyz`.
pub type Readiness = Result<(), ProbeFailure>;

/// Liveness of the process, for `/livez`: the kubelet restarts a container that fails.
pub type Liveness = Result<(), ProbeFailure>;

/// Binds the address, so that an address in use fails the start.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}; choose another --admin-address"))?;
    info!(address = %listener.local_addr()?, "serving /livez, /readyz, /metrics and /usage");
    Ok(listener)
}

/// Task that serves probes and metrics.
#[derive(Clone)]
pub struct AgentServer {
    pub readiness: watch::Receiver<Readiness>,
    pub liveness: watch::Receiver<Liveness>,
    pub metrics: AgentMetrics,
    /// Report of what containers use; none in a process that reads nothing of it.
    pub usage: Option<watch::Receiver<Arc<UsageReport>>>,
}

impl AgentServer {
    /// Serves until the process ends.
    pub async fn run(self, listener: TcpListener) {
        gpunode_process::serve(listener, move |path| self.answer(path)).await;
    }

    fn answer(&self, path: &str) -> TextResponse {
        let result = match path {
            // An answer shows that the event loop runs.
            "/livez" => self.liveness.borrow().clone(),
            "/readyz" => self.readiness.borrow().clone(),
            "/metrics" => return TextResponse::metrics(self.metrics.render()),
            "/usage" if self.usage.is_some() => return self.usage(),
            _ => {
                return TextResponse::line(
                    StatusCode::NOT_FOUND,
                    "not found; the paths are /livez, /readyz, /metrics and, of an agent with devices, /usage",
                );
            }
        };
        match result {
            Ok(()) => TextResponse::line(StatusCode::OK, "ok"),
            Err(failure) => TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, &failure.0),
        }
    }

    fn usage(&self) -> TextResponse {
        let report = self.usage.as_ref().map(|usage| usage.borrow().clone());
        match serde_json::to_string(&report.as_deref()) {
            Ok(text) => TextResponse::json(text),
            Err(error) => TextResponse::line(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

/// Returns a liveness that is always ok: the answer itself shows that the process works.
pub fn always_live() -> watch::Receiver<Liveness> {
    watch::channel(Ok(())).1
}
