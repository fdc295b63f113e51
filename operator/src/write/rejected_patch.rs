//! Tells a lost race from a refused JSON patch.
//!
//! The API server answers a JSON patch that does not fit the object with 422 and names no cause: neither the test of the
//! version nor the removal of a key that is gone. Only the version of the object tells whether it changed meanwhile.

use crate::write::error::WriteError;
use gpunode_plan::PatchBuilder;
use json_patch::Patch as JsonPatch;
use kube::{Api, Error, Resource, core::Status};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// An object after a patch of it that the API server did not accept.
#[derive(Debug)]
pub enum RereadObject<K> {
    /// The version that the patch was planned for, or nothing could be read.
    Unchanged,
    Changed(K),
    /// There is none of the name any more. The patch was planned for this version.
    Gone {
        version: String,
    },
}

/// A JSON patch that the API server did not accept.
pub struct RejectedPatch<'a> {
    /// Name of the object.
    pub name: &'a str,
    pub patch: &'a JsonPatch,
    /// Verb and object.
    pub action: String,
    pub source: Error,
}

impl RejectedPatch<'_> {
    /// Reads the object if the patch did not fit it or found none, and returns the error together with what became of the
    /// object since the patch was planned.
    pub async fn explain<K>(self, api: &Api<K>) -> (WriteError, RereadObject<K>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let Self {
            name,
            patch,
            action,
            source,
        } = self;
        let is_absent = matches!(&source, Error::Api(it) if it.is_not_found());
        let may_be_outdated = is_absent || matches!(&source, Error::Api(it) if may_not_fit(it));
        let Some(planned_for) = PatchBuilder::version_of(patch).filter(|_| may_be_outdated) else {
            return (WriteError::request(action)(source), RereadObject::Unchanged);
        };
        match read_again(api, name).await {
            Ok(None) => {
                let version = planned_for.to_owned();
                (WriteError::Outdated { action }, RereadObject::Gone { version })
            }
            Ok(Some(object)) if object.meta().resource_version.as_deref() == Some(planned_for) => {
                (WriteError::request(action)(source), RereadObject::Unchanged)
            }
            Ok(Some(object)) => (WriteError::Outdated { action }, RereadObject::Changed(object)),
            // 404 says enough; it may be the whole kind that is missing.
            Err(_) if is_absent => (WriteError::request(action)(source), RereadObject::Unchanged),
            Err(error) => {
                let error = WriteError::request(format!("{action}: read it again"))(error);
                (error, RereadObject::Unchanged)
            }
        }
    }
}

/// Reads an object; none if there is none of the name. Not by a list of one: lists are in another priority level, where they
/// may wait for those of others. Fails where the whole kind is missing.
pub async fn read_again<K>(api: &Api<K>, name: &str) -> kube::Result<Option<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    match api.get(name).await {
        Err(Error::Api(answer)) if answer.is_not_found() && names(&answer, name) => Ok(None),
        answer => answer.map(Some),
    }
}

/// True for an answer about the object of this name: one about a kind that is missing names none.
fn names(answer: &Status, name: &str) -> bool {
    answer.details.as_ref().is_some_and(|details| details.name == name)
}

/// True for the answer to a patch that does not fit. A refused field has a cause.
fn may_not_fit(answer: &Status) -> bool {
    answer.code == 422 && answer.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
