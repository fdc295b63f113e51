//! The interventions of all tasks, until they are reported.

use crate::audit::summary::{AuditSummary, OpenSummaries};
use gpunode_plan::Intervention;
use k8s_openapi::api::core::v1::ObjectReference;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Returns a reference to the policy of a name; none if it is gone.
pub type PolicyLookup = Box<dyn Fn(&str) -> Option<ObjectReference> + Send + Sync>;

/// Takes interventions from tasks that write. Its size is bounded by policies, causes, nodes, and the pods that are evicted in a minute.
#[derive(Clone)]
pub struct AuditTrail(Arc<SharedTrail>);

struct SharedTrail {
    policies: PolicyLookup,
    open: Mutex<OpenSummaries>,
    grown: Notify,
}

impl AuditTrail {
    /// A trail without interventions.
    pub fn new(policies: PolicyLookup) -> Self {
        Self(Arc::new(SharedTrail {
            policies,
            open: Mutex::default(),
            grown: Notify::new(),
        }))
    }

    /// Adds what a write took away on a node.
    pub fn add(&self, node: &str, interventions: impl IntoIterator<Item = Intervention>) {
        let mut interventions = interventions.into_iter().peekable();
        if interventions.peek().is_none() {
            return;
        }
        let (now, mut open) = (Instant::now(), self.lock());
        for intervention in interventions {
            let Intervention { policy, cause, subject } = &intervention;
            tracing::debug!(node, policy, ?cause, subject, "took something away from somebody");
            let summary = open.add(node, intervention, now);
            if summary.count == 1 {
                summary.about = summary.policy.as_deref().and_then(&self.0.policies);
            }
        }
        self.0.grown.notify_one();
    }

    /// Waits for summaries that have ended.
    pub async fn ended(&self) -> Vec<AuditSummary> {
        loop {
            let next = {
                let mut open = self.lock();
                let ended = open.take_ended(Instant::now());
                if !ended.is_empty() {
                    return ended;
                }
                open.next_end()
            };
            match next {
                // More may come meanwhile; the loop looks again.
                Some(at) => sleep_until(at).await,
                None => self.0.grown.notified().await,
            }
        }
    }

    /// Logs the summaries that still grow, at the end of the process.
    pub fn log_rest(&self) {
        self.lock().take_all().iter().for_each(AuditSummary::log);
    }

    fn lock(&self) -> MutexGuard<'_, OpenSummaries> {
        // No code that could panic runs under the lock.
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
