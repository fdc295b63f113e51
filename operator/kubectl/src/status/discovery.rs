//! Progress of an upgrade of discovery. Pure.

use crate::output::plural;
use gpunode_plan::{DISCOVERY_NAME, outdated_agents};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use serde::Serialize;

/// Selects the DaemonSet of discovery.
pub const SELECTOR: &str = "app.kubernetes.io/name=gpunode-agent,app.kubernetes.io/component=discovery";

/// An upgrade of discovery that has nodes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryProgress {
    /// Nodes on which discovery runs.
    pub nodes: i32,
    /// Nodes among them whose pod is of an earlier version.
    pub outdated: i32,
    /// Nodes whose pod is not available, of whichever version.
    pub unavailable: i32,
}

impl DiscoveryProgress {
    /// Returns the progress; none where no node is left.
    pub fn of(daemonsets: &[DaemonSet]) -> Option<Self> {
        let discovery = daemonsets.iter().find(|it| it.name_any() == DISCOVERY_NAME)?;
        let status = discovery.status.as_ref()?;
        Some(Self {
            nodes: status.desired_number_scheduled,
            outdated: outdated_agents(discovery),
            unavailable: status.number_unavailable.unwrap_or(0),
        })
        .filter(|progress| progress.outdated > 0)
    }

    /// Returns the progress as a line for people.
    pub fn text(self) -> String {
        let Self {
            nodes,
            outdated,
            unavailable,
        } = self;
        let unavailable = usize::try_from(unavailable).ok().filter(|count| *count > 0);
        let unavailable = unavailable.map(|count| format!(", {} not available", plural(count, "pod is", "pods are")));
        format!(
            "discovery is being upgraded: {outdated} of {nodes} nodes still to do{}; see \
             `kubectl get pods -A -l app.kubernetes.io/component=discovery`",
            unavailable.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn discovery(updated: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": DISCOVERY_NAME, "generation": 2},
            "status": {
                "observedGeneration": 2, "desiredNumberScheduled": 10, "currentNumberScheduled": 10, "numberMisscheduled": 0,
                "numberReady": 8, "numberUnavailable": 2, "updatedNumberScheduled": updated,
            },
        }))
        .expect("a DaemonSet")
    }

    #[test]
    fn upgrade_with_nodes_left_says_how_far_it_is() {
        let progress = DiscoveryProgress::of(&[discovery(7)]).expect("progress");
        assert!(
            progress.text().starts_with(
                "discovery is being upgraded: 3 of 10 nodes still to do, 2 pods are not available; see `kubectl"
            ),
            "{}",
            progress.text()
        );
        for (unavailable, expected) in [(1, "still to do, 1 pod is not available; see"), (0, "still to do; see")] {
            let text = DiscoveryProgress {
                unavailable,
                ..progress
            }
            .text();
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(DiscoveryProgress::of(&[discovery(10)]), None);
        assert_eq!(DiscoveryProgress::of(&[]), None);
    }
}
