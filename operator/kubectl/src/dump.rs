//! `kubectl gpunode dump`: the cluster state that `plan`, `explain`, `topo` and `doctor` read, as one list.

use crate::{
    cli::{DocumentFormat, DumpArgs},
    cluster, output,
    snapshot::{ClusterSnapshot, DECISIVE_KINDS, operator},
};
use anyhow::Context;
use gpunode_crds::{GpuNode, GpuNodePolicy, OWNED_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeSpec, NodeStatus},
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

/// A Kubernetes list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DumpedList {
    api_version: &'static str,
    kind: &'static str,
    metadata: DumpMetadata,
    items: Vec<Value>,
}

/// Metadata of the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DumpMetadata {
    /// Time of the dump, from which its readers tell its age.
    creation_timestamp: Timestamp,
}

/// Prints the list.
///
/// # Errors
/// When the cluster cannot be read, or the output cannot be written.
pub async fn run(args: &DumpArgs) -> anyhow::Result<ExitCode> {
    let source = crate::cli::SourceArgs {
        nodes: None,
        cluster: args.cluster.clone(),
    };
    let mut snapshot = ClusterSnapshot::read(&source, None).await?;
    // A plan from half a dump would be wrong and not say so.
    snapshot.require(&DECISIVE_KINDS, "dump")?;
    let gpu_nodes: Vec<String> = snapshot.gpu_nodes.iter().map(ResourceExt::name_any).collect();
    snapshot.read_pods(&args.cluster, &gpu_nodes).await;
    for object in &snapshot.unreadable {
        cluster::warn(object);
    }
    let now = Timestamp::now();
    let now = now.round(jiff::Unit::Second).unwrap_or(now);
    let text = match args.output {
        DocumentFormat::Yaml => dump(&snapshot, now)?,
        DocumentFormat::Json => serde_json::to_string_pretty(&list(&snapshot, now)?).context("write JSON")? + "\n",
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the list below a comment that says when it was written.
fn dump(snapshot: &ClusterSnapshot, now: Timestamp) -> anyhow::Result<String> {
    let list = serde_yaml::to_string(&list(snapshot, now)?).context("write YAML")?;
    Ok(format!(
        "# Written by `kubectl gpunode dump` at {now}: {}, {}, {}.\n# Holds the fields that `kubectl gpunode plan --nodes` \
         reads.\n{list}",
        output::plural(snapshot.nodes.len(), "node", "nodes"),
        output::plural(snapshot.gpu_nodes.len(), "GpuNode", "GpuNodes"),
        output::plural(snapshot.policies.len(), "policy", "policies")
    ))
}

fn list(snapshot: &ClusterSnapshot, now: Timestamp) -> anyhow::Result<DumpedList> {
    let mut items = Vec::new();
    for node in &snapshot.nodes {
        items.push(serde_json::to_value(trimmed(node)).context("write a Node")?);
    }
    for gpu_node in &snapshot.gpu_nodes {
        let metadata = identity(&gpu_node.metadata);
        items.push(
            serde_json::to_value(GpuNode {
                metadata,
                ..gpu_node.clone()
            })
            .context("write a GpuNode")?,
        );
    }
    for policy in &snapshot.policies {
        let metadata = identity(&policy.metadata);
        let policy = GpuNodePolicy {
            metadata,
            spec: policy.spec.clone(),
            status: None,
        };
        items.push(serde_json::to_value(policy).context("write a GpuNodePolicy")?);
    }
    for pod in snapshot.pods.trimmed() {
        items.push(serde_json::to_value(pod).context("write a Pod")?);
    }
    if let Some(operator) = &snapshot.operator {
        let operator = operator::trimmed(operator, snapshot.gpu_labels());
        items.push(serde_json::to_value(operator).context("write the operator's Deployment")?);
    }
    Ok(DumpedList {
        api_version: "v1",
        kind: "List",
        metadata: DumpMetadata {
            creation_timestamp: now,
        },
        items,
    })
}

/// Returns a node with only the fields that a plan reads.
fn trimmed(node: &Node) -> Node {
    let meta = &node.metadata;
    let record = meta
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get_key_value(OWNED_ANNOTATION));
    let fields = meta.managed_fields.iter().flatten().filter_map(managed);
    let fields: Vec<_> = fields.collect();
    let status = node.status.as_ref().map(|status| {
        let conditions = status
            .conditions
            .iter()
            .flatten()
            .filter(|condition| condition.type_ == "Ready");
        let allocatable = status
            .allocatable
            .iter()
            .flatten()
            .filter(|(name, _)| name.contains('/'));
        NodeStatus {
            conditions: Some(conditions.cloned().collect()),
            allocatable: Some(allocatable.map(|(name, count)| (name.clone(), count.clone())).collect()),
            ..NodeStatus::default()
        }
    });
    Node {
        metadata: ObjectMeta {
            labels: meta.labels.clone(),
            annotations: record.map(|(key, value)| [(key.clone(), value.clone())].into()),
            managed_fields: (!fields.is_empty()).then_some(fields),
            ..identity(meta)
        },
        spec: node.spec.as_ref().map(|spec| NodeSpec {
            taints: spec.taints.clone(),
            ..NodeSpec::default()
        }),
        status,
    }
}

/// Returns the fields of an entry that tell who wrote labels and taints, if it has any.
fn managed(entry: &ManagedFieldsEntry) -> Option<ManagedFieldsEntry> {
    let fields = &entry.fields_v1.as_ref()?.0;
    let mut kept = json!({});
    for (part, list) in [("f:metadata", "f:labels"), ("f:spec", "f:taints")] {
        if let Some(list_fields) = fields.get(part).and_then(|part| part.get(list)) {
            kept[part][list] = list_fields.clone();
        }
    }
    let is_empty = kept.as_object().is_none_or(serde_json::Map::is_empty);
    (!is_empty).then(|| ManagedFieldsEntry {
        manager: entry.manager.clone(),
        fields_v1: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1(kept)),
        ..ManagedFieldsEntry::default()
    })
}

