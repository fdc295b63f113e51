//! Publishes the summary of the index to those who must not wait for the index.

use crate::index::{ClusterIndex, summary::ClusterSummary};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// Shortest time between two summaries, whose cost grows with the number of policies.
const INTERVAL: Duration = Duration::from_millis(100);

/// Keeps the published summary at most [`INTERVAL`] behind the index.
#[derive(Debug, Default)]
pub struct SummaryPublisher {
    summaries: watch::Sender<Arc<ClusterSummary>>,
    last: Option<Instant>,
    due: Option<Instant>,
}

impl SummaryPublisher {
    /// Follows the summary. Its first value is that of an empty index.
    pub fn follow(&self) -> watch::Receiver<Arc<ClusterSummary>> {
        self.summaries.subscribe()
    }

    /// Publishes a change of the index: at once if the caches have synced by it or the last summary is old enough,
    /// otherwise when the next one is due.
    pub fn changed(&mut self, index: &ClusterIndex) {
        let earliest = self.last.map(|last| last + INTERVAL);
        let has_synced_now = index.has_synced() && !self.summaries.borrow().has_synced;
        match earliest {
            Some(earliest) if !has_synced_now && Instant::now() < earliest => self.due = Some(earliest),
            _ => self.publish(index),
        }
    }

    /// Time at which a summary has to be published that a change left behind.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Publishes the summary of now.
    pub fn publish(&mut self, index: &ClusterIndex) {
        self.summaries.send_replace(Arc::new(index.summary()));
        self.last = Some(Instant::now());
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{effects::Effects, message::IndexMessage};
    use gpunode_plan::{AgentImages, AgentPodSettings, HostPaths};
    use jiff::Timestamp;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn synced_caches_are_told_at_once_and_other_changes_ten_times_a_second() {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        let mut index = ClusterIndex::new(pods, true);
        let mut publisher = SummaryPublisher::default();
        let mut summary = publisher.follow();
        assert!(!summary.borrow().has_synced);
        publisher.changed(&index);
        assert!(summary.has_changed().unwrap(), "the first change is told at once");
        summary.mark_unchanged();
        publisher.changed(&index);
        assert!(!summary.has_changed().unwrap());
        let due = publisher.due().unwrap();
        assert_eq!(due - Instant::now(), INTERVAL);
        for message in [
            IndexMessage::list(IndexMessage::Policies, vec![]),
            IndexMessage::list(IndexMessage::Nodes, vec![]),
            IndexMessage::list(IndexMessage::GpuNodes, vec![]),
            IndexMessage::list(IndexMessage::DaemonSets, vec![]),
        ]
        .into_iter()
        .flatten()
        {
            index.apply(message, Timestamp::now(), &mut Effects::default());
            publisher.changed(&index);
        }
        assert!(summary.borrow_and_update().has_synced);
        assert_eq!(publisher.due(), None);
        publisher.changed(&index);
        assert!(!summary.has_changed().unwrap());
        advance(INTERVAL).await;
        publisher.changed(&index);
        assert!(summary.has_changed().unwrap());
    }
}
