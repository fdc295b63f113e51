//! Logs each summary and sends its event.

use crate::{
    audit::{summary::AuditSummary, trail::AuditTrail},
    events::{OperatorEvent, OperatorEventSender},
    reconcile::IndexReader,
};

/// The task that reports interventions.
pub struct AuditReporter {
    pub trail: AuditTrail,
    pub index: IndexReader,
    pub events: OperatorEventSender,
}

impl AuditReporter {
    /// Reports for as long as the process lives.
    pub async fn run(self) {
        loop {
            for summary in self.trail.ended().await {
                summary.log();
                if let Some(event) = self.event(&summary) {
                    self.events.send(event);
                }
            }
        }
    }

    /// Returns the event of a summary; none without a policy that it could be about.
    fn event(&self, summary: &AuditSummary) -> Option<OperatorEvent> {
        let about = self.index.policy_reference(summary.policy.as_deref()?)?;
        Some(OperatorEvent {
            about,
            node: None,
            is_warning: summary.is_warning(),
            reason: summary.reason().as_str().to_owned(),
            message: summary.to_string(),
        })
    }
}
