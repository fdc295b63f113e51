//! Counts the nodes of one policy, kept up to date node by node: a change of one node costs the same among ten thousand nodes as
//! among a hundred.

use crate::{
    fleet::rollout::PolicyRollout,
    outcome::{PolicyNodeStatus, PolicyOutcome, PolicyOverride},
};
use gpunode_crds::{MAX_FAILURES, MAX_PREVIEW, MAX_WAITING, NodeCounts, NodeFailure, NodePreview, NodeWaiting, Reason};
use std::collections::{BTreeMap, BTreeSet};

/// Counts, failures and previews over the nodes that one policy matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTally {
    ready: usize,
    updating: usize,
    failed: BTreeMap<String, (Reason, String)>,
    conflicted: BTreeMap<String, (Reason, String)>,
    /// Numbers of further nodes that failed or conflict, of which nothing is kept.
    more_failed: usize,
    more_conflicted: usize,
    /// Failed and conflicted nodes that work: somebody has to act there.
    blocked: BTreeSet<String>,
    previews: BTreeMap<String, NodePreview>,
    /// Devices that wait for their holders, by node.
    waiting: BTreeMap<String, Vec<NodeWaiting>>,
    /// Reason why pods get no GPU, by node.
    gpu_refusals: BTreeMap<String, String>,
    /// Loss of keys to policies of higher priority, by node.
    overridden: BTreeMap<String, PolicyOverride>,
    /// Number of ready nodes on which nothing of the policy is left.
    lost: usize,
    /// Number of these devices.
    waiting_devices: usize,
    /// Rollout over the nodes that the policy governs.
    pub rollout: PolicyRollout,
    /// Rollout of its taints that evict pods, over the nodes that want one.
    pub taint_rollout: PolicyRollout,
}

impl PolicyTally {
    /// Counts a node.
    pub fn add(&mut self, node: &str, status: &PolicyNodeStatus) {
        let PolicyNodeStatus {
            outcome,
            preview,
            waiting,
            gpu_refusal,
            stage,
            taint_stage,
            overridden,
        } = status;
        match outcome {
            None => {}
            Some(PolicyOutcome::Ready) => self.ready += 1,
            Some(PolicyOutcome::Updating) => self.updating += 1,
            Some(PolicyOutcome::Failed { reason, message }) => {
                self.failed.insert(node.to_owned(), (*reason, message.clone()));
            }
            Some(PolicyOutcome::Conflicted { reason, message }) => {
                self.conflicted.insert(node.to_owned(), (*reason, message.clone()));
            }
        }
        if outcome.as_ref().is_some_and(PolicyOutcome::needs_somebody) {
            self.blocked.insert(node.to_owned());
        }
        self.previews
            .extend(preview.as_ref().map(|preview| (node.to_owned(), preview.clone())));
        if !waiting.is_empty() {
            self.waiting_devices += waiting.len();
            self.waiting.insert(node.to_owned(), waiting.clone());
        }
        self.gpu_refusals
            .extend(gpu_refusal.as_ref().map(|reason| (node.to_owned(), reason.clone())));
        if let Some(lost) = overridden {
            self.overridden.insert(node.to_owned(), lost.clone());
            self.lost += usize::from(lost.is_whole && *outcome == Some(PolicyOutcome::Ready));
        }
        self.rollout.put(node, stage.as_ref());
        self.taint_rollout.put(node, taint_stage.as_ref());
    }

    /// Counts a node after all those with lesser names. Keeps no more than a status shows, however many nodes there
    /// are; such a tally cannot stop counting a node.
    pub fn add_in_order(&mut self, node: &str, mut status: PolicyNodeStatus) {
        if self.previews.len() >= MAX_PREVIEW {
            status.preview = None;
        }
        match &status.outcome {
            Some(PolicyOutcome::Failed { .. }) if self.failed.len() >= MAX_FAILURES => self.more_failed += 1,
            Some(PolicyOutcome::Conflicted { .. }) if self.conflicted.len() >= MAX_FAILURES => {
                self.more_conflicted += 1;
            }
            _ => return self.add(node, &status),
        }
        self.previews
            .extend(status.preview.map(|preview| (node.to_owned(), preview)));
    }

    /// Counts a ready node as updating from now on.
    pub fn unsettle(&mut self, status: &mut PolicyNodeStatus) {
        if status.outcome != Some(PolicyOutcome::Ready) {
            return;
        }
        let is_lost = status.overridden.as_ref().is_some_and(|lost| lost.is_whole);
        self.ready = self.ready.saturating_sub(1);
        self.updating += 1;
        self.lost = self.lost.saturating_sub(usize::from(is_lost));
        status.outcome = Some(PolicyOutcome::Updating);
    }

    /// Takes a node out of both rollouts.
    pub fn leave_rollouts(&mut self, node: &str) {
        self.rollout.put(node, None);
        self.taint_rollout.put(node, None);
    }

