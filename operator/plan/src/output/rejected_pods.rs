//! Pods that a kubelet rejected because its GPUs were not registered yet. They hold nothing, never run, and stay until somebody
//! deletes them.

use crate::{
    input::{facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::PolicySet},
    node::plan::NodePlan,
    pods::{self, PodName},
    record::{node_record::NodeRecord, resource_use::ResourceUse},
};
use gpunode_crds::PolicyMode;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;

/// Reason of the kubelet where it cannot allocate devices to a pod.
const REASON: &str = "UnexpectedAdmissionError";

/// Kind of the owner of a static pod.
const NODE: &str = "Node";

/// Pod that a node rejected and that a controller replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedPod {
    /// Name of the pod.
    pub name: PodName,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// Node that rejected it.
    pub node: String,
    /// Extended resources that it requests.
    resources: BTreeSet<String>,
}

impl RejectedPod {
    /// Reads a pod; none if it was not rejected, no controller replaces it, or it is being deleted.
    pub fn of(pod: &Pod) -> Option<Self> {
        let (meta, spec, status) = (&pod.metadata, pod.spec.as_ref()?, pod.status.as_ref()?);
        let is_rejected = status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some(REASON);
        let mut owners = meta.owner_references.iter().flatten();
        let is_replaced = owners.any(|owner| owner.controller == Some(true) && owner.kind != NODE);
        if !is_rejected || !is_replaced || meta.deletion_timestamp.is_some() || pods::is_mirror(pod) {
            return None;
        }
        Some(Self {
            name: PodName {
                namespace: meta.namespace.clone()?,
                name: meta.name.clone()?,
            },
            uid: meta.uid.clone()?,
            resource_version: meta.resource_version.clone()?,
            node: spec.node_name.clone()?,
            resources: pods::extended_resources(spec).cloned().collect(),
        })
    }

    /// Returns the policy for which the pod should be deleted: it matches the pod's node and says so, the pod requests a resource
    /// that gpunode serves there, and the node is not held. `plan` is the plan for that node.
    pub fn deleting_policy<'a>(
        &self,
        policies: &'a PolicySet,
        plan: &NodePlan,
        node: &NodeFacts,
        gpu_node: Option<&GpuNodeFacts>,
    ) -> Option<&'a str> {
        let mut matched = plan.matched.iter().filter_map(|name| policies.get(name));
        let policy = matched.find(|policy| policy.deletes_rejected_pods)?;
        let is_of_gpunode = || {
            let record = NodeRecord::read(node.owned.as_deref()).unwrap_or_default().resources;
            let status = gpu_node.and_then(GpuNodeFacts::status);
            let is_reported = |name: &str| status.is_some_and(|it| it.resources.iter().any(|of| of.name == name));
            self.resources
                .iter()
                .any(|name| record.get(name) == Some(&ResourceUse::InUse) || is_reported(name))
        };
        (plan.hold.is_none() && is_of_gpunode()).then_some(&policy.name)
    }
}

/// Returns true if any policy deletes rejected pods.
pub fn policies_delete_rejected_pods(policies: &PolicySet) -> bool {
    policies
        .iter()
        .any(|policy| policy.mode == PolicyMode::Enforce && policy.deletes_rejected_pods)
}

#[cfg(test)]
mod tests;
