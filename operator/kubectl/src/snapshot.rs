//! The cluster state that a plan reads, from a cluster or from a file of `kubectl gpunode dump`.
//!
//! | module | what it does |
//! |---|---|
//! | `operator` | tells from the operator's Deployment whether it writes GPU fact labels, and which agent images it allows |
//! | `pods` | the pods of nodes, with what decides whether a taint evicts them |

pub mod operator;
mod pods;

pub use pods::{KnownPods, RunningPod};

use crate::{
    cli::{ClusterArgs, SourceArgs},
    cluster::{self, ForbiddenRequest, ListedObjects, UnreadableObject, unreadable_names},
    output::{plural, warn},
};
use anyhow::Context;
use futures::StreamExt;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::PolicySet;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, Pod},
};
use kube::api::{DynamicObject, ListParams};
use operator::{OperatorRules, UnknownGpuLabels, agent_images, companion_roots, gpu_labels, is_operator};
use serde::Deserialize;
use std::{fs::File, io::Read, path::Path};

/// Largest file, enough for a hundred thousand nodes.
const MAX_BYTES: u64 = 1 << 30;

/// The kinds that decide about a node.
pub const DECISIVE_KINDS: [&str; 3] = ["GpuNodePolicy", "GpuNode", "Node"];

/// Age from which a file may say little about the cluster.
const OLD: SignedDuration = SignedDuration::from_hours(24);

/// Added to the reason for which the operator's setting for GPU fact labels is unknown.
const DEFAULT_GPU_LABELS: &str =
    "; assuming that the operator writes GPU fact labels, which is its default, and allows every agent image";

/// Added to the reason for which pods are unknown.
const WITHOUT_PODS: &str = "; a plan cannot name the pods that a taint evicts";

/// Nodes whose pods are listed at the same time.
const LISTS_AT_ONCE: usize = 8;

