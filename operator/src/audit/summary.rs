//! Sums of interventions by policy and cause. Pure: the clock is an argument.

use gpunode_crds::Reason;
use gpunode_plan::{Intervention, InterventionCause};
use k8s_openapi::api::core::v1::ObjectReference;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};
use tokio::time::Instant;

/// A summary ends when nothing came for so long: the writes of one edit of a policy follow each other faster.
const QUIET: Duration = Duration::from_secs(5);
/// The longest that a summary grows: people want to hear of a rollout of hours while it goes on.
const LONGEST: Duration = Duration::from_mins(1);
/// Names that a text lists; it counts the others.
const MAX_NAMES: usize = 3;

/// Interventions for one policy and cause.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditSummary {
    /// Policy; none for what gpunode writes by itself.
    pub policy: Option<String>,
    /// The policy as it was at the first intervention; none if it was gone.
    pub about: Option<ObjectReference>,
    pub cause: InterventionCause,
    /// Number of interventions.
    pub count: u64,
    /// Names of the nodes.
    pub nodes: BTreeSet<String>,
    /// Things that were taken.
    subjects: BTreeSet<String>,
}

impl AuditSummary {
    /// Reason of the event.
    pub fn reason(&self) -> Reason {
        match self.cause {
            InterventionCause::TakenOver => Reason::KeysTakenOver,
            InterventionCause::Restored => Reason::KeysRestored,
            InterventionCause::EvictingTaint => Reason::NodesEvictPods,
            InterventionCause::BrokenDevice => Reason::BrokenGpusEmptied,
            InterventionCause::GpuChange => Reason::ChangedGpusEmptied,
            InterventionCause::RejectedPod => Reason::RejectedPodsDeleted,
        }
    }

    /// Writes the log line.
    pub fn log(&self) {
        let Self {
            policy, count, nodes, ..
        } = self;
        let (policy, nodes) = (policy.as_deref().unwrap_or_default(), nodes.len());
        tracing::info!(policy, reason = self.reason().as_str(), count, nodes, "{self}");
    }

    /// True if people should look at it: somebody works against the policy, or running pods ended.
    pub fn is_warning(&self) -> bool {
        !matches!(
            self.cause,
            InterventionCause::TakenOver | InterventionCause::RejectedPod
        )
    }
}

impl fmt::Display for AuditSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subjects = listed(&self.subjects);
        let nodes = match self.nodes.len() {
            1 => format!("node {}", listed(&self.nodes)),
            count => format!("{count} nodes ({})", listed(&self.nodes)),
        };
        let pods = match self.count {
            1 => "1 pod".to_owned(),
            count => format!("{count} pods"),
        };
        match self.cause {
            InterventionCause::TakenOver => write!(f, "took over {subjects} on {nodes} from another owner"),
            InterventionCause::Restored => write!(f, "restored {subjects} on {nodes}, which somebody else had changed"),
            InterventionCause::EvictingTaint => write!(f, "set {subjects}, which evicts pods, on {nodes}"),
            InterventionCause::BrokenDevice => write!(f, "evicted {pods} from broken GPUs of {nodes}"),
            InterventionCause::GpuChange => write!(f, "evicted {pods} from GPUs of {nodes} that change"),
            InterventionCause::RejectedPod => write!(f, "deleted {pods} that had been rejected by {nodes}"),
        }
    }
}

