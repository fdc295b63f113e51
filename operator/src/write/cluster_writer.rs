//! The writing side of the API server: client, namespace, and where results go.

use crate::{audit::AuditTrail, write::results::WriteResults};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use kube::{
    Client,
    api::{PatchParams, PostParams},
};

/// The writing side of the API server.
pub struct ClusterWriter {
    /// Client that holds every write back unless this process leads.
    pub client: Client,
    /// Namespace of the DaemonSets.
    pub namespace: String,
    pub results: WriteResults,
    pub audit: AuditTrail,
}

/// Parameters of the operator's patches.
pub fn patch_params() -> PatchParams {
    PatchParams {
        field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Parameters of the operator's creations and replacements.
pub fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
