//! Errors of writes, and what they mean for the next try.

use crate::leader_election::NotLeader;
use kube::core::Status;
use std::error::Error;

/// Reason for which a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The API server did not accept the request.
    #[error("{action}")]
    Request {
        /// Verb and object.
        action: String,
        /// True if the request was to create the object.
        creates: bool,
        source: Box<kube::Error>,
    },
    /// The object changed, came or went since the patch was planned.
    #[error("{action}: the object changed meanwhile")]
    Outdated {
        /// Verb and object.
        action: String,
    },
    /// The API server did not answer in time.
    #[error("write to the API server: no answer in time")]
    TimedOut,
    /// This process does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The process is stopping.
    #[error("write to the API server: the operator is stopping")]
    Stopping,
}

impl WriteError {
    /// The error of a request that changes or deletes an object.
    pub fn request(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        |source| Self::new(action.into(), false, source)
    }

    /// The error of a request that creates an object.
    pub fn creation(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
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

    /// True if another try may follow at once: the object changed, came or went meanwhile and the watch brings its new state,
    /// or this process does not lead and no try begins before it does.
    pub fn is_conflict(&self) -> bool {
        match (self, self.answer()) {
            (Self::NotLeader(_) | Self::Outdated { .. }, _) => true,
            (error, Some(answer)) => {
                // A creation that gets 404 lacks its namespace or its kind, which only people add.
                let creates = matches!(error, Self::Request { creates: true, .. });
                error.is_lost_race() || (answer.is_not_found() && !creates)
            }
            _ => false,
        }
    }

    /// True if the API server says that it has another version of the object than the request was made for.
    pub fn is_lost_race(&self) -> bool {
        let answer = self.answer();
        answer.is_some_and(|answer| answer.is_conflict() || answer.is_already_exists())
    }

    /// True if the API server says that it does not have the object, or not its kind.
    pub fn is_not_found(&self) -> bool {
        self.answer().is_some_and(Status::is_not_found)
    }

    /// Says why the API server refuses this very write; `None` if it could not be asked, is too busy, or may have written it:
    /// with a 500 or 502 the answer can be lost and the write in force.
    pub fn refusal(&self) -> Option<String> {
        let is_refusal = |code| matches!(code, 400..500) && !matches!(code, 401 | 408 | 429);
        let answer = self.answer().filter(|answer| is_refusal(answer.code))?;
        (!self.is_conflict()).then(|| format!("{self}: {}", answer.message))
    }

    /// The error and its cause as one line.
    pub fn one_line(&self) -> String {
        match (self.answer(), self.source()) {
            (Some(answer), _) => format!("{self}: {} {}: {}", answer.code, answer.reason, answer.message),
            (None, Some(source)) => format!("{self}: {source}"),
            (None, None) => self.to_string(),
        }
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
