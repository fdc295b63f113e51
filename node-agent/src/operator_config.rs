//! The configuration that the operator writes into this node's GpuNode, or the saved one while the API server is away.

use crate::{
    gpu_node::{Seen, SeenGpuNode},
    in_force::{Candidate, Instruction},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::timeout};
use tracing::warn;

/// How long a start waits for the API server before it takes the saved configuration.
const API_TIMEOUT: Duration = Duration::from_secs(5);

/// Publishes what the GpuNode says. Does not end.
pub async fn follow(
    mut seen: watch::Receiver<Seen>,
    saved: Option<Arc<Candidate>>,
    instructions: watch::Sender<Instruction>,
) {
    let known = timeout(API_TIMEOUT, seen.wait_for(|seen| !matches!(seen, Seen::Unknown))).await.is_ok();
    if !known && let Some(saved) = saved {
        warn!(hash = saved.hash, "the API server does not answer; starting with the saved configuration");
        instructions.send_replace(Instruction::Config(saved));
    }
    let mut source = None;
    loop {
        let instruction = instruction(&seen.borrow_and_update(), &mut source);
        if let Some(instruction) = instruction {
            instructions.send_if_modified(|last| {
                let changes = *last != instruction;
                if changes {
                    *last = instruction;
                }
                changes
            });
        }
        if seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// What a GpuNode says; none where what it said before stays. `source` is the uid of the object that it came from.
///
/// Only the operator withdraws a configuration, by removing it from the object. An object that somebody deleted, and that
/// was made again without one, says nothing: the operator will write it again.
fn instruction(seen: &Seen, source: &mut Option<String>) -> Option<Instruction> {
    match seen {
        Seen::Unknown => None,
        Seen::Absent => source.is_none().then_some(Instruction::Nothing),
        Seen::Present(object) => match candidate(object) {
            Some(candidate) => {
                source.clone_from(&object.metadata.uid);
                Some(Instruction::Config(Arc::new(candidate)))
            }
            None if source.is_none() || *source == object.metadata.uid => {
                *source = None;
                Some(Instruction::Nothing)
            }
            None => None,
        },
    }
}

fn candidate(object: &SeenGpuNode) -> Option<Candidate> {
    let config = object.spec.config.as_ref()?;
    Some(Candidate { version: config.version, hash: config.hash.clone(), document: config.document.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNode;
    use kube::core::ApiResource;

    fn gpu_node(uid: &str, document: Option<&str>) -> Seen {
        let mut object =
            SeenGpuNode::new("a", &ApiResource::erase::<GpuNode>(&()), gpunode_crds::GpuNodeSpec::default());
        object.metadata.uid = Some(uid.to_owned());
        object.spec.config = document.map(|document| gpunode_crds::Configuration {
            document: document.to_owned(),
            ..gpunode_crds::Configuration::default()
        });
        Seen::Present(Arc::new(object))
    }

    fn config(document: &str) -> Instruction {
        let document = document.to_owned();
        Instruction::Config(Arc::new(Candidate { version: 0, hash: String::new(), document }))
    }

    #[test]
    fn the_operator_withdraws_by_removing_the_configuration() {
        let mut source = None;
        assert_eq!(instruction(&Seen::Unknown, &mut source), None);
        assert_eq!(instruction(&Seen::Absent, &mut source), Some(Instruction::Nothing));
        assert_eq!(instruction(&gpu_node("1", None), &mut source), Some(Instruction::Nothing));
        assert_eq!(instruction(&gpu_node("1", Some("{}")), &mut source), Some(config("{}")));
        assert_eq!(instruction(&gpu_node("1", None), &mut source), Some(Instruction::Nothing));
    }

    #[test]
    fn a_deleted_gpu_node_withdraws_nothing() {
        let mut source = None;
        assert_eq!(instruction(&gpu_node("1", Some("{}")), &mut source), Some(config("{}")));
        assert_eq!(instruction(&Seen::Absent, &mut source), None);
        assert_eq!(instruction(&gpu_node("2", None), &mut source), None);
        assert_eq!(instruction(&gpu_node("2", Some("a: 1")), &mut source), Some(config("a: 1")));
        assert_eq!(instruction(&gpu_node("2", None), &mut source), Some(Instruction::Nothing));
    }
}
