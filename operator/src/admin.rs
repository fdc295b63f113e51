//! Serves `/livez`, `/readyz` and `/metrics`.

use crate::{
    index::{summary::ClusterSummary, work::WorkKey},
    leader_election::{Leadership, OtherLeader},
    metrics::{OperatorMetrics, QueueNumbers},
    watch::WatchHealth,
    work_queue::WorkQueue,
};
use anyhow::{Context, Result, bail};
use gpunode_process::{StatusCode, TextResponse};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::watch, time::Instant};

/// The task that serves probes and metrics. No answer waits for a lock that others hold for long.
#[derive(Clone)]
pub struct AdminServer {
    pub address: SocketAddr,
    pub summary: watch::Receiver<Arc<ClusterSummary>>,
    /// Time of the last election attempt.
    pub heartbeat: watch::Receiver<Instant>,
    /// Age of the last election attempt at which the process counts as stuck.
    pub stuck_after: Duration,
    /// Time of the last renewal of the Lease; `None` while this process does not lead.
    pub renewed_at: watch::Receiver<Option<Instant>>,
    pub leadership: Leadership,
    /// The leader of another installation, for which this process does not lead.
    pub other_leader: watch::Receiver<Option<OtherLeader>>,
    /// The reconciler's queue, whose numbers are metrics.
    pub queue: Arc<WorkQueue<WorkKey>>,
    pub watch_health: WatchHealth,
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
            "/livez" if self.heartbeat.borrow().elapsed() >= self.stuck_after => {
                TextResponse::line(StatusCode::INTERNAL_SERVER_ERROR, "leader election is stuck")
            }
            // A standby is ready too, once it could take over.
            "/readyz" if !self.summary.borrow().has_synced => {
                TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, "caches are not synced yet")
            }
            "/readyz" => match self.other_leader.borrow().as_ref() {
                Some(leader) => TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, &beside(leader)),
                None => watches_answer(&self.watch_health.failing(Instant::now())),
            },
            "/livez" => TextResponse::line(StatusCode::OK, "ok"),
            "/metrics" => self.metrics_answer(),
            _ => TextResponse::line(StatusCode::NOT_FOUND, "not found; try /livez, /readyz or /metrics"),
        }
    }

    /// Numbers of nodes and conditions come from the leader alone.
    fn metrics_answer(&self) -> TextResponse {
        let is_leader = self.leadership.is_current();
        let summary = self.summary.borrow().clone();
        let of_leader = if is_leader { summary.clone() } else { Arc::default() };
        let lease_age = self.renewed_at.borrow().map(|renewed| renewed.elapsed());
        let metrics = &self.metrics;
        metrics.election.set(is_leader, lease_age);
        metrics.queue.set(QueueNumbers {
            sweep: of_leader.sweep_nodes,
            ..self.queue.numbers()
        });
        metrics.watches.set(self.watch_health.ages(Instant::now()));
        metrics.caches.set(summary.cache_sizes.iter().copied());
        metrics.policies.set_unreadable(summary.unreadable_policies);
        metrics.policies.set_nodes(of_leader.node_numbers());
        metrics.policies.set_conditions(of_leader.conditions.iter().cloned());
        metrics.policies.set_outdated_discovery(of_leader.outdated_discovery);
        metrics.policies.set_removal_nodes(of_leader.removal_nodes);
        TextResponse::metrics(metrics.render())
    }
}

/// Says if every watch follows the cluster, and which one does not.
fn watches_answer(failing: &[(String, Duration)]) -> TextResponse {
    let Some((kind, age)) = failing.first() else {
        return TextResponse::line(StatusCode::OK, "ok");
    };
    let seconds = age.as_secs();
    let text =
        format!("the watch of {kind} does not follow the cluster: the API server last sent something {seconds} s ago");
    TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, &text)
}

