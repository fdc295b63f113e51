//! The configuration that the operator writes into this node's GpuNode, with the saved one as a stand-in at the start.

use crate::{
    api_server::gpu_node::{GpuNodeState, ObservedGpuNode},
    configuration::in_force::{ConfigCandidate, DesiredConfig},
    runtime::channel::send_if_new,
};
use gpunode_crds::{ChangeState, DisruptiveChange, MigReason};
use gpunode_gpu::FailedDrain;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};
use tracing::warn;

/// Maximum wait for the API server at the start; after it the agent uses the saved configuration.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// Task that follows the configuration in the GpuNode.
pub struct OperatorConfigWatch {
    pub gpu_node: watch::Receiver<GpuNodeState>,
    /// The saved configuration, for a start without the API server.
    pub saved: Option<Arc<ConfigCandidate>>,
    pub desired_config: watch::Sender<DesiredConfig>,
    /// Publishes the change of the node that the operator writes beside the configuration.
    pub change: watch::Sender<ChangeRequest>,
}

/// Change of the node that the operator writes beside the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeRequest {
    change: Option<DisruptiveChange>,
    /// `since` of the last change that an agent reported as finished.
    finished: Option<Time>,
}

impl ChangeRequest {
    /// Returns the request in a GpuNode.
    fn of(gpu_node: &GpuNodeState) -> Self {
        let GpuNodeState::Present(object) = gpu_node else {
            return Self::default();
        };
        let finished = object.status.as_ref().and_then(|status| status.get("finishedChange"));
        Self {
            change: object.spec.change.clone(),
            finished: finished.and_then(|finished| serde_json::from_value(finished.clone()).ok()),
        }
    }

    /// Returns true if the devices have to become free that change with the configuration with this hash: their pods are
    /// evicted.
    pub fn prepares(&self, hash: &str) -> bool {
        self.of_configuration(hash)
            .is_some_and(|change| change.state == ChangeState::Prepare)
    }

    /// Returns the failure of the drain for the configuration with this hash; none if none failed, or the next one has
    /// begun.
    pub fn failed_drain(&self, hash: &str) -> Option<FailedDrain> {
        let change = self
            .of_configuration(hash)
            .filter(|change| change.state == ChangeState::Failed)?;
        Some(FailedDrain {
            reason: change.reason.map_or(MigReason::DrainTimedOut, MigReason::from),
            message: change.message.clone().unwrap_or_default(),
        })
    }

    fn of_configuration(&self, hash: &str) -> Option<&DisruptiveChange> {
        self.change.as_ref().filter(|change| change.hash == hash)
    }

    /// Returns the start of the change that is approved for the configuration with this hash and not finished, also not as
    /// `finished` says.
    pub fn approved(&self, hash: &str, finished: Option<&Time>) -> Option<&Time> {
        let change = self.of_configuration(hash)?;
        // The API server keeps whole seconds.
        let is_since = |finished: &Time| finished.0.as_second() == change.since.0.as_second();
        let is_finished = [self.finished.as_ref(), finished].into_iter().flatten().any(is_since);
        let is_approved = change.state == ChangeState::Approved && !is_finished;
        is_approved.then_some(&change.since)
    }
}

