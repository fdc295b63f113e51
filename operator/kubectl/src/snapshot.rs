//! The cluster state that a plan reads, from a cluster or from a file of `kubectl gpunode dump`.
//!
//! | module | what it does |
//! |---|---|
//! | `operator` | tells from the operator's Deployment whether it writes GPU fact labels |

pub mod operator;

use crate::{
    cli::SourceArgs,
    cluster::{self, ListedObjects, UnreadableObject},
};
use anyhow::Context;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::PolicySet;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node};
use kube::api::{DynamicObject, ListParams};
use operator::{UnknownGpuLabels, gpu_labels, is_operator};
use serde::Deserialize;
use std::{fs::File, io::Read, path::Path};

/// Largest file, enough for a hundred thousand nodes.
const MAX_BYTES: u64 = 1 << 30;

/// The kinds that decide about a node.
pub const DECISIVE_KINDS: [&str; 3] = ["GpuNodePolicy", "GpuNode", "Node"];

/// The nodes, GpuNodes and policies of a cluster.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    pub policies: Vec<GpuNodePolicy>,
    pub gpu_nodes: Vec<GpuNode>,
    pub nodes: Vec<Node>,
    /// The operator's Deployment, where it can be read and tells whether nodes get GPU fact labels.
    pub operator: Option<Deployment>,
    /// Unreadable objects, and kinds that the caller may not list. One whose status alone is unreadable is above without it.
    pub unreadable: Vec<UnreadableObject>,
}

impl ClusterSnapshot {
    /// Reads the state; with `node`, the Nodes and GpuNodes of that name only. What the caller may not list is missing and named.
    ///
    /// # Errors
    /// When the cluster or the file cannot be read.
    pub async fn read(args: &SourceArgs, node: Option<&str>) -> anyhow::Result<Self> {
        if let Some(path) = &args.nodes {
            let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
            return Self::of_file(file, path);
        }
        let client = cluster::connect(&args.cluster).await?;
        let params = ListParams {
            field_selector: node.map(|name| format!("metadata.name={name}")),
            ..Default::default()
        };
        // Policies come first: their error is the one to show when gpunode is not installed.
        let policies = cluster::list_permitted::<GpuNodePolicy>(&client, ListParams::default()).await?;
        let gpu_nodes = cluster::list_permitted::<GpuNode>(&client, params.clone()).await?;
        let nodes = cluster::list_permitted::<Node>(&client, params).await?;
        let operators =
            cluster::list_some::<Deployment>(&client, ListParams::default().labels(operator::OPERATOR)).await;
        // A plan is possible without permission to read it.
        let operator = operators.map_err(|error| UnknownGpuLabels::Unlisted(format!("{error:#}")));
        let operator = operator.and_then(|found| first(found.objects, UnknownGpuLabels::NotInCluster));
        Ok(Self::of(policies, gpu_nodes, nodes, operator))
    }

    /// Checks that the caller may list these kinds, without which `what` says nothing.
    ///
    /// # Errors
    /// When one is forbidden; the error names each.
    pub fn require(&self, kinds: &[&str], what: &str) -> anyhow::Result<()> {
        cluster::require(&self.unreadable, kinds, what)
    }

    /// Builds the state from lists. `operator` is its Deployment, or why it is unknown.
    fn of(
        policies: ListedObjects<GpuNodePolicy>,
        gpu_nodes: ListedObjects<GpuNode>,
        nodes: ListedObjects<Node>,
        operator: Result<Deployment, UnknownGpuLabels>,
    ) -> Self {
        let operator = operator.and_then(|found| gpu_labels(&found).map(|_| found));
        let unknown = operator.as_ref().err().map(|why| UnreadableObject {
            kind: "Deployment".to_owned(),
            name: "gpunode-operator".to_owned(),
            message: format!("{why}; assuming that the operator writes GPU fact labels, which is its default"),
        });
        let unreadable = [policies.unreadable, gpu_nodes.unreadable, nodes.unreadable]
            .into_iter()
            .flatten();
        Self {
            policies: policies.objects,
            gpu_nodes: gpu_nodes.objects,
            nodes: nodes.objects,
            operator: operator.ok(),
            unreadable: unreadable.chain(unknown).collect(),
        }
    }