fn identity(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp.clone(),
        deletion_timestamp: meta.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_plan::NodeFacts;

    fn node() -> Node {
        let time = "2026-01-02T03:04:05Z";
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": time, "lastHeartbeatTime": time});
        serde_json::from_value(json!({
            "metadata": {
                "name": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": time,
                "labels": {"pool": "yes", "kubernetes.io/os": "linux"},
                "annotations": {"gpunode.dev/owned": r#"{"version":1,"labels":{"pool":"yes"}}"#, "secret": "hidden"},
                "managedFields": [
                    {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:pool": {}}, "f:annotations": {}}}},
                    {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
                ],
            },
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [ready, {"type": "DiskPressure", "status": "False"}],
                "allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}, "images": [{"names": ["x"]}],
            },
        }))
        .expect("a node")
    }

    #[test]
    fn a_dump_says_everything_that_a_plan_reads_and_no_more() {
        assert_eq!(NodeFacts::of(&trimmed(&node())), NodeFacts::of(&node()));
        let operator = operator::tests::operator(&json!({"args": ["--gpu-labels=false", "--more=x"]}));
        let snapshot = ClusterSnapshot {
            nodes: vec![node()],
            operator: Some(operator),
            ..ClusterSnapshot::default()
        };
        insta::assert_snapshot!(dump(&snapshot, Timestamp::UNIX_EPOCH).expect("YAML"), @r#"
        # Written by `kubectl gpunode dump` at 1970-01-01T00:00:00Z: 1 node, 0 GpuNodes, 0 policies.
        # Holds the fields that `kubectl gpunode plan --nodes` reads.
        apiVersion: v1
        kind: List
        metadata:
          creationTimestamp: 1970-01-01T00:00:00Z
        items:
        - apiVersion: v1
          kind: Node
          metadata:
            annotations:
              gpunode.dev/owned: '{"version":1,"labels":{"pool":"yes"}}'
            creationTimestamp: 2026-01-02T03:04:05Z
            labels:
              kubernetes.io/os: linux
              pool: yes
            managedFields:
            - fieldsV1:
                f:metadata:
                  f:labels:
                    f:pool: {}
              manager: kubectl-label
            name: n
            resourceVersion: '7'
            uid: u
          spec:
            taints:
            - effect: NoSchedule
              key: t
          status:
            allocatable:
              nvidia.com/gpu: '8'
            conditions:
            - lastHeartbeatTime: 2026-01-02T03:04:05Z
              lastTransitionTime: 2026-01-02T03:04:05Z
              status: 'True'
              type: Ready
        - apiVersion: apps/v1
          kind: Deployment
          metadata:
            labels:
              app.kubernetes.io/name: gpunode-operator
            name: gpunode-operator
            namespace: gpunode-system
          spec:
            selector: {}
            template:
              spec:
                containers:
                - args:
                  - --gpu-labels=false
                  - --agent-image=y
                  - --agent-images=
                  - --companion-roots=
                  name: operator
        "#);
    }
}
