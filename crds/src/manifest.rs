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
