//! The CRDs as the YAML files of `manifests/crds/`.

use crate::{GpuNode, GpuNodePolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

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
    [GpuNodePolicy::crd(), GpuNode::crd()].iter().map(manifest).collect()
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
