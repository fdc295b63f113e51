//! Writes to the API server. Each carries a resourceVersion, so that one that comes late changes nothing.

mod daemonset;
mod gpu_node;
mod node;
mod policy_status;
mod stale_resources;

use crate::{
    leader_election::NotLeader,
    metrics::{Kind, Metrics},
};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use kube::{
    Client,
    api::{PatchParams, PostParams},
    core::Status,
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
        /// Whether the object was to be created.
        creates: bool,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error("write to the API server: no answer in time")]
    TimedOut,
    /// This process does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
}

impl ApplyError {
    fn request(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        |source| Self::new(action.into(), false, source)
    }

    fn creation(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        |source| Self::new(action.into(), true, source)
    }

    fn new(action: String, creates: bool, source: kube::Error) -> Self {
        match source {
            kube::Error::Service(source) if source.is::<NotLeader>() => Self::NotLeader(NotLeader),
            source => Self::Request {
                action,
                creates,
                source: Box::new(source),
            },
        }
    }

    /// Whether another try may follow at once: the object changed, came or went meanwhile, and the watch tells how; or
    /// this process does not lead, and no try begins before it does.
    pub fn is_race(&self) -> bool {
        match (self, self.answer()) {
            (Self::NotLeader(_), _) => true,
            (error, Some(answer)) => {
                // What a creation does not find is its namespace or its kind, and nobody but a person brings these.
                let creates = matches!(error, Self::Request { creates: true, .. });
                answer.is_conflict()
                    || answer.is_already_exists()
                    || (answer.is_not_found() && !creates)
                    // The answer to a JSON patch whose test does not hold.
                    || (answer.code == 422 && answer.message.contains("/metadata/resourceVersion"))
            }
            _ => false,
        }
    }

    /// Why the API server does not take this very write. Nothing where it could not be asked, or is too busy.
    pub fn refusal(&self) -> Option<String> {
        let answer = self.answer().filter(|answer| !matches!(answer.code, 429 | 503 | 504))?;
        (!self.is_race()).then(|| format!("{self}: {}", answer.message))
    }

    fn answer(&self) -> Option<&Status> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }
}

/// An error with what led to it, as one line.
pub fn one_line(error: &ApplyError) -> String {
    match (error.answer(), error.source()) {
        (Some(answer), _) => format!("{error}: {} {}: {}", answer.code, answer.reason, answer.message),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
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
    PatchParams {
        field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

fn post_params() -> PostParams {
    PostParams {
        field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