/// The nodes, GpuNodes and policies of a cluster.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    pub policies: Vec<GpuNodePolicy>,
    pub gpu_nodes: Vec<GpuNode>,
    pub nodes: Vec<Node>,
    /// The operator's Deployment, where it can be read and tells whether nodes get GPU fact labels.
    pub operator: Option<Deployment>,
    /// Pods, where a plan needs them.
    pub pods: KnownPods,
    /// Time at which a dump was written.
    pub written: Option<Timestamp>,
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
            let snapshot = Self::of_file(file, path)?;
            if let Some(warning) = snapshot.age_warning(path, Timestamp::now()) {
                warn(&warning);
            }
            return Ok(snapshot);
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
        let operator = operators.map_err(|error| match error.downcast::<ForbiddenRequest>() {
            Ok(forbidden) => UnknownGpuLabels::Forbidden(forbidden.message),
            Err(error) => UnknownGpuLabels::Unlisted(format!("{error:#}")),
        });
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

    /// Reads the pods of these nodes. Where that fails, the list of unreadable objects says so.
    pub async fn read_pods(&mut self, args: &ClusterArgs, nodes: &[String]) {
        match list_pods(args, nodes).await {
            Ok(pods) => self.pods = pods,
            Err(error) => self.unreadable.push(unknown_pods(error, nodes.len())),
        }
    }

    /// Warns of a file that is older than a day.
    fn age_warning(&self, path: &Path, now: Timestamp) -> Option<String> {
        let written = self.written?;
        let age = now.duration_since(written);
        let days = plural(usize::try_from(age.as_hours() / 24).unwrap_or_default(), "day", "days");
        (age > OLD).then(|| {
            format!(
                "{} was written {days} ago, at {written}; the cluster may have changed, write it again with `kubectl gpunode dump`",
                path.display()
            )
        })
    }

    /// Builds the state from lists. `operator` is its Deployment, or why it is unknown.
    fn of(
        policies: ListedObjects<GpuNodePolicy>,
        gpu_nodes: ListedObjects<GpuNode>,
        nodes: ListedObjects<Node>,
        operator: Result<Deployment, UnknownGpuLabels>,
    ) -> Self {
        let operator = operator.and_then(|found| gpu_labels(&found).map(|_| found));
        let unknown = operator.as_ref().err().map(|why| match why {
            UnknownGpuLabels::Forbidden(reason) => {
                UnreadableObject::forbidden("Deployment", reason, DEFAULT_GPU_LABELS)
            }
            why => UnreadableObject {
                kind: "Deployment".to_owned(),
                name: "gpunode-operator".to_owned(),
                message: format!("{why}{DEFAULT_GPU_LABELS}"),
            },
        });
        let unknown_images = operator.as_ref().ok().filter(|found| agent_images(found).is_none());
        let unknown_images = unknown_images.map(|_| UnreadableObject {
            kind: "Deployment".to_owned(),
            name: "gpunode-operator".to_owned(),
            message: "it does not tell which agent images it allows; assuming that it allows every image".to_owned(),
        });
        let unknown_roots = operator.as_ref().ok().filter(|found| companion_roots(found).is_none());
        let unknown_roots = unknown_roots.map(|_| UnreadableObject {
            kind: "Deployment".to_owned(),
            name: "gpunode-operator".to_owned(),
            message: "it does not tell which files companions may hand out; assuming that they may hand out every file"
                .to_owned(),
        });
        let unreadable = [policies.unreadable, gpu_nodes.unreadable, nodes.unreadable]
            .into_iter()
            .flatten();
        Self {
            policies: policies.objects,
            gpu_nodes: gpu_nodes.objects,
            nodes: nodes.objects,
            operator: operator.ok(),
            pods: KnownPods::default(),
            written: None,
            unreadable: unreadable
                .chain(unknown)
                .chain(unknown_images)
                .chain(unknown_roots)
                .collect(),
        }
    }

    /// Returns the policies as the operator reads them.
    pub fn policy_set<'a>(&self, policies: impl IntoIterator<Item = &'a GpuNodePolicy>) -> PolicySet {
        let set = PolicySet::new(policies);
        let unreadable = unreadable_names(&self.policies, &self.unreadable);
        let unreadable: Vec<_> = unreadable.filter(|name| set.get(name).is_none()).collect();
        let set = set.with_unreadable(unreadable).with_gpu_labels(self.gpu_labels());
        let rules = self.operator.as_ref().map(OperatorRules::of).unwrap_or_default();
        rules.apply(set)
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
            #[serde(default)]
            metadata: FileMetadata,
            items: Vec<DynamicObject>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct FileMetadata {
            creation_timestamp: Option<String>,
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
        let mut pods = ListedObjects::<Pod>::default();
        for object in list.items {
            match object.types.as_ref().map(|types| types.kind.as_str()) {
                Some("GpuNodePolicy") => policies.add(object),
                Some("GpuNode") => gpu_nodes.add(object),
                Some("Node") => nodes.add(object),
                Some("Deployment") => deployments.add(object),
                Some("Pod") => pods.add(object),
                _ => {}
            }
        }
        deployments.objects.retain(is_operator);
        let operator = first(deployments.objects, UnknownGpuLabels::NotInFile);
        let pods = KnownPods::of_list(&pods.objects, &gpu_nodes.objects);
        let written = list.metadata.creation_timestamp.and_then(|time| time.parse().ok());
        let snapshot = Self {
            pods,
            written,
            ..Self::of(policies, gpu_nodes, nodes, operator)
        };
        anyhow::ensure!(
            !snapshot.nodes.is_empty(),
            "read {}: it contains no Node; write a list with `kubectl gpunode dump > cluster.yaml`",
            path.display()
        );
        Ok(snapshot)
    }
}

/// Lists the pods of some nodes.
async fn list_pods(args: &ClusterArgs, nodes: &[String]) -> anyhow::Result<KnownPods> {
    let client = &cluster::connect(args).await?;
    let list = |node: String| async move {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = cluster::list_some::<Pod>(client, params).await?;
        anyhow::Ok((node, pods.objects))
    };
    let mut lists = futures::stream::iter(nodes.iter().cloned().map(list)).buffer_unordered(LISTS_AT_ONCE);
    let mut known = KnownPods::default();
    while let Some(listed) = lists.next().await {
        let (node, pods) = listed?;
        known.add(&node, &pods);
    }
    Ok(known)
}

