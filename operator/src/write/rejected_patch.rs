//! Tells a lost race from a refused JSON patch.
//!
//! The API server answers a JSON patch that does not fit the object with 422 and names no cause: neither the test of the
//! version nor the removal of a key that is gone. Only the version of the object tells whether it changed meanwhile.

use crate::write::error::WriteError;
use gpunode_plan::PatchBuilder;
use json_patch::Patch as JsonPatch;
use kube::{Api, Error, Resource, api::ListParams, core::Status};
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
        // A list of one, for which the operator needs no further permission.
        let only_this = ListParams::default().fields(&format!("metadata.name={name}"));
        match api.list(&only_this).await {
            Ok(list) => {
                let Some(object) = list.items.into_iter().next() else {
                    let version = planned_for.to_owned();
                    return (WriteError::Outdated { action }, RereadObject::Gone { version });
                };
                if object.meta().resource_version.as_deref() == Some(planned_for) {
                    (WriteError::request(action)(source), RereadObject::Unchanged)
                } else {
                    (WriteError::Outdated { action }, RereadObject::Changed(object))
                }
            }
            // 404 says enough; it may be the whole kind that is missing.
            Err(_) if is_absent => (WriteError::request(action)(source), RereadObject::Unchanged),
            Err(error) => {
                let error = WriteError::request(format!("{action}: read it again"))(error);
                (error, RereadObject::Unchanged)
            }
        }
    }
}

/// True for the answer to a patch that does not fit. A refused field has a cause.
fn may_not_fit(answer: &Status) -> bool {
    answer.code == 422 && answer.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
