//! The survey before a removal: everything of gpunode in the cluster.

use super::{
    agents::daemonsets,
    foreign::foreign_objects,
    installed::{self, InstalledObject},
    leftover::Leftover,
    namespace::{unlisted, why_it_is_kept},
    operator::deployment,
    removal::Removal,
    requests::request,
    resources::ServedResources,
    scope::RemovalScope,
    undo::{NodeUndo, undo},
};
use crate::cluster::{self, ForbiddenRequest};
use gpunode_crds::{GpuNode, GpuNodePolicy, OWNED_ANNOTATION};
use gpunode_plan::ResourceUse;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, Node},
    rbac::v1::ClusterRoleBinding,
};
use kube::{Api, ResourceExt};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the operator's ClusterRoleBinding in `manifests/default`.
const OPERATOR: &str = "gpunode-operator";

/// Everything of gpunode in a cluster.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovalSurvey {
    pub policies: Vec<String>,
    /// Changes that restore each node, for people.
    pub nodes: BTreeMap<String, Vec<String>>,
    /// Nodes that must stay unchanged, and the namespace where its objects cannot be listed; with the reason.
    #[serde(rename = "stays")]
    pub held: Vec<Leftover>,
    /// The namespace, where it holds foreign objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Leftover>,
    /// DaemonSets, CRDs, namespace and every installed object.
    pub objects: Vec<InstalledObject>,
    /// Resources that agents served, on nodes that are restored.
    #[serde(skip)]
    pub resources: ServedResources,
    /// Pods whose MPS daemon ends.
    #[serde(rename = "mpsClients")]
    pub clients: BTreeSet<String>,
    /// Reads that the caller may not make, such as `list nodes`.
    #[serde(rename = "notChecked", skip_serializing_if = "BTreeSet::is_empty")]
    pub forbidden: BTreeSet<String>,
}

/// Reads everything of gpunode in the cluster that the caller may read.
///
/// # Errors
/// When the cluster cannot be read, or gpunode is installed in another namespace.
pub async fn survey(
    removal: &Removal,
    installed: &[InstalledObject],
    scope: RemovalScope,
) -> anyhow::Result<RemovalSurvey> {
    let requests = &removal.requests;
    let mut survey = RemovalSurvey::default();
    survey.permitted(check_namespace(removal).await)?;
    let is_everything = scope == RemovalScope::Everything;
    if is_everything {
        let policies = survey.permitted(requests.names::<GpuNodePolicy>(None, "").await)?;
        survey.policies = policies.unwrap_or_default();
    }
    // Without the CRD, only the records on the nodes tell what agents served.
    let definition = survey.permitted(requests.metadata(&installed::definitions()[1]).await)?;
    if !matches!(definition, Some(None)) {
        let gpu_nodes = survey.permitted(cluster::list::<GpuNode>(&requests.client).await)?;
        for gpu_node in gpu_nodes.unwrap_or_default().objects {
            survey.add_gpu_node(&gpu_node);
        }
    }
    let nodes = survey.permitted(cluster::list::<Node>(&requests.client).await)?;
    for node in nodes.unwrap_or_default().objects {
        survey.add_node(&node)?;
    }
    let mut objects = survey.permitted(daemonsets(removal).await)?.unwrap_or_default();
    match scope {
        RemovalScope::Everything => objects.extend(installed.iter().cloned().chain(installed::definitions())),
        RemovalScope::Nodes => objects.push(deployment(&requests.namespace)),
    }
    for object in objects {
        let found = survey.permitted(requests.metadata(&object).await)?;
        if found.flatten().is_some() {
            survey.objects.push(object);
        }
    }
    if !is_everything {
        return Ok(survey);
    }
    let namespace = InstalledObject::cluster_scoped::<Namespace>(&requests.namespace);
    let found = survey.permitted(requests.metadata(&namespace).await)?;
    if found.flatten().is_some() {
        survey.add_namespace(namespace, foreign_objects(removal, installed).await);
    }
    Ok(survey)
}

/// Refuses to run where an operator in another namespace would recreate what is removed.
async fn check_namespace(removal: &Removal) -> anyhow::Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(removal.requests.client.clone());
    let binding = request("read ClusterRoleBinding gpunode-operator", bindings.get(OPERATOR)).await?;
    let subjects = binding.and_then(|binding| binding.subjects).unwrap_or_default();
    let elsewhere = subjects
        .into_iter()
        .filter_map(|subject| subject.namespace)
        .find(|it| *it != removal.requests.namespace);
    elsewhere.map_or(Ok(()), |namespace| {
        anyhow::bail!("uninstall: gpunode is installed in namespace {namespace}; nothing was changed. Run this again with -n {namespace}")
    })
}

