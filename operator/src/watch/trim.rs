//! Trims objects to the fields that the planner reads, before they enter the index.

use gpunode_crds::GpuNodePolicy;
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
