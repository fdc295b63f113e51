//! Trims objects to the fields that the planner reads, before they enter the index.

use gpunode_crds::{GpuNode, GpuNodePolicy, OPERATOR_FIELD_MANAGER};
use gpunode_plan::{drop_known_fields, retain_holders_of_broken};
use kube::Resource;

/// Drops the managed fields, which are the bulk of most objects.
pub fn without_managed_fields<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Drops the fields of the managed fields. The planner reads when somebody changed the policy last.
pub fn trimmed_policy(mut policy: GpuNodePolicy) -> GpuNodePolicy {
    for entry in policy.metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = None;
    }
    policy
}

/// Drops links and most holders, which are the bulk of a `GpuNode`; the planner reads the holders of broken devices. Of the
/// managed fields it reads when the operator wrote last.
pub fn trimmed_gpu_node(mut gpu_node: GpuNode) -> GpuNode {
    for entry in gpu_node.metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = None;
    }
    if let Some(entries) = &mut gpu_node.metadata.managed_fields {
        entries.retain(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER));
    }
    if let Some(status) = &mut gpu_node.status {
        retain_holders_of_broken(status);
        drop_known_fields(status);
        for gpu in &mut status.gpus {
            gpu.links = Vec::new();
        }
    }
    gpu_node
}
