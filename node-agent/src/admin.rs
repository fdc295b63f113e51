//! `/livez` and `/readyz`.

use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::{io, net::SocketAddr};
use tokio::{net::TcpListener, sync::watch};
use tracing::{error, info};

/// Whether the agent does its work, or why not yet.
pub type Readiness = Result<(), String>;

/// Takes the address, so that one that is in use is noticed at the start.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address).await?;
    info!(address = %listener.local_addr()?, "serving /livez and /readyz");
    Ok(listener)
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, readiness: watch::Receiver<Readiness>) {
    let router = Router::new()
        // An answer shows that the event loop runs; that is all that a restart could cure.
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(readiness);
    if let Err(error) = axum::serve(listener, router).await {
        error!(%error, "serve /livez and /readyz");
    }
}

async fn readyz(State(readiness): State<watch::Receiver<Readiness>>) -> (StatusCode, String) {
    match &*readiness.borrow() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}