    /// Stops counting a node that was counted with this outcome. Keeps its stages in the rollouts: the node may be counted again
    /// at once and must not lose its permits. [`PolicyTally::leave_rollouts`] removes the stages.
    pub fn remove(&mut self, node: &str, outcome: &PolicyOutcome) {
        match outcome {
            PolicyOutcome::Ready => self.ready = self.ready.saturating_sub(1),
            PolicyOutcome::Updating => self.updating = self.updating.saturating_sub(1),
            PolicyOutcome::Failed { .. } => {
                self.failed.remove(node);
            }
            PolicyOutcome::Conflicted { .. } => {
                self.conflicted.remove(node);
            }
        }
        self.blocked.remove(node);
        self.previews.remove(node);
        self.gpu_refusals.remove(node);
        let waiting = self.waiting.remove(node).unwrap_or_default();
        self.waiting_devices = self.waiting_devices.saturating_sub(waiting.len());
        if let Some(lost) = self.overridden.remove(node)
            && lost.is_whole
            && *outcome == PolicyOutcome::Ready
        {
            self.lost = self.lost.saturating_sub(1);
        }
    }

    /// Returns the counts.
    pub fn counts(&self) -> NodeCounts {
        let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let failed = self.failed.len() + self.more_failed;
        let conflicted = self.conflicted.len() + self.more_conflicted;
        NodeCounts {
            matched: number(self.ready + self.updating + failed + conflicted),
            ready: number(self.ready),
            updating: number(self.updating),
            failed: number(failed),
            conflicted: number(conflicted),
            overridden: number(self.overridden.len()),
        }
    }

    /// Returns the first nodes by name on which the policy is not in force, with the reason.
    pub fn failures(&self) -> Vec<NodeFailure> {
        let both = [&self.failed, &self.conflicted];
        let mut failures: Vec<_> = both
            .into_iter()
            .flat_map(|nodes| nodes.iter().take(MAX_FAILURES))
            .map(|(node, (reason, message))| NodeFailure {
                node: node.clone(),
                reason: reason.as_str().to_owned(),
                message: bounded(message),
            })
            .collect();
        failures.sort_by(|a, b| a.node.cmp(&b.node));
        failures.truncate(MAX_FAILURES);
        failures
    }

    /// Returns the first nodes by name that a policy in mode Preview would change.
    pub fn previews(&self) -> Vec<NodePreview> {
        self.previews.values().take(MAX_PREVIEW).cloned().collect()
    }

    /// Returns the first devices, by node and name, whose change waits for their holders.
    pub fn waiting(&self) -> Vec<NodeWaiting> {
        let mut waiting = Vec::new();
        for devices in self.waiting.values() {
            let mut devices = devices.clone();
            devices.sort_by(|a, b| a.device.cmp(&b.device));
            waiting.extend(devices);
            // Stops early: a node has at most 64 such devices, and there may be ten thousand nodes.
            if waiting.len() >= MAX_WAITING {
                break;
            }
        }
        waiting.truncate(MAX_WAITING);
        waiting
    }

    /// Returns the numbers of such devices and of their nodes, and one device of the first node.
    pub(crate) fn waiting_devices(&self) -> Option<(usize, usize, &NodeWaiting)> {
        let first = self.waiting.values().flatten().next()?;
        Some((self.waiting_devices, self.waiting.len(), first))
    }

    /// Counts the nodes with such devices.
    pub(crate) fn waiting_nodes(&self) -> usize {
        self.waiting.len()
    }

    /// Counts the ready nodes on which nothing of the policy is left.
    pub(crate) fn lost_nodes(&self) -> i32 {
        i32::try_from(self.lost).unwrap_or(i32::MAX)
    }

    /// Returns the first node by name on which the policy loses keys to another one, with the first key and the winner.
    pub(crate) fn first_overridden(&self) -> Option<(&str, &str)> {
        let (node, lost) = self.overridden.first_key_value()?;
        Some((node, &lost.message))
    }

    /// Returns the first failed node by name.
    pub(crate) fn first_failed(&self) -> Option<(&str, Reason, &str)> {
        first(&self.failed)
    }

    /// Returns the number of nodes on which pods get no GPU, and the first of them by name with the reason.
    pub(crate) fn gpu_refusals(&self) -> Option<(usize, &str, &str)> {
        let (node, reason) = self.gpu_refusals.first_key_value()?;
        Some((self.gpu_refusals.len(), node, reason))
    }

    /// Returns the first conflicted node by name.
    pub(crate) fn first_conflicted(&self) -> Option<(&str, Reason, &str)> {
        first(&self.conflicted)
    }

    /// Returns the first node by name that works and on which somebody has to act first.
    pub(crate) fn first_blocked(&self) -> Option<(&str, Reason, &str)> {
        let node = self.blocked.first()?;
        let (reason, message) = self.failed.get(node).or_else(|| self.conflicted.get(node))?;
        Some((node, *reason, message))
    }
}

fn first(nodes: &BTreeMap<String, (Reason, String)>) -> Option<(&str, Reason, &str)> {
    nodes
        .first_key_value()
        .map(|(node, (reason, message))| (node.as_str(), *reason, message.as_str()))
}