/// Says why the pods of some nodes are unknown.
fn unknown_pods(error: anyhow::Error, nodes: usize) -> UnreadableObject {
    match error.downcast::<ForbiddenRequest>() {
        Ok(forbidden) => UnreadableObject::forbidden("Pod", &forbidden.message, WITHOUT_PODS),
        Err(error) => UnreadableObject {
            kind: "Pods".to_owned(),
            name: format!("on {}", plural(nodes, "node", "nodes")),
            message: format!("{error:#}{WITHOUT_PODS}"),
        },
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
        let unknown = "the file does not contain it; assuming that the operator writes GPU fact labels, which is its default, and allows every \
             agent image";
        assert_eq!(snapshot.unreadable[1].message, unknown);
        assert!(snapshot.gpu_labels());
    }

    #[test]
    fn a_file_says_whether_the_operator_writes_fact_labels() {
        let deployment = |name: &str| {
            let spec = "{selector: {}, template: {spec: {containers: [{name: operator, args: [--gpu-labels=false, --agent-image=x]}]}}}";
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
    fn forbidden_pods_and_deployments_are_kinds_that_name_the_role() {
        let forbidden = ForbiddenRequest {
            what: "list pods".to_owned(),
            message: "pods is forbidden".to_owned(),
        };
        let pods = unknown_pods(forbidden.into(), 3);
        assert_eq!(
            pods.to_string(),
            "you may not list Pods: pods is forbidden; ask for the ClusterRole gpunode-viewer; a plan cannot name the pods that \
             a taint evicts"
        );
        assert!(pods.is_every());
        let failed = unknown_pods(anyhow::anyhow!("list pods: no answer"), 3).to_string();
        assert!(
            failed.starts_with("Pods on 3 nodes: list pods: no answer; a plan"),
            "{failed}"
        );

        let snapshot = ClusterSnapshot::of(
            ListedObjects::default(),
            ListedObjects::default(),
            ListedObjects::default(),
            Err(UnknownGpuLabels::Forbidden("deployments.apps is forbidden".to_owned())),
        );
        assert!(snapshot.gpu_labels());
        assert_eq!(
            snapshot.unreadable[0].to_string(),
            "you may not list Deployments: deployments.apps is forbidden; ask for the ClusterRole gpunode-viewer; assuming that \
             the operator writes GPU fact labels, which is its default, and allows every agent image"
        );
    }

    #[test]
    fn an_unreadable_policy_counts_as_the_operator_counts_it() {
        let policy = |name: &str, rest: &str| {
            format!("- {{apiVersion: gpunode.dev/v1alpha1, kind: GpuNodePolicy, metadata: {{name: {name}}}, {rest}}}\n")
        };
        let newer = policy("newer", "spec: {nodeSelector: {}, mode: Newer}");
        let odd = policy("odd", "spec: {nodeSelector: {}}, status: 7");
        let snapshot = read(&format!(
            "items:\n- {{apiVersion: v1, kind: Node, metadata: {{name: n}}}}\n{newer}{odd}"
        ))
        .expect("a list");
        let set = snapshot.policy_set(&snapshot.policies);
        assert!(set.is_unreadable("newer") && set.get("odd").is_some());
        assert!(!set.is_unreadable("odd") && !snapshot.policy_set([]).is_unreadable("odd"));
        let mut mended = snapshot.policies[0].clone();
        mended.metadata.name = Some("newer".to_owned());
        assert!(
            !snapshot.policy_set([&mended]).is_unreadable("newer"),
            "a plan replaces it"
        );
    }

    #[test]
    fn a_file_older_than_a_day_gives_a_warning() {
        let text = "metadata: {creationTimestamp: 2026-01-01T00:00:00Z}\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n}}\n";
        let snapshot = read(text).expect("a list");
        let warning = |now: &str| snapshot.age_warning(Path::new("cluster.yaml"), now.parse().expect("a time"));
        assert_eq!(warning("2026-01-02T00:00:00Z"), None);
        assert_eq!(
            warning("2026-01-04T01:00:00Z").as_deref(),
            Some(
                "cluster.yaml was written 3 days ago, at 2026-01-01T00:00:00Z; the cluster may have changed, write it again with \
                 `kubectl gpunode dump`"
            )
        );
        let unknown =
            read("metadata: {resourceVersion: ''}\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n}}\n");
        let unknown = unknown.expect("a list of kubectl");
        assert_eq!(unknown.age_warning(Path::new("x"), Timestamp::now()), None);
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
