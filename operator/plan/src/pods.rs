//! Names and resources of pods, and pods that have ended.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use std::fmt;

/// Annotation of a static pod, which a kubelet runs from a file: the object in the API server only mirrors it.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl PodName {
    /// Reads `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the names of the extended resources that a pod requests. Their limits equal their requests.
pub fn extended_resources(spec: &PodSpec) -> impl Iterator<Item = &String> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let limits = containers
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref())
        .flatten();
    limits
        .filter(|(name, count)| name.contains('/') && count.0 != "0")
        .map(|(name, _)| name)
}

/// Returns true if all containers of a pod have ended for good: it holds no device, and no taint evicts it.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns true for the mirror of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
}