/// Cuts a message to the schema's maximum length.
fn bounded(message: &str) -> String {
    message.chars().take(1024).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(outcome: PolicyOutcome) -> PolicyNodeStatus {
        PolicyNodeStatus {
            outcome: Some(outcome),
            preview: Some(NodePreview::default()),
            waiting: vec![NodeWaiting::default()],
            gpu_refusal: Some("m".to_owned()),
            stage: None,
            taint_stage: None,
            overridden: Some(PolicyOverride {
                message: "m".to_owned(),
                is_whole: true,
            }),
        }
    }

    #[test]
    fn a_tally_is_empty_once_every_node_is_removed() {
        let mut tally = PolicyTally::default();
        let outcomes = [
            PolicyOutcome::Ready,
            PolicyOutcome::Updating,
            PolicyOutcome::failed(Reason::NodeNotReady, "m"),
            PolicyOutcome::conflicted(Reason::EqualPriority, "m"),
        ];
        for (index, outcome) in outcomes.iter().enumerate() {
            tally.add(&index.to_string(), &full(outcome.clone()));
        }
        assert_eq!(
            tally.counts(),
            NodeCounts {
                matched: 4,
                ready: 1,
                updating: 1,
                failed: 1,
                conflicted: 1,
                overridden: 4,
            }
        );
        for (index, outcome) in outcomes.iter().enumerate() {
            tally.remove(&index.to_string(), outcome);
        }
        assert_eq!(tally, PolicyTally::default());
    }

    #[test]
    fn ready_node_that_is_unsettled_counts_as_updating_and_can_be_removed() {
        let mut tally = PolicyTally::default();
        let mut status = full(PolicyOutcome::Ready);
        tally.add("a", &status);
        assert_eq!(tally.lost_nodes(), 1);
        tally.unsettle(&mut status);
        assert_eq!(
            (tally.counts().ready, tally.counts().updating, tally.lost_nodes()),
            (0, 1, 0)
        );
        tally.remove("a", &PolicyOutcome::Updating);
        assert_eq!(tally, PolicyTally::default());
    }

    #[test]
    fn tally_in_order_counts_every_node_and_keeps_what_a_status_shows() {
        let (mut tally, mut whole) = (PolicyTally::default(), PolicyTally::default());
        for index in 0..500 {
            let outcome = match index % 3 {
                0 => PolicyOutcome::failed(Reason::NodeNotReady, "m"),
                1 => PolicyOutcome::conflicted(Reason::EqualPriority, "m"),
                _ => PolicyOutcome::Updating,
            };
            let status = PolicyNodeStatus {
                preview: Some(NodePreview::default()),
                ..outcome.into()
            };
            let node = format!("node-{index:03}");
            whole.add(&node, &status);
            tally.add_in_order(&node, status);
        }
        assert_eq!(tally.counts(), whole.counts());
        assert_eq!(tally.failures(), whole.failures());
        assert_eq!(tally.previews(), whole.previews());
        assert_eq!(tally.first_conflicted(), whole.first_conflicted());
        assert_eq!((tally.failed.len(), tally.previews.len()), (MAX_FAILURES, MAX_PREVIEW));
    }

    #[test]
    fn devices_that_wait_are_ordered_by_node_and_device() {
        let mut tally = PolicyTally::default();
        for (node, devices) in [("b", ["GPU-2", "GPU-1"]), ("a", ["GPU-4", "GPU-3"])] {
            let waiting = devices.map(|device| NodeWaiting {
                node: node.to_owned(),
                device: device.to_owned(),
                pods: Vec::new(),
                message: None,
            });
            tally.add(
                node,
                &PolicyNodeStatus {
                    waiting: waiting.into(),
                    ..PolicyOutcome::Ready.into()
                },
            );
        }
        let order: Vec<_> = tally
            .waiting()
            .into_iter()
            .map(|it| it.node + "/" + &it.device)
            .collect();
        assert_eq!(order, ["a/GPU-3", "a/GPU-4", "b/GPU-1", "b/GPU-2"]);
    }

    #[test]
    fn lists_are_bounded_and_ordered_by_name() {
        let mut tally = PolicyTally::default();
        for index in (0..200).rev() {
            let outcome = if index % 2 == 0 {
                PolicyOutcome::failed(Reason::NodeNotReady, "x".repeat(5000))
            } else {
                PolicyOutcome::conflicted(Reason::EqualPriority, "m")
            };
            tally.add(&format!("node-{index:03}"), &full(outcome));
        }
        let failures = tally.failures();
        assert_eq!((failures.len(), tally.previews().len()), (MAX_FAILURES, MAX_PREVIEW));
        assert_eq!((tally.waiting().len(), tally.waiting_nodes()), (MAX_WAITING, 200));
        let expected: Vec<_> = (0..MAX_FAILURES).map(|index| format!("node-{index:03}")).collect();
        assert_eq!(
            failures.iter().map(|failure| failure.node.clone()).collect::<Vec<_>>(),
            expected
        );
        assert!(failures.iter().all(|failure| failure.message.len() <= 1024));
    }
}
