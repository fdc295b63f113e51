//! `/livez`, `/readyz` and `/metrics`.

use crate::{leader_election::Claim, metrics::Metrics, reconcile::Controller};
use gpunode_http::{Answer, StatusCode};
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
    gpunode_http::serve(TcpListener::bind(address).await?, move |path| admin.answer(path)).await;
    Ok(())
}

impl Admin {
    fn answer(&self, path: &str) -> Answer {
        match path {
            // Says only that the process works; an API server that does not answer is not cured by a restart.
            "/livez" if self.heartbeat.borrow().elapsed() >= STUCK_AFTER => {
                Answer::line(StatusCode::INTERNAL_SERVER_ERROR, "the election is stuck")
            }
            // A standby is ready too, once it could take over.
            "/readyz" if !self.controller.is_warm() => {
                Answer::line(StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet")
            }
            "/livez" | "/readyz" => Answer::line(StatusCode::OK, "ok"),
            "/metrics" => {
                let leads = self.claim.is_current();
                self.metrics.set_leader(leads);
                self.metrics.set_nodes(if leads {
                    self.controller.node_numbers()
                } else {
                    Vec::new()
                });
                self.metrics.set_conditions(if leads {
                    self.controller.conditions()
                } else {
                    Vec::new()
                });
                Answer::metrics(self.metrics.render())
            }
            _ => Answer::line(StatusCode::NOT_FOUND, "there are /livez, /readyz and /metrics"),
        }
    }
}
