//! The CRDs as the YAML files of `manifests/crds/`.

use crate::{GpuNode, GpuNodePolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

/// Maximum length of a value of an enum in a status, in characters.
const MAX_ENUM_VALUE: i64 = 64;

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// File name.
    pub name: String,
    /// Content of the file.
    pub yaml: String,
}

/// A CRD cannot be serialized as YAML.
#[derive(Debug, thiserror::Error)]
#[error("write custom resource definition {name} as YAML")]
pub struct ManifestError {
    name: String,
    source: serde_yaml::Error,
}

/// Returns the CRDs of this version.
pub fn manifests() -> Result<Vec<Manifest>, ManifestError> {
    let mut gpu_nodes = GpuNode::crd();
    for version in &mut gpu_nodes.spec.versions {
        let schema = version.schema.as_mut().and_then(|it| it.open_api_v3_schema.as_mut());
        let fields = schema.and_then(|schema| schema.properties.as_mut());
        if let Some(status) = fields.and_then(|fields| fields.get_mut("status")) {
            open_enums(status);
        }
    }
    [GpuNodePolicy::crd(), gpu_nodes].iter().map(manifest).collect()
}

/// Lets the enums of a status have further values, so that the API server takes the status of a newer agent. Conditions keep
/// the values of Kubernetes.
fn open_enums(schema: &mut JSONSchemaProps) {
    if let Some(values) = schema.enum_.take() {
        let known: Vec<_> = values.iter().filter_map(|JSON(value)| value.as_str()).collect();
        let description = schema.description.take().unwrap_or_default();
        let known = format!("One of: {}. Newer agents may report others.", known.join(", "));
        schema.description = Some(format!("{description} {known}").trim_start().to_owned());
        schema.max_length = Some(MAX_ENUM_VALUE);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        open_enums(items);
    }
    for (name, field) in schema.properties.iter_mut().flatten() {
        if name != "conditions" {
            open_enums(field);
        }
    }
}

fn manifest(crd: &CustomResourceDefinition) -> Result<Manifest, ManifestError> {
    let name = crd.spec.names.plural.clone();
    let yaml = serde_yaml::to_string(crd).map_err(|source| ManifestError {
        name: name.clone(),
        source,
    })?;
    Ok(Manifest {
        name: format!("{name}.yaml"),
        yaml: format!("# Generated from crds/src by `make crds`; do not edit.\n{yaml}"),
    })
}

#[cfg(test)]
mod tests {
    use crate::{GpuNode, GpuNodePolicy, GpuNodePolicySpec, GpuNodePolicyStatus, GpuNodeSpec, GpuNodeStatus};
    use kube::CustomResourceExt as _;
    use schemars::{JsonSchema, generate::SchemaSettings};
    use serde_json::Value;

    /// Collects the paths of the fields whose text in the CRD is not their doc comment. For an optional enum, kube takes the
    /// text of the type if it has one.
    fn lost_docs(path: &str, source: &Value, crd: &Value, lost: &mut Vec<String>) {
        let source = match &source["anyOf"] {
            Value::Array(options) => &options[0],
            _ => source,
        };
        for (name, field) in source["properties"].as_object().into_iter().flatten() {
            let (path, crd) = (format!("{path}.{name}"), &crd["properties"][name]);
            if field["description"].is_null() || field["description"] != crd["description"] {
                lost.push(path.clone());
            }
            lost_docs(&path, field, crd, lost);
        }
        if source["items"].is_object() {
            lost_docs(&format!("{path}[]"), &source["items"], &crd["items"], lost);
        }
    }

    fn source<T: JsonSchema>() -> Value {
        let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
        settings.into_generator().into_root_schema_for::<T>().to_value()
    }

    #[test]
    fn explain_shows_the_doc_comment_of_every_field() {
        let mut lost = Vec::new();
        for (crd, spec, status) in [
            (
                GpuNodePolicy::crd(),
                source::<GpuNodePolicySpec>(),
                source::<GpuNodePolicyStatus>(),
            ),
            (GpuNode::crd(), source::<GpuNodeSpec>(), source::<GpuNodeStatus>()),
        ] {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
            let fields = &schema["openAPIV3Schema"]["properties"];
            assert!(fields["spec"]["properties"].is_object());
            let kind = &crd.spec.names.kind;
            lost_docs(&format!("{kind}.spec"), &spec, &fields["spec"], &mut lost);
            lost_docs(&format!("{kind}.status"), &status, &fields["status"], &mut lost);
        }
        assert_eq!(lost, Vec::<String>::new());
    }

