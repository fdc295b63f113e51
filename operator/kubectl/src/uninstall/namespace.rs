//! The namespace of gpunode: deleted, or kept where it holds other objects.

use super::{deletion::await_gone, foreign::foreign_objects, installed::InstalledObject, removal::Removal};
use gpunode_crds::named;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::api::ApiResource;

/// Most objects that a reason names.
const NAMED: usize = 5;

/// Says why a namespace is kept that holds these objects.
pub fn why_it_is_kept(foreign: &[String]) -> String {
    format!(
        "kept, because it holds objects that are not gpunode's: {}; delete it yourself if you do not need them",
        named(foreign, NAMED)
    )
}

/// Says why a namespace is kept whose objects cannot be listed.
pub fn unlisted(error: &anyhow::Error) -> String {
    format!("kept, because its contents cannot be listed: {error:#}")
}

/// Deletes the namespace, unless something in it is not gpunode's.
pub async fn delete_namespace(removal: &mut Removal, installed: &[InstalledObject]) {
    let namespace = InstalledObject::cluster_scoped::<Namespace>(&removal.requests.namespace);
    match removal.requests.metadata(&namespace).await {
        Ok(Some(_)) => {}
        Ok(None) => return removal.progress.done("namespace", "deleted"),
        Err(error) => return removal.leave(&namespace.to_string(), format!("{error:#}")),
    }
    let why = match foreign_objects(removal, installed).await {
        Ok(foreign) if foreign.is_empty() => {
            removal.delete(&namespace).await;
            return await_gone(removal, "namespace", &[namespace]).await;
        }
        Ok(foreign) => why_it_is_kept(&foreign),
        Err(error) => unlisted(&error),
    };
    // A deleted namespace would have taken the Lease along.
    let lease = InstalledObject {
        kind: ApiResource::erase::<Lease>(&()),
        namespace: Some(removal.requests.namespace.clone()),
        name: "gpunode-operator".to_owned(),
    };
    removal.delete(&lease).await;
    removal.progress.done("namespace", "kept");
    removal.leave(&namespace.to_string(), why);
}
