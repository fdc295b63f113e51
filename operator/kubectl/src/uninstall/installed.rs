//! The objects of `manifests/default`, read from the files themselves so that none can be forgotten. Pure.

use anyhow::Context;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    CustomResourceExt, ResourceExt,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// Files of `manifests/default`, in the order of its kustomization.
const FILES: [(&str, &str); 9] = [
    (
        "namespace.yaml",
        include_str!("../../../../manifests/default/namespace.yaml"),
    ),
    (
        "operator-rbac.yaml",
        include_str!("../../../../manifests/default/operator-rbac.yaml"),
    ),
    (
        "agent-rbac.yaml",
        include_str!("../../../../manifests/default/agent-rbac.yaml"),
    ),
    (
        "people-rbac.yaml",
        include_str!("../../../../manifests/default/people-rbac.yaml"),
    ),
    (
        "admission-agents.yaml",
        include_str!("../../../../manifests/default/admission-agents.yaml"),
    ),
    (
        "admission-kubelets.yaml",
        include_str!("../../../../manifests/default/admission-kubelets.yaml"),
    ),
    (
        "admission-leases.yaml",
        include_str!("../../../../manifests/default/admission-leases.yaml"),
    ),
    (
        "operator.yaml",
        include_str!("../../../../manifests/default/operator.yaml"),
    ),
    (
        "operator-disruption-budget.yaml",
        include_str!("../../../../manifests/default/operator-disruption-budget.yaml"),
    ),
];

/// An object that an installation creates.
#[derive(Clone, Debug, PartialEq)]
pub struct InstalledObject {
    pub kind: ApiResource,
    /// None for a cluster-scoped object.
    pub namespace: Option<String>,
    pub name: String,
}

impl InstalledObject {
    /// Names a cluster-scoped object.
    pub fn cluster_scoped<K: kube::Resource<DynamicType = ()>>(name: &str) -> Self {
        Self {
            kind: ApiResource::erase::<K>(&()),
            namespace: None,
            name: name.to_owned(),
        }
    }
}

impl Serialize for InstalledObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for InstalledObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind.kind, self.name),
            None => write!(f, "{} {}", self.kind.kind, self.name),
        }
    }
}

/// Returns every object of the files for an installation in this namespace, without the namespace itself.
///
/// # Errors
/// When a file is no manifest, which a test excludes.
pub fn objects(namespace: &str) -> anyhow::Result<Vec<InstalledObject>> {
    let mut objects = Vec::new();
    for (file, text) in FILES {
        for document in serde_yaml::Deserializer::from_str(text) {
            let read = || format!("read manifests/default/{file} in this program");
            let object = DynamicObject::deserialize(document).with_context(read)?;
            let types = object.types.clone().with_context(read)?;
            let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).with_context(read)?);
            if kind.kind != "Namespace" {
                let namespace = object.namespace().map(|_| namespace.to_owned());
                objects.push(InstalledObject {
                    kind,
                    namespace,
                    name: object.name_any(),
                });
            }
        }
    }
    Ok(objects)
}

/// Returns the CRDs of gpunode, whose deletion deletes all their objects.
pub fn definitions() -> [InstalledObject; 2] {
    [GpuNodePolicy::crd_name(), GpuNode::crd_name()].map(InstalledObject::cluster_scoped::<CustomResourceDefinition>)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::{apps::v1::Deployment, core::v1::NodeSelectorRequirement};

    /// Returns the weight that the operator's pods give to a node with labels of these keys.
    fn operator_weight(labels: &[&str]) -> i32 {
        let text = include_str!("../../../../manifests/default/operator.yaml");
        let deployment: Deployment = serde_yaml::from_str(text).expect("a Deployment");
        let pod = deployment.spec.and_then(|spec| spec.template.spec).expect("a pod");
        let nodes = pod.affinity.and_then(|affinity| affinity.node_affinity);
        let terms = nodes.and_then(|nodes| nodes.preferred_during_scheduling_ignored_during_execution);
        let fits = |of: &NodeSelectorRequirement| match of.operator.as_str() {
            "Exists" => labels.contains(&of.key.as_str()),
            "DoesNotExist" => !labels.contains(&of.key.as_str()),
            operator => panic!("{operator}"),
        };
        let terms = terms.expect("preferred nodes").into_iter();
        terms
            .filter(|term| term.preference.match_expressions.iter().flatten().all(fits))
            .map(|term| term.weight)
            .sum()
    }

    #[test]
    fn operator_prefers_the_control_plane_and_every_node_without_gpu_to_one_with_gpus() {
        let control_plane = "node-role.kubernetes.io/control-plane";
        let plain = operator_weight(&[]);
        assert!(operator_weight(&[control_plane]) > plain);
        for gpu in [
            gpunode_crds::GOVERNED_LABEL,
            "nvidia.com/gpu.present",
            "feature.node.kubernetes.io/pci-10de.present",
            "cloud.google.com/gke-accelerator",
            "kubernetes.azure.com/accelerator",
            "k8s.amazonaws.com/accelerator",
        ] {
            assert!(operator_weight(&[gpu, control_plane]) < plain, "{gpu}");
        }
    }

    #[test]
    fn every_file_of_the_installation_is_known() {
        #[derive(Deserialize)]
        struct Kustomization {
            resources: Vec<String>,
        }
        let text = include_str!("../../../../manifests/default/kustomization.yaml");
        let kustomization: Kustomization = serde_yaml::from_str(text).expect("a kustomization");
        let mut files: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        files.insert(0, "../crds".to_owned());
        assert_eq!(kustomization.resources, files);
    }

    #[test]
    fn objects_are_named_as_requests_name_them() {
        let objects = objects("elsewhere").expect("readable manifests");
        let shown: Vec<_> = objects.iter().map(|it| format!("{} {it}", it.kind.plural)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        serviceaccounts ServiceAccount elsewhere/gpunode-operator
        clusterroles ClusterRole gpunode-operator
        clusterrolebindings ClusterRoleBinding gpunode-operator
        roles Role elsewhere/gpunode-operator
        rolebindings RoleBinding elsewhere/gpunode-operator
        serviceaccounts ServiceAccount elsewhere/gpunode-agent
        clusterroles ClusterRole gpunode-agent
        clusterrolebindings ClusterRoleBinding gpunode-agent
        clusterroles ClusterRole gpunode-aggregate-to-view
        clusterroles ClusterRole gpunode-viewer
        clusterroles ClusterRole gpunode-policy-editor
        roles Role elsewhere/gpunode-usage-viewer
        validatingadmissionpolicies ValidatingAdmissionPolicy gpunode-agents
        validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding gpunode-agents
        validatingadmissionpolicies ValidatingAdmissionPolicy gpunode-agent-events
        validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding gpunode-agent-events
        validatingadmissionpolicies ValidatingAdmissionPolicy gpunode-kubelets
        validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding gpunode-kubelets
        validatingadmissionpolicies ValidatingAdmissionPolicy gpunode-leases
        validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding gpunode-leases
        deployments Deployment elsewhere/gpunode-operator
        poddisruptionbudgets PodDisruptionBudget elsewhere/gpunode-operator
        ");
        assert_eq!(
            definitions().map(|it| it.name),
            ["gpunodepolicies.gpunode.dev", "gpunodes.gpunode.dev"]
        );
    }
}
