//! Objects as far as they can be read, so that one that cannot be does not end the watch of all others.
//!
//! The schema of a CRD, and the API server for its own kinds, allow values that the types here do not, such as a time with
//! an offset of 99 hours. Whoever may write one status could stop the whole operator with them.

use crate::index::cache::Cached;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use std::borrow::Cow;

/// Parts that an object is read without where it cannot be read as a whole: others write them, and without them it says
/// the same about what is wanted.
const DISPENSABLE: [&str; 2] = ["/status", "/metadata/managedFields"];

/// An object of kind `K`.
#[derive(Clone, Debug)]
pub struct Readable<K> {
    /// All of it where `object` is there, otherwise what identifies it.
    metadata: ObjectMeta,
    /// The object; `None` where even what is wanted cannot be read.
    object: Option<K>,
    /// Why it is not the whole object.
    error: Option<String>,
}

impl<K: Resource<DynamicType = ()>> Readable<K> {
    /// The object as far as it could be read. What could not be is logged.
    pub fn read(self) -> Option<K> {
        if let Some(error) = self.error {
            let ObjectMeta {
                name, resource_version, ..
            } = self.metadata;
            let (name, version) = (name.unwrap_or_default(), resource_version.unwrap_or_default());
            let what = if self.object.is_some() {
                "its status counts as missing"
            } else {
                "it is left as it is"
            };
            tracing::warn!(name, version, error, "read {}: {what}", K::plural(&()));
        }
        self.object
    }
}

impl<K> Readable<K> {
    /// The object as far as it could be read.
    pub fn into_object(self) -> Option<K> {
        self.object
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Readable<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(parse(Value::deserialize(deserializer)?))
    }
}

fn parse<K: Resource + DeserializeOwned>(mut value: Value) -> Readable<K> {
    let mut error = None;
    for part in [None].into_iter().chain(DISPENSABLE.map(Some)) {
        if let Some((parent, key)) = part.and_then(|part| part.rsplit_once('/'))
            && let Some(Value::Object(parent)) = value.pointer_mut(parent)
        {
            parent.remove(key);
        }
        match K::deserialize(&value) {
            Ok(object) => {
                return Readable {
                    metadata: object.meta().clone(),
                    object: Some(object),
                    error,
                };
            }
            Err(new) => error = error.or_else(|| Some(new.to_string())),
        }
    }
    let text = |key: &str| {
        value
            .pointer(&format!("/metadata/{key}"))
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let metadata = ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    };
    Readable {
        metadata,
        object: None,
        error,
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Readable<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K> Cached for Readable<K> {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }
    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNode, GpuNodePolicy};
    use k8s_openapi::api::core::v1::Node;
    use kube::core::ObjectList;
    use serde_json::json;

    fn gpu_node(name: &str, changed: &str) -> Value {
        let condition =
            json!({"type": "Ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": changed});
        json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name, "resourceVersion": "7"},
            "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}},
            "status": {"conditions": [condition]}})
    }

    #[test]
    fn status_that_cannot_be_read_counts_as_missing_and_touches_no_other_object() {
        let list = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodeList", "metadata": {}, "items": [
            gpu_node("bad", "2026-01-01T00:00:00+99:99"), gpu_node("good", "2026-01-01T00:00:00Z")]});
        let list: ObjectList<Readable<GpuNode>> = serde_json::from_value(list).unwrap();
        let read: Vec<_> = list.items.into_iter().filter_map(Readable::read).collect();
        assert_eq!(
            read.iter().map(|it| it.status.is_some()).collect::<Vec<_>>(),
            [false, true]
        );
        assert!(
            read.iter()
                .all(|it| it.spec.config.is_some() && it.metadata.resource_version.is_some())
        );
    }

    #[test]
    fn node_is_read_without_times_that_are_out_of_range() {
        let late = "9999-12-31T23:59:59Z";
        let node = json!({"metadata": {"name": "n", "managedFields": [{"manager": "m", "time": late}]},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": late}]}});
        let node = parse::<Node>(node).read().unwrap();
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    }

    #[test]
    fn object_whose_spec_cannot_be_read_is_known_by_its_name_only() {
        let policy = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy",
            "metadata": {"name": "p", "resourceVersion": "7"}, "spec": {"nodeSelector": {}, "mode": "Later"}});
        let policy = parse::<GpuNodePolicy>(policy);
        assert_eq!(policy.meta().name.as_deref(), Some("p"));
        assert!(policy.read().is_none());
    }
}
