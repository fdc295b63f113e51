//! `/livez`, `/readyz` and `/metrics`.

use crate::{bounded_http, controller::Controller, lease::Claim, metrics::Metrics};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, time::Instant};

/// The election goes round at least every nine seconds; a process that has not done so for this long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// What the endpoints look at.
#[derive(Clone)]
pub struct Admin {
    /// Knows whether the caches are warm.
    pub controller: Arc<Controller>,
    /// When the election last went round.
    pub heartbeat: watch::Receiver<Instant>,
    /// Whether this process leads.
    pub claim: Claim,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, admin: Admin) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(admin);
    bounded_http::serve(TcpListener::bind(address).await?, router).await;
    Ok(())
}

/// Says only that the process works; an API server that does not answer is not cured by a restart.
async fn livez(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.heartbeat.borrow().elapsed() < STUCK_AFTER {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "the election is stuck\n")
    }
}

/// A standby is ready too, once it could take over.
async fn readyz(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.controller.is_warm() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    let leads = admin.claim.is_current();
    admin.metrics.set_leader(leads);
    admin.metrics.set_nodes(if leads { admin.controller.node_numbers() } else { Vec::new() });
    admin.metrics.render()
}