    /// Returns the policies as the operator reads them.
    pub fn policy_set<'a>(&self, policies: impl IntoIterator<Item = &'a GpuNodePolicy>) -> PolicySet {
        PolicySet::new(policies).with_gpu_labels(self.gpu_labels())
    }

    /// Returns true where the operator writes GPU fact labels, which is its default.
    pub fn gpu_labels(&self) -> bool {
        self.operator
            .as_ref()
            .is_none_or(|operator| gpu_labels(operator).unwrap_or(true))
    }

    /// Reads a list as `dump` or `kubectl get nodes,gpunodes,gpunodepolicies -o yaml` writes it.
    fn of_file(file: impl Read, path: &Path) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct ObjectFile {
            items: Vec<DynamicObject>,
        }
        let list: ObjectFile = serde_yaml::from_reader(file.take(MAX_BYTES)).with_context(|| {
            let path = path.display();
            format!(
                "read {path}: not a list of Kubernetes objects; write one with `kubectl gpunode dump > cluster.yaml`"
            )
        })?;
        let (mut policies, mut gpu_nodes, mut nodes) = (
            ListedObjects::default(),
            ListedObjects::default(),
            ListedObjects::default(),
        );
        let mut deployments = ListedObjects::<Deployment>::default();
        for object in list.items {
            match object.types.as_ref().map(|types| types.kind.as_str()) {
                Some("GpuNodePolicy") => policies.add(object),
                Some("GpuNode") => gpu_nodes.add(object),
                Some("Node") => nodes.add(object),
                Some("Deployment") => deployments.add(object),
                _ => {}
            }
        }
        deployments.objects.retain(is_operator);
        let operator = first(deployments.objects, UnknownGpuLabels::NotInFile);
        let snapshot = Self::of(policies, gpu_nodes, nodes, operator);
        anyhow::ensure!(
            !snapshot.nodes.is_empty(),
            "read {}: it contains no Node; write a list with `kubectl gpunode dump > cluster.yaml`",
            path.display()
        );
        Ok(snapshot)
    }
}

fn first(deployments: Vec<Deployment>, otherwise: UnknownGpuLabels) -> Result<Deployment, UnknownGpuLabels> {
    deployments.into_iter().next().ok_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt;

    fn read(text: &str) -> anyhow::Result<ClusterSnapshot> {
        ClusterSnapshot::of_file(text.as_bytes(), Path::new("cluster.yaml"))
    }

    #[test]
    fn a_file_is_read_as_kubectl_writes_it() {
        let snapshot = read(
            "apiVersion: v1\nkind: List\nitems:
- {apiVersion: v1, kind: Node, metadata: {name: n}}
- {apiVersion: v1, kind: Pod, metadata: {name: p}}
- {apiVersion: gpunode.dev/v1alpha1, kind: GpuNode, metadata: {name: n}, spec: {}, status: {gpus: 3}}
- {apiVersion: gpunode.dev/v1alpha1, kind: GpuNodePolicy, metadata: {name: a}, spec: {nodeSelector: {}}}
",
        )
        .expect("a list");
        assert_eq!(
            snapshot.nodes.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
            ["n"]
        );
        assert_eq!(
            (
                snapshot.gpu_nodes.len(),
                snapshot.policies.len(),
                snapshot.unreadable.len()
            ),
            (1, 1, 2)
        );
        let unknown =
            "the file does not contain it; assuming that the operator writes GPU fact labels, which is its default";
        assert_eq!(snapshot.unreadable[1].message, unknown);
        assert!(snapshot.gpu_labels());
    }

    #[test]
    fn a_file_says_whether_the_operator_writes_fact_labels() {
        let deployment = |name: &str| {
            let spec = "{selector: {}, template: {spec: {containers: [{name: operator, args: [--gpu-labels=false]}]}}}";
            let labels = format!("{{app.kubernetes.io/name: {name}}}");
            format!(
                "- {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}, labels: {labels}}}, spec: {spec}}}\n"
            )
        };
        let node = "- {apiVersion: v1, kind: Node, metadata: {name: n}}\n";
        let snapshot = |operator: &str| read(&format!("items:\n{node}{}", deployment(operator))).expect("a list");
        let known = snapshot("gpunode-operator");
        assert!(!known.gpu_labels() && !known.policy_set([]).gpu_labels() && known.unreadable.is_empty());
        assert!(snapshot("another").gpu_labels());
    }

    #[test]
    fn another_file_says_how_to_make_one() {
        for text in ["", "a: b", "- a", "kind: Node\nmetadata: {name: n}\n"] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains("`kubectl gpunode dump > cluster.yaml`"), "{error}");
        }
        assert!(
            read("items: []")
                .expect_err("no node")
                .to_string()
                .contains("it contains no Node")
        );
    }
}