impl RemovalSurvey {
    /// Returns an answer, or none and a note where the caller may not have it.
    fn permitted<T>(&mut self, answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                self.forbidden.insert(error.downcast::<ForbiddenRequest>()?.what);
                Ok(None)
            }
        }
    }

    /// Adds the namespace, in which these objects are not gpunode's.
    fn add_namespace(&mut self, namespace: InstalledObject, foreign: anyhow::Result<Vec<String>>) {
        let leftover = |why| Leftover {
            what: namespace.to_string(),
            why,
        };
        match foreign {
            Ok(foreign) if foreign.is_empty() => self.objects.push(namespace),
            Ok(foreign) => self.kept = Some(leftover(why_it_is_kept(&foreign))),
            Err(error) => self.held.push(leftover(unlisted(&error))),
        }
    }

    fn add_gpu_node(&mut self, gpu_node: &GpuNode) {
        let name = gpu_node.name_any();
        let Some(status) = &gpu_node.status else { return };
        let names = status.resources.iter().map(|resource| resource.name.clone());
        self.resources
            .entry(name.clone())
            .or_default()
            .extend(names.map(|name| (name, ResourceUse::InUse)));
        let on_mps = |device: &String| status.mps_daemons.iter().any(|daemon| daemon.device == *device);
        let clients = status.holders.iter().filter(|holder| on_mps(&holder.device));
        self.clients
            .extend(clients.map(|it| format!("{}/{} on node {name}", it.namespace, it.pod)));
    }

    fn add_node(&mut self, node: &Node) -> anyhow::Result<()> {
        let name = node.name_any();
        let record = node
            .annotations()
            .get(OWNED_ANNOTATION)
            .and_then(|text| serde_json::from_str(text).ok());
        let record: serde_json::Value = record.unwrap_or_default();
        let recorded = record["resources"].as_object().into_iter().flatten();
        for (key, of) in recorded {
            // The record also says since when the operator waits, and its attempts.
            let of = serde_json::from_value(of.clone()).unwrap_or(ResourceUse::InUse);
            let served = self.resources.entry(name.clone()).or_default();
            served.entry(key.clone()).or_insert(of);
        }
        // Only resources that the node still has can become stale.
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let is_there = |key: &String| capacity.is_some_and(|capacity| capacity.contains_key(key));
        if let Some(keys) = self.resources.get_mut(&name) {
            keys.retain(|key, _| is_there(key));
        }
        self.resources.retain(|_, keys| !keys.is_empty());
        match undo(node, Timestamp::now())? {
            NodeUndo::Nothing => {}
            NodeUndo::Held(hold) => {
                self.resources.remove(&name);
                self.held.push(Leftover {
                    what: format!("node {name}"),
                    why: hold.to_string(),
                });
            }
            NodeUndo::Patch { words, .. } => drop(self.nodes.insert(name, words)),
        }
        Ok(())
    }

    /// Returns true where nothing of gpunode is left.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
            && self.nodes.is_empty()
            && self.held.is_empty()
            && self.objects.is_empty()
            && self.forbidden.is_empty()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// A removal that restores one node and leaves another one.
    pub fn survey() -> RemovalSurvey {
        let gpu_node = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": {},
            "status": {
                "resources": [
                    {"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true},
                    {"name": "nvidia.com/gone", "capacity": 0, "allocatable": 0, "registered": true},
                ],
                "mpsDaemons": [{"device": "GPU-1", "state": "Answering"}],
                "holders": [
                    {"namespace": "team", "pod": "llm", "container": "c", "resource": "nvidia.com/gpu", "device": "GPU-1", "count": 1},
                    {"namespace": "team", "pod": "ocr", "container": "c", "resource": "nvidia.com/gpu", "device": "GPU-2", "count": 1},
                ],
            },
        });
        let record = r#"{"version":1,"labels":{"a":"1"},"resources":{"nvidia.com/gpu":null,"old.com/gpu":1700000000}}"#;
        let node = json!({
            "metadata": {"name": "n1", "resourceVersion": "1", "labels": {"a": "1"}, "annotations": {"gpunode.dev/owned": record}},
            "status": {"capacity": {"nvidia.com/gpu": "8", "old.com/gpu": "0", "cpu": "1"}},
        });
        let kept = r#"{"version":1,"resources":{"old.com/gpu":null}}"#;
        let kept = json!({
            "metadata": {"name": "n2", "resourceVersion": "1", "labels": {"gpunode.dev/ignore": ""}, "annotations": {"gpunode.dev/owned": kept}},
            "status": {"capacity": {"old.com/gpu": "0"}},
        });
        let mut survey = RemovalSurvey {
            policies: vec!["pool".to_owned()],
            objects: installed::definitions().to_vec(),
            ..RemovalSurvey::default()
        };
        survey.add_gpu_node(&serde_json::from_value(gpu_node).expect("a GpuNode"));
        survey
            .add_node(&serde_json::from_value(node).expect("a node"))
            .expect("a plan");
        survey
            .add_node(&serde_json::from_value(kept).expect("a node"))
            .expect("a plan");
        survey
    }

    #[test]
    fn resources_are_those_of_agents_and_records_that_the_node_has() {
        let expected = [
            ("nvidia.com/gpu", ResourceUse::InUse),
            ("old.com/gpu", ResourceUse::UnusedSince(1_700_000_000)),
        ];
        let expected = expected.map(|(key, of)| (key.to_owned(), of)).into();
        assert_eq!(
            survey().resources,
            ServedResources::from([("n1".to_owned(), expected)]),
            "a node that is held stays as it is"
        );
    }

    #[test]
    fn programs_are_told_the_same() {
        let mut survey = survey();
        survey.kept = Some(Leftover {
            what: "Namespace g".to_owned(),
            why: why_it_is_kept(&["Secret pull".to_owned()]),
        });
        insta::assert_snapshot!(serde_yaml::to_string(&survey).expect("YAML"), @r"
        policies:
        - pool
        nodes:
          n1:
          - label a
        stays:
        - what: node n2
          why: the node has the label gpunode.dev/ignore and is left as it is
        kept:
          what: Namespace g
          why: 'kept, because it holds objects that are not gpunode''s: Secret pull; delete it yourself if you do not need them'
        objects:
        - CustomResourceDefinition gpunodepolicies.gpunode.dev
        - CustomResourceDefinition gpunodes.gpunode.dev
        mpsClients:
        - team/llm on node n1
        ");
    }

    #[test]
    fn what_the_caller_may_not_read_is_named_and_is_not_nothing() {
        let mut survey = RemovalSurvey::default();
        let forbidden = ForbiddenRequest {
            what: "list nodes".to_owned(),
            message: "nodes is forbidden".to_owned(),
        };
        let answer = survey.permitted::<Vec<Node>>(Err(forbidden.into()));
        assert_eq!(answer.expect("a note instead of an error"), None);
        assert_eq!(survey.permitted(Ok(7)).expect("an answer"), Some(7));
        assert!(survey.permitted::<u8>(Err(anyhow::anyhow!("no answer"))).is_err());
        assert!(!survey.is_empty());
        assert_eq!(survey.forbidden, ["list nodes".to_owned()].into());
    }

    #[test]
    fn namespace_goes_only_if_its_objects_could_be_checked() {
        let namespace = || InstalledObject::cluster_scoped::<Namespace>("gpunode-system");
        let forbidden = ForbiddenRequest {
            what: "list secrets".to_owned(),
            message: "secrets is forbidden".to_owned(),
        };
        let mut survey = RemovalSurvey::default();
        survey.add_namespace(namespace(), Err(forbidden.into()));
        let [left] = survey.held.as_slice() else {
            panic!("{survey:?}")
        };
        assert!(
            left.to_string()
                .contains("cannot be listed: list secrets: secrets is forbidden"),
            "{left}"
        );
        assert!(survey.objects.is_empty() && !survey.is_empty());
        survey.add_namespace(namespace(), Ok(vec!["Secret pull".to_owned()]));
        assert!(survey.objects.is_empty() && survey.kept.is_some());
        survey.add_namespace(namespace(), Ok(Vec::new()));
        assert_eq!(survey.objects, [namespace()]);
    }

    #[test]
    fn nothing_is_nothing() {
        assert!(RemovalSurvey::default().is_empty());
        assert!(!survey().is_empty());
    }
}