    #[test]
    fn no_column_of_a_policy_shows_a_field_that_may_be_left_out() {
        let crd = GpuNodePolicy::crd();
        let columns = crd.spec.versions[0].additional_printer_columns.iter().flatten();
        // The code supplies defaults, and a column would show nothing for them.
        let of_spec: Vec<_> = columns
            .filter(|column| column.json_path.starts_with(".spec."))
            .collect();
        assert!(of_spec.is_empty(), "{of_spec:?}");
    }

    #[test]
    fn every_enum_of_an_agents_status_may_have_newer_values() {
        fn closed(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
            if schema.get("enum").is_some() {
                found.push(path.to_owned());
            }
            let fields = schema.get("properties").and_then(serde_json::Value::as_object);
            for (name, field) in fields.into_iter().flatten() {
                closed(field, &format!("{path}.{name}"), found);
            }
            if let Some(items) = schema.get("items") {
                closed(items, path, found);
            }
        }
        let manifests = super::manifests().expect("CRDs");
        let crd: serde_json::Value = serde_yaml::from_str(&manifests[1].yaml).expect("YAML");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let mut found = Vec::new();
        closed(schema, "status", &mut found);
        assert_eq!(found, ["status.conditions.status"]);
    }

    #[test]
    fn a_status_with_values_of_a_newer_agent_keeps_everything_else() {
        let mut status: serde_json::Value = serde_json::json!({
            "agent": {"pod": "a", "podUid": "u", "mode": "Newer", "version": "9", "configVersions": [1]},
            "migStrategy": "Newer",
            "gpus": [{
                "index": 0, "uuid": "GPU-0", "product": "P", "memoryMiB": 1, "architecture": "newer", "mode": "Newer",
                "migMode": "Newer", "health": {"state": "Newer", "grade": "Newer", "reason": "Newer", "message": "m"},
                "links": [{"peer": 1, "level": "NEWER"}],
            }],
            "resources": [{"name": "r", "capacity": 4, "allocatable": 4, "registered": true, "sharing": "Newer"}],
            "mpsDaemons": [{"device": "GPU-0", "state": "Newer"}],
            "runtime": {"name": "newer", "cdi": "Newer", "selinux": "Newer"},
        });
        let read: crate::GpuNodeStatus = serde_json::from_value(status.clone()).expect("a status");
        assert_eq!(read.gpus[0].uuid, "GPU-0");
        let health = read.gpus[0].health.as_ref().expect("health");
        assert_eq!(
            (health.state, health.grade, health.reason),
            (crate::HealthState::Unknown, Some(crate::FaultGrade::Unknown), None)
        );
        assert_eq!(health.message.as_deref(), Some("m"));
        let unhealthy = |grade| crate::DeviceHealth {
            state: crate::HealthState::Unhealthy,
            grade,
            ..crate::DeviceHealth::default()
        };
        let evicts = [health.grade, None].map(|grade| unhealthy(grade).is_broken());
        assert_eq!(evicts, [false, true], "an older agent reports no grade");
        assert_eq!(read.resources[0].allocatable, 4);
        let runtime = read.runtime.as_ref().expect("a runtime");
        assert_eq!(
            (runtime.name.as_deref(), runtime.cdi, runtime.selinux),
            (Some("newer"), None, None)
        );
        // A value that is no text is an error as before.
        status["gpus"][0]["mode"] = serde_json::json!(1);
        assert!(serde_json::from_value::<crate::GpuNodeStatus>(status).is_err());
    }

    /// Server-side apply turns an emptied granular block into null, which counts as left out.
    #[test]
    fn blocks_for_which_an_empty_one_means_something_are_atomic() {
        let crd = serde_json::to_value(GpuNodePolicy::crd()).expect("JSON");
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        for block in [
            "nodeSelector",
            "gpuSelector",
            "devicePlugin",
            "startupTaint",
            "unhealthyTaint",
        ] {
            assert_eq!(spec[block]["x-kubernetes-map-type"], "atomic", "{block}");
        }
    }
}