/// Returns the first names, and the number of all others.
fn listed(names: &BTreeSet<String>) -> String {
    let first: Vec<_> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let first = first.join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Summaries that still grow.
#[derive(Debug, Default)]
pub struct OpenSummaries(BTreeMap<(Option<String>, InterventionCause), OpenSummary>);

#[derive(Debug)]
struct OpenSummary {
    summary: AuditSummary,
    first: Instant,
    last: Instant,
}

impl OpenSummary {
    fn ends(&self) -> Instant {
        (self.last + QUIET).min(self.first + LONGEST)
    }
}

impl OpenSummaries {
    /// Adds an intervention on a node, and returns its summary.
    pub fn add(&mut self, node: &str, intervention: Intervention, now: Instant) -> &mut AuditSummary {
        let Intervention { policy, cause, subject } = intervention;
        let open = self.0.entry((policy.clone(), cause)).or_insert_with(|| OpenSummary {
            summary: AuditSummary {
                policy,
                about: None,
                cause,
                count: 0,
                nodes: BTreeSet::new(),
                subjects: BTreeSet::new(),
            },
            first: now,
            last: now,
        });
        open.last = now;
        let summary = &mut open.summary;
        summary.count = summary.count.saturating_add(1);
        if !summary.nodes.contains(node) {
            summary.nodes.insert(node.to_owned());
        }
        summary.subjects.insert(subject);
        summary
    }

    /// Removes the summaries that end until `now`, and returns them.
    pub fn take_ended(&mut self, now: Instant) -> Vec<AuditSummary> {
        let ended = self.0.extract_if(.., |_, open| open.ends() <= now);
        ended.map(|(_, open)| open.summary).collect()
    }

    /// Removes all summaries and returns them.
    pub fn take_all(&mut self) -> Vec<AuditSummary> {
        std::mem::take(&mut self.0)
            .into_values()
            .map(|open| open.summary)
            .collect()
    }

    /// Returns the moment at which the next summary ends, unless more is added to it.
    pub fn next_end(&self) -> Option<Instant> {
        self.0.values().map(OpenSummary::ends).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervention(cause: InterventionCause, subject: &str) -> Intervention {
        Intervention {
            policy: Some("p".to_owned()),
            cause,
            subject: subject.to_owned(),
        }
    }

    fn texts(summaries: &[AuditSummary]) -> Vec<String> {
        summaries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn interventions_of_one_policy_and_cause_are_one_text_with_counts() {
        let (mut open, now) = (OpenSummaries::default(), Instant::now());
        for node in 1..=5 {
            let taken = intervention(InterventionCause::TakenOver, "label accelerator");
            open.add(&format!("gpu-{node}"), taken, now);
        }
        open.add(
            "gpu-9",
            intervention(InterventionCause::Restored, "taint a:NoSchedule"),
            now,
        );
        for pod in ["pod ml/a", "pod ml/b"] {
            open.add("gpu-1", intervention(InterventionCause::GpuChange, pod), now);
        }
        assert_eq!(
            texts(&open.take_ended(now + QUIET)),
            [
                "took over label accelerator on 5 nodes (gpu-1, gpu-2, gpu-3 and 2 more) from another owner",
                "restored taint a:NoSchedule on node gpu-9, which somebody else had changed",
                "evicted 2 pods from GPUs of node gpu-1 that change",
            ]
        );
        assert_eq!(open.next_end(), None);
    }

    #[test]
    fn policies_and_causes_have_summaries_of_their_own() {
        let (mut open, now) = (OpenSummaries::default(), Instant::now());
        open.add("n", intervention(InterventionCause::BrokenDevice, "pod ml/a"), now);
        let other = Intervention {
            policy: Some("q".to_owned()),
            ..intervention(InterventionCause::BrokenDevice, "pod ml/b")
        };
        open.add("n", other, now);
        let summaries = open.take_all();
        let counts: Vec<_> = summaries.iter().map(|it| (it.policy.as_deref(), it.count)).collect();
        assert_eq!(counts, [(Some("p"), 1), (Some("q"), 1)]);
    }

    #[test]
    fn summary_ends_after_a_pause_and_after_a_minute_at_the_latest() {
        let (mut open, start) = (OpenSummaries::default(), Instant::now());
        let mut now = start;
        let mut ended = Vec::new();
        while ended.is_empty() {
            open.add("n", intervention(InterventionCause::Restored, "label a"), now);
            assert!(open.next_end() <= Some(start + LONGEST));
            now += QUIET / 2;
            ended = open.take_ended(now);
        }
        assert_eq!(now - start, LONGEST);
        assert_eq!(ended[0].count, 24);
        open.add("n", intervention(InterventionCause::Restored, "label a"), now);
        assert_eq!(open.take_ended(now + QUIET / 2), []);
        assert_eq!(open.next_end(), Some(now + QUIET));
    }
}
