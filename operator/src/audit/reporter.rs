//! Logs each summary and sends its event.

use crate::{
    audit::{summary::AuditSummary, trail::AuditTrail},
    events::{OperatorEvent, OperatorEventSender},
};

/// The task that reports interventions.
pub struct AuditReporter {
    pub trail: AuditTrail,
    pub events: OperatorEventSender,
}

impl AuditReporter {
    /// Reports for as long as the process lives.
    pub async fn run(self) {
        loop {
            for summary in self.trail.ended().await {
                summary.log();
                if let Some(event) = event(&summary) {
                    self.events.send(event);
                }
            }
        }
    }
}

/// Returns the event of a summary; none without a policy that it could be about.
fn event(summary: &AuditSummary) -> Option<OperatorEvent> {
    let policy = summary.policy.as_deref()?;
    let event = OperatorEvent::of_gone_policy(policy, summary.reason(), summary.to_string());
    Some(OperatorEvent {
        about: summary.about.clone().unwrap_or(event.about),
        is_warning: summary.is_warning(),
        ..event
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::event_channel, metrics::OperatorMetrics};
    use gpunode_plan::{Intervention, InterventionCause};
    use k8s_openapi::api::core::v1::ObjectReference;
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
        time::Duration,
    };
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn events_are_about_the_policies_that_were_there_at_the_first_write_and_about_gone_ones() {
        let uids = Arc::new(Mutex::new(BTreeMap::from([("p", "first")])));
        let known = uids.clone();
        let trail = AuditTrail::new(Box::new(move |name| {
            let uid = known.lock().unwrap().get(name).map(|uid| (*uid).to_owned());
            let reference = |uid| ObjectReference {
                uid: Some(uid),
                ..ObjectReference::default()
            };
            uid.map(reference)
        }));
        let add = |policy: &str| {
            let intervention = Intervention {
                policy: Some(policy.to_owned()),
                cause: InterventionCause::TakenOver,
                subject: "label a".to_owned(),
            };
            trail.add("n", [intervention]);
        };
        add("p");
        add("gone");
        // Somebody makes the policy anew before the summary ends.
        uids.lock().unwrap().insert("p", "second");
        add("p");
        let (sender, mut events) = event_channel(Arc::new(OperatorMetrics::new()));
        let reporter = AuditReporter {
            trail: trail.clone(),
            events: sender,
        };
        tokio::spawn(reporter.run());
        let both = async { (events.recv().await.unwrap(), events.recv().await.unwrap()) };
        let (gone, known) = timeout(Duration::from_mins(2), both).await.unwrap();
        assert_eq!(
            (gone.about.name.as_deref(), gone.about.uid, gone.is_warning),
            (Some("gone"), None, false)
        );
        assert_eq!(known.about.uid.as_deref(), Some("first"));
    }
}
