//! The configuration that the operator writes into this node's GpuNode, with the saved one as a stand-in at the start.

use crate::{
    api_server::gpu_node::{GpuNodeState, ObservedGpuNode},
    configuration::in_force::{ConfigCandidate, DesiredConfig},
    runtime::channel::send_if_new,
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};
use tracing::warn;

/// Maximum wait for the API server at the start; after it the agent uses the saved configuration.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// Publishes the configuration of the GpuNode. Never returns.
pub async fn follow(
    mut seen: watch::Receiver<GpuNodeState>,
    saved: Option<Arc<ConfigCandidate>>,
    instructions: watch::Sender<DesiredConfig>,
) {
    _ = timeout(
        API_TIMEOUT,
        seen.wait_for(|seen| !matches!(seen, GpuNodeState::Unknown)),
    )
    .await;
    let mut source = saved.as_ref().and_then(|saved| saved.uid.clone());
    let mut saved = saved;
    loop {
        let requested = instruction(&seen.borrow_and_update(), &mut source);
        let start = saved.take();
        let instruction = requested.or_else(|| {
            let start = start?;
            warn!(
                hash = start.hash,
                "the API server has not delivered a configuration; starting with the saved one"
            );
            Some(DesiredConfig::Config(start))
        });
        if let Some(instruction) = instruction {
            send_if_new(&instructions, instruction);
        }
        if seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the request in a GpuNode; none if the earlier request stands. `source` is the UID of the object that the
/// earlier request came from, possibly before this agent started.
///
/// Only the operator withdraws a configuration, by removing it from the object. A GpuNode that somebody deleted, and
/// that was recreated without a configuration, withdraws nothing: the operator writes the configuration again.
fn instruction(seen: &GpuNodeState, source: &mut Option<String>) -> Option<DesiredConfig> {
    match seen {
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

    /// Returns the first request of an agent that has a saved configuration and finds `seen`.
    async fn after_start(seen: GpuNodeState) -> DesiredConfig {
        let (_seen, seen) = watch::channel(seen);
        let (instructions, mut instructed) = watch::channel(DesiredConfig::Unknown);
        tokio::select! {
            () = follow(seen, Some(candidate("1", "{}")), instructions) => unreachable!(),
            _ = instructed.changed() => {}
        }
        instructed.borrow().clone()
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
            instruction(&GpuNodeState::Present(Arc::new(stepped)), &mut source),
            Some(config("1", "{}"))
        );
    }

    #[test]
    fn the_operator_withdraws_by_removing_the_configuration() {
        let mut source = None;
        assert_eq!(instruction(&GpuNodeState::Unknown, &mut source), None);
        assert_eq!(
            instruction(&GpuNodeState::Absent, &mut source),
            Some(DesiredConfig::Nothing)
        );
        assert_eq!(
            instruction(&gpu_node("1", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
        assert_eq!(
            instruction(&gpu_node("1", Some("{}")), &mut source),
            Some(config("1", "{}"))
        );
        assert_eq!(
            instruction(&gpu_node("1", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
    }

    #[test]
    fn a_deleted_gpu_node_withdraws_nothing() {
        let mut source = None;
        assert_eq!(
            instruction(&gpu_node("1", Some("{}")), &mut source),
            Some(config("1", "{}"))
        );
        assert_eq!(instruction(&GpuNodeState::Absent, &mut source), None);
        assert_eq!(instruction(&gpu_node("2", None), &mut source), None);
        assert_eq!(
            instruction(&gpu_node("2", Some("a: 1")), &mut source),
            Some(config("2", "a: 1"))
        );
        assert_eq!(
            instruction(&gpu_node("2", None), &mut source),
            Some(DesiredConfig::Nothing)
        );
    }
}
