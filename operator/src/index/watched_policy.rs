//! Policies as the watch brings them: some cannot be read, because a newer version of gpunode knows more values.

use crate::{
    events::OperatorEvent,
    index::cache::{Versioned, WatchUpdate},
    lenient::UnparsedObject,
};
use gpunode_crds::{GpuNodePolicy, GpuNodePolicyStatus, Reason};
use gpunode_plan::{policy_unreadable, unreadable_policy_status};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeSet;

/// A policy as the watch brings it.
#[derive(Clone, Debug)]
pub enum WatchedPolicy {
    Readable(Box<GpuNodePolicy>),
    Unreadable(Box<UnreadablePolicy>),
}

impl From<GpuNodePolicy> for WatchedPolicy {
    fn from(policy: GpuNodePolicy) -> Self {
        Self::Readable(Box::new(policy))
    }
}

impl From<Result<GpuNodePolicy, Box<UnparsedObject>>> for WatchedPolicy {
    fn from(read: Result<GpuNodePolicy, Box<UnparsedObject>>) -> Self {
        match read {
            Ok(policy) => policy.into(),
            Err(object) => {
                let UnparsedObject {
                    metadata,
                    error,
                    status,
                } = *object;
                let status = status.and_then(|status| GpuNodePolicyStatus::deserialize(status).ok());
                Self::Unreadable(Box::new(UnreadablePolicy {
                    metadata,
                    error,
                    status,
                }))
            }
        }
    }
}

impl WatchedPolicy {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Readable(policy) => &policy.metadata,
            Self::Unreadable(policy) => &policy.metadata,
        }
    }
}

/// Returns the policies that somebody deletes or deleted, by name.
pub fn deletions(update: &WatchUpdate<WatchedPolicy>) -> BTreeSet<String> {
    let is_deleted = |policy: &&WatchedPolicy| policy.metadata().deletion_timestamp.is_some();
    let name = |policy: &WatchedPolicy| policy.metadata().name.clone().unwrap_or_default();
    match update {
        WatchUpdate::Deleted(deleted) => BTreeSet::from([deleted.name.clone()]),
        WatchUpdate::Applied(policy) => Some(&**policy).filter(is_deleted).map(name).into_iter().collect(),
        WatchUpdate::ListPage(policies) => policies.iter().filter(is_deleted).map(name).collect(),
        // Nobody saw the deletion of those that a list lacks.
        WatchUpdate::ListStarted | WatchUpdate::ListKept(_) | WatchUpdate::ListCompleted(_) => BTreeSet::new(),
    }
}

/// A policy of which not even the spec can be parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadablePolicy {
    /// The fields that identify the object.
    pub metadata: ObjectMeta,
    /// Error of the parse.
    pub error: String,
    pub status: Option<GpuNodePolicyStatus>,
}

impl Versioned for UnreadablePolicy {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl UnreadablePolicy {
    /// Returns the status with the reason `Unreadable`; none if the policy has it.
    pub fn desired_status(&self, now: Timestamp) -> Option<GpuNodePolicyStatus> {
        let status = unreadable_policy_status(self.metadata.generation, &self.error, self.status.as_ref(), now);
        (self.status.as_ref() != Some(&status)).then_some(status)
    }

    /// Returns the event with the reason `Unreadable`.
    pub fn event(&self) -> OperatorEvent {
        let about = ObjectReference {
            api_version: Some(GpuNodePolicy::api_version(&()).into_owned()),
            kind: Some(GpuNodePolicy::kind(&()).into_owned()),
            name: self.metadata.name.clone(),
            uid: self.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        OperatorEvent {
            about,
            node: None,
            is_warning: true,
            reason: Reason::Unreadable.as_str().to_owned(),
            message: policy_unreadable(&self.error),
        }
    }
}
