//! Policies, permissions and kinds of gpunode.

use super::{
    deletion::await_gone,
    installed::{self, InstalledObject},
    removal::Removal,
};
use crate::output::plural;
use gpunode_crds::GpuNodePolicy;

/// Deletes every policy. Nothing waits for that: the operator no longer runs.
pub async fn delete_policies(removal: &mut Removal) {
    let names = match removal.requests.names::<GpuNodePolicy>(None, "").await {
        Ok(names) => names,
        Err(error) => return removal.leave("policies", format!("{error:#}")),
    };
    let mut deleted = 0;
    for name in &names {
        let policy = InstalledObject::cluster_scoped::<GpuNodePolicy>(name);
        deleted += usize::from(removal.delete(&policy).await);
    }
    removal.progress.done(
        "policies",
        &format!("{} deleted", plural(deleted, "policy", "policies")),
    );
}

/// Deletes the permissions and admission rules that were installed with the operator.
pub async fn delete_installed(removal: &mut Removal, objects: &[InstalledObject]) {
    let mut deleted = 0;
    for object in objects {
        deleted += usize::from(removal.delete(object).await);
    }
    removal.progress.done(
        "permissions",
        &format!("{} deleted", plural(deleted, "object", "objects")),
    );
}

/// Deletes the CRDs, and with them every `GpuNode`.
pub async fn delete_kinds(removal: &mut Removal) {
    let kinds = installed::definitions();
    for kind in &kinds {
        removal.delete(kind).await;
    }
    await_gone(removal, "kinds", &kinds).await;
}
