//! Logs each summary and sends its event.

use crate::{
    audit::{summary::AuditSummary, trail::AuditTrail},
    events::{OperatorEvent, OperatorEventSender},
};
use k8s_openapi::api::core::v1::ObjectReference;

/// Returns a reference to the policy of a name; none if it is gone.
pub type PolicyLookup = Box<dyn Fn(&str) -> Option<ObjectReference> + Send>;

/// The task that reports interventions.
pub struct AuditReporter {
    pub trail: AuditTrail,
    pub policies: PolicyLookup,
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
        let about = (self.policies)(summary.policy.as_deref()?)?;
        Some(OperatorEvent {
            about,
            node: None,
            is_warning: summary.is_warning(),
            reason: summary.reason().as_str().to_owned(),
            message: summary.to_string(),
        })
    }
}
