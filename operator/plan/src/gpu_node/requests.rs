//! Requests to the agents of a node: those of people, by a label and an annotation of the node, to release its GPUs and to clear
//! recovered faults; and the one to leave the GPUs to NVIDIA's DRA driver. The agent reads them in `GpuNode.spec`.

use crate::{
    gpu_node::change::GpuNodeChange,
    input::{context::NodeContext, facts::NodeFacts},
    time::whole_second,
};
use gpunode_crds::{ConditionType, GpuNodeSpec, RECOVERED_ANNOTATION, Reason, UntimedCondition};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Returns the change that passes the requests on to the agent; none if `GpuNode.spec` has them. An unreadable annotation
/// changes nothing.
pub fn requests_change(context: NodeContext<'_>) -> Option<GpuNodeChange> {
    let gpu_node = context.gpu_node?;
    let (release, served_by_dra) = (context.is_released(), context.is_served_by_dra());
    let recovered = match context.node.recovered.as_deref().map(parse_recovered) {
        Some(Ok(time)) => Some(Time(time)),
        Some(Err(_)) => gpu_node.spec.recovered.clone(),
        None => None,
    };
    let spec = &gpu_node.spec;
    let is_there = (release, served_by_dra, &recovered) == (spec.release, spec.served_by_dra, &spec.recovered);
    (!is_there).then(|| GpuNodeChange::Requests {
        resource_version: gpu_node.resource_version.clone(),
        release,
        served_by_dra,
        recovered,
    })
}

/// Returns the spec of a new `GpuNode` with the requests of its node.
pub fn initial_requests(context: NodeContext<'_>) -> GpuNodeSpec {
    let recovered = context.node.recovered.as_deref();
    GpuNodeSpec {
        release: context.is_released(),
        served_by_dra: context.is_served_by_dra(),
        recovered: recovered.and_then(|text| parse_recovered(text).ok()).map(Time),
        ..GpuNodeSpec::default()
    }
}

/// Returns the condition of an unreadable annotation.
pub fn unreadable_annotation(node: &NodeFacts) -> Option<UntimedCondition> {
    let text = node.recovered.as_deref()?;
    let error = parse_recovered(text).err()?;
    Some(UntimedCondition {
        of: ConditionType::RecoveredAnnotation,
        holds: false,
        reason: Reason::Unreadable,
        message: unreadable_message(text, &error),
    })
}

fn unreadable_message(annotation: &str, error: &jiff::Error) -> String {
    let start: String = annotation.chars().take(64).collect();
    format!(
        "cannot read annotation {RECOVERED_ANNOTATION} \"{start}\" of the node: {error}; write a time such as \
         2026-01-31T12:00:00Z"
    )
}

/// Returns the end of the second that the annotation names: a person who writes seconds means faults of that second too.
fn parse_recovered(annotation: &str) -> Result<Timestamp, jiff::Error> {
    let end = annotation.parse().map(whole_second)?.checked_add(SECOND)?;
    // The API server refuses years before 0, and with them the whole write.
    if end < Timestamp::UNIX_EPOCH {
        return Err(jiff::Error::from_args(format_args!("it lies before 1970")));
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_annotation_and_a_valid_time() {
        let error = parse_recovered("1960-01-01T00:00:00Z").unwrap_err();
        assert_eq!(
            unreadable_message("1960-01-01T00:00:00Z", &error),
            "cannot read annotation gpunode.dev/recovered \"1960-01-01T00:00:00Z\" of the node: it lies before 1970; write a \
             time such as 2026-01-31T12:00:00Z"
        );
    }
}
