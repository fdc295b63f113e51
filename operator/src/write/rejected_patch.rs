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
    /// Reads the object if the patch did not fit it, and returns the error together with the object if that changed since the
    /// patch was planned.
    pub async fn explain<K>(self, api: &Api<K>) -> (WriteError, Option<K>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let Self {
            name,
            patch,
            action,
            source,
        } = self;
        let planned_for =
            PatchBuilder::version_of(patch).filter(|_| matches!(&source, Error::Api(it) if may_not_fit(it)));
        let Some(planned_for) = planned_for else {
            return (WriteError::request(action)(source), None);
        };
        // A list of one, for which the operator needs no further permission.
        let only_this = ListParams::default().fields(&format!("metadata.name={name}"));
        match api.list(&only_this).await {
            Ok(list) => {
                let object = list.items.into_iter().next();
                let version = object.as_ref().and_then(|it| it.meta().resource_version.as_deref());
                if version == Some(planned_for) {
                    (WriteError::request(action)(source), None)
                } else {
                    (WriteError::Outdated { action }, object)
                }
            }
            Err(error) => (WriteError::request(format!("{action}: read it again"))(error), None),
        }
    }
}

/// True for the answer to a patch that does not fit. A refused field has a cause.
fn may_not_fit(answer: &Status) -> bool {
    answer.code == 422 && answer.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
