//! Progress of a DaemonSet whose pods are replaced by those of a new template.

use gpunode_plan::{is_daemonset_observed, outdated_agents};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::PodTemplateSpec};

/// Progress of one replacement.
#[derive(Debug)]
pub struct PodReplacement {
    template: Option<PodTemplateSpec>,
    /// Nodes whose pod is not replaced yet, from the last status that is of the template.
    behind: i32,
    /// The smallest `behind` so far.
    fewest: i32,
    /// Number of them that the rollout waits for.
    waited_for: i32,
    /// Time of the last progress.
    since: Timestamp,
}

impl PodReplacement {
    /// Starts with this DaemonSet; the rollout does not wait for `outside` nodes.
    pub fn start(live: &DaemonSet, outside: i32, now: Timestamp) -> Self {
        let behind = outdated_agents(live);
        Self {
            template: template(live).cloned(),
            behind,
            fewest: behind,
            waited_for: (behind - outside).max(0),
            since: now,
        }
    }

    /// True if the DaemonSet still has the template of this replacement.
    pub fn is_of(&self, live: &DaemonSet) -> bool {
        self.template.as_ref() == template(live)
    }

    /// Observes the DaemonSet again. Nodes that join or go down are no progress, and neither are writes of anything but the
    /// template. The deadline starts anew when the rollout waited for no node before.
    pub fn observe(&mut self, live: &DaemonSet, outside: i32, now: Timestamp) {
        if is_daemonset_observed(live) {
            self.behind = outdated_agents(live);
        }
        let waited_for = (self.behind - outside).max(0);
        if self.behind < self.fewest || (self.waited_for == 0 && waited_for > 0) {
            (self.fewest, self.since) = (self.behind, now);
        }
        self.waited_for = waited_for;
    }

    /// Nodes whose pod is not replaced yet.
    pub fn behind(&self) -> i32 {
        self.behind
    }

    /// Time of the last progress, if the rollout waits for a node.
    pub fn waits_since(&self) -> Option<Timestamp> {
        (self.waited_for > 0).then_some(self.since)
    }
}

fn template(daemonset: &DaemonSet) -> Option<&PodTemplateSpec> {
    daemonset.spec.as_ref().map(|spec| &spec.template)
}
