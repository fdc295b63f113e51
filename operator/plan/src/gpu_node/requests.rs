//! What people ask of the agents of a node by a label and an annotation of the node: to let go of its GPUs, and to take them
//! for recovered. The agent reads it in `GpuNode.spec`.

use crate::{
    gpu_node::conditions::Verdict,
    gpu_node::configuration::{GpuNodeChange, whole_second},
    input::facts::NodeFacts,
};
use gpunode_crds::{ConditionType, GpuNode, GpuNodeSpec, RECOVERED_ANNOTATION, RELEASE_LABEL, Reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Label by which NVIDIA's driver manager and mig-manager of gpu-operator pause a device plugin.
pub const PAUSE_LABEL: &str = "nvidia.com/gpu.deploy.device-plugin";
/// What they put into its value. `false` is the user's own choice of no plugin of NVIDIA's.
const PAUSED: &str = "paused-for-";

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Whether the agents of a node are to let go of its GPUs.
pub fn is_released(node: &NodeFacts) -> bool {
    node.labels.get(RELEASE_LABEL) == Some("true")
        || node.labels.get(PAUSE_LABEL).is_some_and(|value| value.contains(PAUSED))
}

/// What is to be written in the `GpuNode` so that its agent knows what people ask; nothing where it says so. An annotation
/// that cannot be read changes nothing.
pub fn asked(node: &NodeFacts, gpu_node: Option<&GpuNode>) -> Option<GpuNodeChange> {
    let gpu_node = gpu_node?;
    let release = is_released(node);
    let recovered = match node.recovered.as_deref().map(read) {
        Some(Ok(time)) => Some(Time(time)),
        Some(Err(_)) => gpu_node.spec.recovered.clone(),
        None => None,
    };
    let is_there = (release, &recovered) == (gpu_node.spec.release, &gpu_node.spec.recovered);
    let resource_version = gpu_node.metadata.resource_version.clone().unwrap_or_default();
    (!is_there).then_some(GpuNodeChange::Ask {
        resource_version,
        release,
        recovered,
    })
}

/// What the `GpuNode` of a node that has none says from the start.
pub fn asked_at_first(node: &NodeFacts) -> GpuNodeSpec {
    let recovered = node.recovered.as_deref().and_then(|text| read(text).ok()).map(Time);
    GpuNodeSpec {
        release: is_released(node),
        recovered,
        ..GpuNodeSpec::default()
    }
}

/// That the annotation cannot be read, if so.
pub fn unreadable(node: &NodeFacts) -> Option<Verdict> {
    let text = node.recovered.as_deref()?;
    let error = read(text).err()?;
    let shown: String = text.chars().take(64).collect();
    let message = format!(
        "read annotation {RECOVERED_ANNOTATION} \"{shown}\" of the node: {error}; write a time such as 2026-01-31T12:00:00Z"
    );
    let (of, reason) = (ConditionType::RecoveredAnnotation, Reason::Unreadable);
    Some(Verdict {
        of,
        holds: false,
        reason,
        message,
    })
}

/// The end of the second that is named: whoever writes seconds means faults of that second too.
fn read(text: &str) -> Result<Timestamp, jiff::Error> {
    let end = text.parse().map(whole_second)?.checked_add(SECOND)?;
    // The API server takes no year before 0, and would refuse everything else that is written with it.
    if end < Timestamp::UNIX_EPOCH {
        return Err(jiff::Error::from_args(format_args!("it lies before 1970")));
    }
    Ok(end)
}
