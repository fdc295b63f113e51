//! Serves `/livez`, `/readyz` and `/metrics`.

use crate::{
    leader_election::{Leadership, OtherLeader},
    metrics::OperatorMetrics,
    reconcile::IndexReader,
};
use anyhow::{Context, Result, bail};
use gpunode_process::{StatusCode, TextResponse};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, time::Instant};

/// Age of the last election attempt at which the process counts as stuck. Attempts are at most nine seconds apart.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The task that serves probes and metrics.
#[derive(Clone)]
pub struct AdminServer {
    pub address: SocketAddr,
    pub index: IndexReader,
    /// Time of the last election attempt.
    pub heartbeat: watch::Receiver<Instant>,
    pub leadership: Leadership,
    /// The leader of another installation, for which this process does not lead.
    pub other_leader: watch::Receiver<Option<OtherLeader>>,
    pub metrics: Arc<OperatorMetrics>,
}

impl AdminServer {
    /// Serves for as long as the process lives.
    pub async fn run(self) -> Result<()> {
        let address = self.address;
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("serve {address}"))?;
        gpunode_process::serve(listener, move |path| self.answer(path)).await;
        bail!("serve {address}: the server ended");
    }

    fn answer(&self, path: &str) -> TextResponse {
        match path {
            // Does not depend on the API server: a restart does not bring that back.
            "/livez" if self.heartbeat.borrow().elapsed() >= STUCK_AFTER => {
                TextResponse::line(StatusCode::INTERNAL_SERVER_ERROR, "leader election is stuck")
            }
            // A standby is ready too, once it could take over.
            "/readyz" if !self.index.has_synced() => {
                TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, "caches are not synced yet")
            }
            "/readyz" => match self.other_leader.borrow().as_ref() {
                Some(leader) => TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, &beside(leader)),
                None => TextResponse::line(StatusCode::OK, "ok"),
            },
            "/livez" => TextResponse::line(StatusCode::OK, "ok"),
            "/metrics" => self.metrics_answer(),
            _ => TextResponse::line(StatusCode::NOT_FOUND, "not found; try /livez, /readyz or /metrics"),
        }
    }

    /// Numbers of nodes and conditions come from the leader alone.
    fn metrics_answer(&self) -> TextResponse {
        let is_leader = self.leadership.is_current();
        let (nodes, conditions) = if is_leader {
            (self.index.node_numbers(), self.index.conditions())
        } else {
            (Vec::new(), Vec::new())
        };
        let (outdated, removal) = if is_leader {
            (self.index.outdated_discovery(), self.index.removal_nodes())
        } else {
            (0, 0)
        };
        self.metrics.set_leader(is_leader);
        self.metrics.set_unreadable_policies(self.index.unreadable_policies());
        self.metrics.set_nodes(nodes);
        self.metrics.set_conditions(conditions);
        self.metrics.set_outdated_discovery(outdated);
        self.metrics.set_removal_nodes(removal);
        TextResponse::metrics(self.metrics.render())
    }
}

/// Says why a second installation is not ready.
fn beside(leader: &OtherLeader) -> String {
    format!("{leader} another installation of gpunode; uninstall one of them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        index::{ClusterIndex, cache::WatchUpdate, effects::Effects, message::IndexMessage},
        reconcile::IndexOwner,
    };
    use gpunode_plan::{AgentImages, AgentPodSettings, HostPaths};
    use jiff::Timestamp;

    #[test]
    fn second_installation_is_not_ready_and_says_who_leads() {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        let (mut owned_index, index) = IndexOwner::new(ClusterIndex::new(pods, true));
        let leader = OtherLeader::sample("elsewhere", "pod", "1.2.3");
        let (leaders, other_leader) = watch::channel(Some(leader));
        let server = AdminServer {
            address: ([127, 0, 0, 1], 0).into(),
            index,
            heartbeat: watch::channel(Instant::now()).1,
            leadership: Leadership::until(Instant::now()),
            other_leader,
            metrics: Arc::new(OperatorMetrics::new()),
        };
        let unready = |text| TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, text);
        assert_eq!(server.answer("/readyz"), unready("caches are not synced yet"));
        for message in [
            IndexMessage::Policies(WatchUpdate::Listed(vec![])),
            IndexMessage::Nodes(WatchUpdate::Listed(vec![])),
            IndexMessage::GpuNodes(WatchUpdate::Listed(vec![])),
            IndexMessage::DaemonSets(WatchUpdate::Listed(vec![])),
        ] {
            let now = Timestamp::now();
            owned_index.lock().apply(message, now, &mut Effects::default());
        }
        let text =
            "pod in namespace elsewhere (version 1.2.3) leads another installation of gpunode; uninstall one of them";
        assert_eq!(server.answer("/readyz"), unready(text));
        leaders.send_replace(None);
        assert_eq!(server.answer("/readyz"), TextResponse::line(StatusCode::OK, "ok"));
    }
}
