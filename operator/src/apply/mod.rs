//! Writes to the API server. Each carries a resourceVersion, so that one that comes late changes nothing.

mod daemonset;
mod events;
mod gpu_node;
mod node;
mod status;

pub use events::publish_events;

use crate::metrics::{Kind, Metrics};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use kube::{
    Client,
    api::{PatchParams, PostParams},
};
use std::{error::Error, sync::Arc};

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The API server did not take it.
    #[error("{action}")]
    Request {
        /// What was tried, on what.
        action: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("write to the API server: no answer in time")]
    TimedOut,
}

impl ApplyError {
    fn request(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Request { action: action.into(), source: Box::new(source) }
    }

    /// Whether the object changed, came or went meanwhile; the watch tells how, and another try follows at once.
    pub fn is_race(&self) -> bool {
        let Self::Request { source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        status.is_conflict()
            || status.is_already_exists()
            || status.is_not_found()
            // The API server's answer to a JSON patch whose test does not hold.
            || (status.code == 422 && status.message.contains("/metadata/resourceVersion"))
    }

    /// The message with everything that led to it.
    pub fn with_sources(&self) -> String {
        let sources = std::iter::successors(self.source(), |error| (*error).source());
        sources.fold(self.to_string(), |text, source| format!("{text}: {source}"))
    }
}

/// The one who writes. Its client holds every write back unless this process leads.
pub struct Writer {
    client: Client,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// A writer through a guarded client.
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics }
    }

    fn wrote(&self, kind: Kind) {
        self.metrics.wrote(kind);
    }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