impl OperatorConfigWatch {
    /// Follows the configuration. Never returns.
    pub async fn run(mut self) {
        let answered = self.gpu_node.wait_for(|state| !matches!(state, GpuNodeState::Unknown));
        _ = timeout(API_TIMEOUT, answered).await;
        let mut source = self.saved.as_ref().and_then(|saved| saved.uid.clone());
        loop {
            let requested = requested_config(&self.gpu_node.borrow_and_update(), &mut source);
            let change = ChangeRequest::of(&self.gpu_node.borrow());
            send_if_new(&self.change, change);
            // Only the first round falls back to the saved configuration.
            let saved = self.saved.take();
            let requested = requested.or_else(|| {
                let saved = saved?;
                warn!(
                    hash = saved.hash,
                    "the API server has not delivered a configuration; starting with the saved one"
                );
                Some(DesiredConfig::Config(saved))
            });
            if let Some(requested) = requested {
                send_if_new(&self.desired_config, requested);
            }
            if self.gpu_node.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Returns the request in a GpuNode; none if the earlier request stands. `source` is the UID of the object that the
/// earlier request came from, possibly before this agent started.
///
/// Only the operator withdraws a configuration, by removing it from the object. A GpuNode that somebody deleted, and
/// that was recreated without a configuration, withdraws nothing: the operator writes the configuration again.
fn requested_config(gpu_node: &GpuNodeState, source: &mut Option<String>) -> Option<DesiredConfig> {
    match gpu_node {
        GpuNodeState::Unknown => None,
        GpuNodeState::Absent => source.is_none().then_some(DesiredConfig::Nothing),
        GpuNodeState::Present(object) => match candidate(object) {
            Some(candidate) => {
                source.clone_from(&object.metadata.uid);
                Some(DesiredConfig::Config(Arc::new(candidate)))
            }
            None if source.is_none() || *source == object.metadata.uid => {
                *source = None;
                Some(DesiredConfig::Nothing)
            }
            None => None,
        },
    }
}

fn candidate(object: &ObservedGpuNode) -> Option<ConfigCandidate> {
    let config = object.spec.config.as_ref()?;
    Some(ConfigCandidate {
        version: config.version,
        hash: config.hash.clone(),
        document: config.document.clone(),
        uid: object.metadata.uid.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNode;
    use kube::core::ApiResource;

    fn gpu_node(uid: &str, document: Option<&str>) -> GpuNodeState {
        let mut object = ObservedGpuNode::new(
            "a",
            &ApiResource::erase::<GpuNode>(&()),
            gpunode_crds::GpuNodeSpec::default(),
        );
        object.metadata.uid = Some(uid.to_owned());
        object.spec.config = document.map(|document| gpunode_crds::Configuration {
            document: document.to_owned(),
            ..gpunode_crds::Configuration::default()
        });
        GpuNodeState::Present(Arc::new(object))
    }

    fn config(uid: &str, document: &str) -> DesiredConfig {
        DesiredConfig::Config(candidate(uid, document))
    }

    fn candidate(uid: &str, document: &str) -> Arc<ConfigCandidate> {
        let (uid, document) = (Some(uid.to_owned()), document.to_owned());
        Arc::new(ConfigCandidate {
            document,
            uid,
            ..ConfigCandidate::default()
        })
    }

    /// Returns the first request of an agent that has a saved configuration and finds this GpuNode.
    async fn after_start(gpu_node: GpuNodeState) -> DesiredConfig {
        let (_sender, gpu_node) = watch::channel(gpu_node);
        let (desired_config, mut requested) = watch::channel(DesiredConfig::Unknown);
        let config_watch = OperatorConfigWatch {
            gpu_node,
            saved: Some(candidate("1", "{}")),
            desired_config,
            change: watch::Sender::default(),
        };
        tokio::select! {
            () = config_watch.run() => unreachable!(),
            _ = requested.changed() => {}
        }
        requested.borrow().clone()
    }

    #[tokio::test]
    async fn a_gpu_node_that_was_deleted_while_no_agent_ran_withdraws_nothing() {
        assert_eq!(after_start(GpuNodeState::Absent).await, config("1", "{}"));
        assert_eq!(after_start(gpu_node("2", None)).await, config("1", "{}"));
    }

    #[tokio::test]
    async fn a_start_follows_what_the_operator_has_said_meanwhile() {
        assert_eq!(after_start(gpu_node("1", None)).await, DesiredConfig::Nothing);
        assert_eq!(after_start(gpu_node("1", Some("a: 1"))).await, config("1", "a: 1"));
        assert_eq!(after_start(gpu_node("2", Some("{}"))).await, config("2", "{}"));
    }

    #[test]
    fn change_is_approved_for_one_configuration_until_it_is_finished() {
        let at = |second| Time(jiff::Timestamp::from_second(second).unwrap());
        let request = |state, status: serde_json::Value| {
            let GpuNodeState::Present(object) = gpu_node("1", Some("{}")) else {
                unreachable!()
            };
            let mut object = (*object).clone();
            object.spec.change = Some(DisruptiveChange {
                state,
                hash: "one".to_owned(),
                since: at(7),
                reason: None,
                message: Some("m".to_owned()),
                attempts: 1,
            });
            object.status = Some(status);
            ChangeRequest::of(&GpuNodeState::Present(Arc::new(object)))
        };
        let open = request(
            ChangeState::Approved,
            serde_json::json!({"finishedChange": "1970-01-01T00:00:06Z"}),
        );
        assert_eq!(open.approved("one", None), Some(&at(7)));
        assert_eq!(open.approved("two", None), None, "another configuration");
        assert_eq!(open.approved("one", Some(&at(7))), None, "finished by this agent");
        let over = request(
            ChangeState::Approved,
            serde_json::json!({"finishedChange": "1970-01-01T00:00:07Z"}),
        );
        assert_eq!(over.approved("one", None), None, "finished by an earlier agent");
        let prepares = request(ChangeState::Prepare, serde_json::json!({}));
        assert_eq!(prepares.approved("one", None), None);
        assert!(prepares.prepares("one") && !prepares.prepares("other") && prepares.failed_drain("one").is_none());
        let failed = request(ChangeState::Failed, serde_json::json!({}));
        let drain = failed.failed_drain("one").unwrap();
        assert_eq!((drain.reason, drain.message.as_str()), (MigReason::DrainTimedOut, "m"));
        assert!(!failed.prepares("one") && failed.failed_drain("other").is_none());
        assert_eq!(ChangeRequest::default().approved("one", None), None);
    }

    #[test]
    fn a_turn_in_a_rollout_is_no_new_configuration() {
        let GpuNodeState::Present(object) = gpu_node("1", Some("{}")) else {
            unreachable!()
        };
        let mut stepped = (*object).clone();
        let started_at = serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
        stepped.spec.step = Some(gpunode_crds::ConfigurationStep {
            started_at,
            generation: None,
            failed: None,
        });
        let mut source = Some("1".to_owned());
        assert_eq!(
            requested_config(&GpuNodeState::Present(Arc::new(stepped)), &mut source),
            Some(config("1", "{}"))
        );
    }

    #[test]
    fn the_operator_withdraws_by_removing_the_configuration() {
        let mut source = None;
        assert_eq!(requested_config(&GpuNodeState::Unknown, &mut source), None);
        assert_eq!(
            requested_config(&GpuNodeState::Absent, &mut source),
            Some(DesiredConfig::Nothing)
        );
        assert_eq!(
            requested_config(&gpu_node("1", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
        assert_eq!(
            requested_config(&gpu_node("1", Some("{}")), &mut source),
            Some(config("1", "{}"))
        );
        assert_eq!(
            requested_config(&gpu_node("1", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
    }

    #[test]
    fn a_deleted_gpu_node_withdraws_nothing() {
        let mut source = None;
        assert_eq!(
            requested_config(&gpu_node("1", Some("{}")), &mut source),
            Some(config("1", "{}"))
        );
        assert_eq!(requested_config(&GpuNodeState::Absent, &mut source), None);
        assert_eq!(requested_config(&gpu_node("2", None), &mut source), None);
        assert_eq!(
            requested_config(&gpu_node("2", Some("a: 1")), &mut source),
            Some(config("2", "a: 1"))
        );
        assert_eq!(
            requested_config(&gpu_node("2", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
    }
}
