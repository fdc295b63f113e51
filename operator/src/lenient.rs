//! Lenient parsing of objects, so that one malformed object does not end the watch of all others.
//!
//! The schema of a CRD, and the API server for its own kinds, allow values that the Rust types do not, such as a time with an
//! offset of 99 hours. Without leniency anybody who may write one status could stop the whole operator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// Parts that are dropped from an object that cannot be parsed whole: others write them, and the rest still says what people
/// want.
const DISPENSABLE: [&str; 2] = ["/status", "/metadata/managedFields"];

/// An object that a watch brings.
pub trait WatchedObject: Sized {
    /// Reads an object from its text.
    fn from_text(text: &str) -> Result<Self, serde_json::Error>;
}

/// An object of kind `K`, as far as it can be parsed.
#[derive(Clone, Debug)]
pub struct Lenient<K> {
    /// Complete where `object` is `Some`, otherwise the fields that identify the object.
    metadata: ObjectMeta,
    /// `None` if even the rest cannot be parsed.
    object: Option<K>,
    /// Error of the first parse, if the object is not whole.
    error: Option<String>,
    /// The status of an object that cannot be parsed.
    status: Option<Value>,
}

/// An object of which not even the spec can be parsed.
#[derive(Clone, Debug)]
pub struct UnparsedObject {
    /// The fields that identify the object.
    pub metadata: ObjectMeta,
    pub error: String,
    /// Its status, in whatever form.
    pub status: Option<Value>,
}

impl<K: Resource<DynamicType = ()>> Lenient<K> {
    /// Returns the object as far as it could be parsed, and logs what could not.
    pub fn read(self) -> Option<K> {
        let consequence = if self.object.is_some() {
            "its status counts as missing"
        } else {
            "the cached version stays"
        };
        self.log(consequence);
        self.object
    }

    /// Returns the object, or what is known of one of which not even the spec can be parsed. Logs what cannot be parsed.
    pub fn read_or_identify(self) -> Result<K, Box<UnparsedObject>> {
        let consequence = if self.object.is_some() {
            "its status counts as missing"
        } else {
            "what it wanted before stays as it is"
        };
        self.log(consequence);
        let Self {
            metadata,
            object,
            error,
            status,
        } = self;
        object.ok_or_else(|| {
            Box::new(UnparsedObject {
                metadata,
                error: error.unwrap_or_default(),
                status,
            })
        })
    }

    fn log(&self, consequence: &str) {
        if let Some(error) = &self.error {
            let (name, version) = (&self.metadata.name, &self.metadata.resource_version);
            let (name, version) = (
                name.as_deref().unwrap_or_default(),
                version.as_deref().unwrap_or_default(),
            );
            tracing::warn!(
                name,
                version,
                error,
                "cannot parse an object of {}; {consequence}",
                K::plural(&())
            );
        }
    }
}

impl<K> Lenient<K> {
    /// Returns the object as far as it could be parsed.
    pub fn into_object(self) -> Option<K> {
        self.object
    }
}

/// Reads JSON text alone, since an object that cannot be parsed is read again.
impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Self::from_text(text.get()).map_err(D::Error::custom)
    }
}

impl<K: Resource + DeserializeOwned> WatchedObject for Lenient<K> {
    fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        // Nearly every object parses at once, and a tree of the values of a Node costs more than all the rest.
        if let Ok(object) = serde_json::from_str::<K>(text) {
            return Ok(Self {
                metadata: object.meta().clone(),
                object: Some(object),
                error: None,
                status: None,
            });
        }
        serde_json::from_str(text).map(parse)
    }
}

fn parse<K: Resource + DeserializeOwned>(mut value: Value) -> Lenient<K> {
    let (mut error, mut status) = (None, None);
    for part in [None].into_iter().chain(DISPENSABLE.map(Some)) {
        if let Some((parent, key)) = part.and_then(|part| part.rsplit_once('/'))
            && let Some(Value::Object(parent)) = value.pointer_mut(parent)
        {
            let removed = parent.remove(key);
            if key == "status" {
                status = removed;
            }
        }
        match K::deserialize(&value) {
            Ok(object) => {
                return Lenient {
                    metadata: object.meta().clone(),
                    object: Some(object),
                    error,
                    status: None,
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
        generation: value.pointer("/metadata/generation").and_then(Value::as_i64),
        deletion_timestamp: value
            .pointer("/metadata/deletionTimestamp")
            .and_then(|time| Time::deserialize(time).ok()),
        ..ObjectMeta::default()
    };
    Lenient {
        metadata,
        object: None,
        error,
        status,
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Lenient<K> {
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
    fn malformed_status_counts_as_missing_and_affects_no_other_object() {
        let list = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodeList", "metadata": {}, "items": [
            gpu_node("bad", "2026-01-01T00:00:00+99:99"), gpu_node("good", "2026-01-01T00:00:00Z")]});
        let list: ObjectList<Lenient<GpuNode>> = serde_json::from_str(&list.to_string()).unwrap();
        let read: Vec<_> = list.items.into_iter().filter_map(Lenient::read).collect();
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
    fn node_is_parsed_without_times_that_are_out_of_range() {
        let late = "9999-12-31T23:59:59Z";
        let node = json!({"metadata": {"name": "n", "managedFields": [{"manager": "m", "time": late}]},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": late}]}});
        let node = parse::<Node>(node).read().unwrap();
        assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    }

    #[test]
    fn object_with_a_malformed_spec_has_only_its_name() {
        let policy = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy",
            "metadata": {"name": "p", "resourceVersion": "7"}, "spec": {"nodeSelector": {}, "mode": "Later"}});
        let policy = parse::<GpuNodePolicy>(policy);
        assert_eq!(policy.meta().name.as_deref(), Some("p"));
        assert!(policy.read().is_none());
    }
}