/// Says why a second installation is not ready.
fn beside(leader: &OtherLeader) -> String {
    format!("{leader} another installation of gpunode; uninstall one of them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::NodeCounts;

    /// A server, and what it reads.
    struct Scene {
        server: AdminServer,
        summaries: watch::Sender<Arc<ClusterSummary>>,
        leaders: watch::Sender<Option<OtherLeader>>,
        renewals: watch::Sender<Option<Instant>>,
    }

    impl Scene {
        fn new(leadership: Leadership) -> Self {
            let (summaries, summary) = watch::channel(Arc::default());
            let (leaders, other_leader) = watch::channel(None);
            let (renewals, renewed_at) = watch::channel(None);
            let server = AdminServer {
                address: ([127, 0, 0, 1], 0).into(),
                summary,
                heartbeat: watch::channel(Instant::now()).1,
                stuck_after: Duration::from_secs(30),
                renewed_at,
                leadership,
                other_leader,
                queue: Arc::new(WorkQueue::new()),
                watch_health: WatchHealth::default(),
                metrics: Arc::new(OperatorMetrics::new()),
            };
            Self {
                server,
                summaries,
                leaders,
                renewals,
            }
        }

        fn publish(&self, summary: ClusterSummary) {
            self.summaries.send_replace(Arc::new(summary));
        }
    }

    #[test]
    fn second_installation_is_not_ready_and_says_who_leads() {
        let scene = Scene::new(Leadership::until(Instant::now()));
        scene
            .leaders
            .send_replace(Some(OtherLeader::sample("elsewhere", "pod", "1.2.3")));
        let unready = |text| TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, text);
        assert_eq!(scene.server.answer("/readyz"), unready("caches are not synced yet"));
        scene.publish(ClusterSummary {
            has_synced: true,
            ..ClusterSummary::default()
        });
        let text =
            "pod in namespace elsewhere (version 1.2.3) leads another installation of gpunode; uninstall one of them";
        assert_eq!(scene.server.answer("/readyz"), unready(text));
        scene.leaders.send_replace(None);
        assert_eq!(scene.server.answer("/readyz"), TextResponse::line(StatusCode::OK, "ok"));
    }

    #[tokio::test(start_paused = true)]
    async fn process_without_an_election_attempt_is_stuck() {
        let scene = Scene::new(Leadership::until(Instant::now()));
        let ok = TextResponse::line(StatusCode::OK, "ok");
        assert_eq!(scene.server.answer("/livez"), ok);
        tokio::time::advance(Duration::from_secs(30)).await;
        let stuck = TextResponse::line(StatusCode::INTERNAL_SERVER_ERROR, "leader election is stuck");
        assert_eq!(scene.server.answer("/livez"), stuck);
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_of_nodes_come_from_the_leader_alone() {
        let scene = Scene::new(Leadership::until(Instant::now() + Duration::from_secs(10)));
        scene.renewals.send_replace(Some(Instant::now()));
        let counts = NodeCounts {
            matched: 4,
            ..NodeCounts::default()
        };
        scene.publish(ClusterSummary {
            node_counts: vec![("p".to_owned(), counts)],
            unreadable_policies: 1,
            removal_nodes: 7,
            cache_sizes: vec![("nodes", 5)],
            sweep_nodes: 3,
            ..ClusterSummary::default()
        });
        let matched = r#"gpunode_operator_policy_nodes{policy="p",state="matched"} 4"#;
        for (seconds, is_leader) in [(2, true), (10, false)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            scene.server.metrics_answer();
            let text = scene.server.metrics.render();
            let has = |line: &str| text.lines().any(|other| other == line);
            assert_eq!(has(matched), is_leader, "{text}");
            assert_eq!(has("gpunode_operator_removal_waiting_nodes 7"), is_leader, "{text}");
            assert_eq!(has("gpunode_operator_sweep_pending_nodes 3"), is_leader, "{text}");
            assert!(has("gpunode_operator_unreadable_policies 1"), "{text}");
            assert!(has(r#"gpunode_operator_cache_objects{resource="nodes"} 5"#), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn process_whose_watch_is_dead_is_not_ready_and_names_it() {
        let scene = Scene::new(Leadership::until(Instant::now()));
        scene.publish(ClusterSummary {
            has_synced: true,
            ..ClusterSummary::default()
        });
        let health = scene.server.watch_health.clone();
        health.began_list("nodes", Instant::now());
        health.listed("nodes", Instant::now());
        assert_eq!(scene.server.answer("/readyz"), TextResponse::line(StatusCode::OK, "ok"));
        tokio::time::advance(Duration::from_secs(85)).await;
        let text = "the watch of nodes does not follow the cluster: the API server last sent something 85 s ago";
        let unready = TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, text);
        assert_eq!(scene.server.answer("/readyz"), unready);
        health.contact("nodes", Instant::now());
        assert_eq!(scene.server.answer("/readyz"), TextResponse::line(StatusCode::OK, "ok"));
    }
}
