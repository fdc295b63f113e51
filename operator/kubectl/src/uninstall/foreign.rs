//! Objects in gpunode's namespace that are not gpunode's, because of which the namespace is kept.

use super::{
    installed::InstalledObject,
    removal::Removal,
    requests::{listed, request},
};
use anyhow::anyhow;
use gpunode_plan::MANAGED_BY_LABEL;
use kube::{
    Api, Discovery, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta},
    discovery::{Scope, verbs},
};
use std::time::Instant;

/// API groups whose objects are not stored: events and metrics.
const PASSING: [&str; 4] = [
    "events.k8s.io",
    "metrics.k8s.io",
    "custom.metrics.k8s.io",
    "external.metrics.k8s.io",
];
/// Objects that Kubernetes creates in every namespace.
const EVERYWHERE: [(&str, &str); 2] = [("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")];
/// Kinds that create objects in their own namespace. The owners count instead of what they create.
const OWNERS: [&str; 8] = [
    "ReplicaSet",
    "Deployment",
    "DaemonSet",
    "StatefulSet",
    "Job",
    "CronJob",
    "Service",
    "ReplicationController",
];
/// Values of the name label on gpunode's pods and DaemonSets.
const OURS: [&str; 2] = ["gpunode-agent", "gpunode-operator"];
/// Most objects checked of a kind: one foreign object is enough.
const PAGE: u32 = 500;

/// Returns kind and name of every foreign object in the namespace, over all kinds of the cluster. `installed` are gpunode's.
///
/// # Errors
/// When a kind cannot be listed, because then nobody knows what a deletion would take along.
pub async fn foreign_objects(removal: &Removal, installed: &[InstalledObject]) -> anyhow::Result<Vec<String>> {
    let discovery = Discovery::new(removal.requests.client.clone())
        .exclude(&PASSING)
        .run_aggregated();
    let groups = request("list the kinds of the cluster", discovery).await?;
    let groups = groups.ok_or_else(|| anyhow!("list the kinds of the cluster: the API server returns none"))?;
    let kinds = groups
        .groups_alphabetical()
        .into_iter()
        .flat_map(kube::discovery::ApiGroup::resources_by_stability);
    let kinds = kinds.filter(|(_, can)| can.scope == Scope::Namespaced && can.supports_operation(verbs::LIST));
    let mut foreign = Vec::new();
    for (kind, _) in kinds.filter(|(kind, _)| kind.kind != "Event") {
        anyhow::ensure!(
            Instant::now() < removal.end,
            "out of time before every kind was checked; run this again"
        );
        let api: Api<DynamicObject> =
            Api::namespaced_with(removal.requests.client.clone(), &removal.requests.namespace, &kind);
        let list = listed(&kind, api.list_metadata(&ListParams::default().limit(PAGE))).await?;
        let found = list.iter().filter(|object| is_foreign(&kind, object, installed));
        foreign.extend(found.map(|object| format!("{} {}", kind.kind, object.name_any())));
    }
    foreign.sort();
    Ok(foreign)
}

fn is_foreign(kind: &ApiResource, object: &PartialObjectMeta<DynamicObject>, installed: &[InstalledObject]) -> bool {
    let name = object.name_any();
    let is_everywhere = EVERYWHERE.contains(&(kind.kind.as_str(), name.as_str()));
    let is_installed = installed
        .iter()
        .any(|it| (&it.kind.group, &it.kind.kind, &it.name) == (&kind.group, &kind.kind, &name));
    let is_lease = kind.kind == "Lease" && name == "gpunode-operator";
    let goes = object.metadata.deletion_timestamp.is_some();
    let is_made = object
        .owner_references()
        .iter()
        .any(|owner| OWNERS.contains(&owner.kind.as_str()));
    let is_managed = object
        .labels()
        .get(MANAGED_BY_LABEL)
        .is_some_and(|by| by == "gpunode-operator");
    // Of a component beside `manifests/default`, such as a quota or network policies.
    let is_component = name.starts_with("gpunode")
        && object
            .labels()
            .get("app.kubernetes.io/part-of")
            .is_some_and(|of| of == "gpunode");
    let is_pod = kind.kind == "Pod"
        && object
            .labels()
            .get("app.kubernetes.io/name")
            .is_some_and(|name| OURS.contains(&name.as_str()));
    !(is_everywhere || is_installed || is_component || is_lease || goes || is_made || is_managed || is_pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uninstall::installed::objects;
    use kube::core::GroupVersionKind;
    use serde_json::{Value, json};

    fn judge(group: &str, kind: &str, metadata: &Value) -> bool {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let object = serde_json::from_value(json!({"metadata": metadata})).expect("metadata");
        is_foreign(&kind, &object, &objects("gpunode-system").expect("readable manifests"))
    }

    #[test]
    fn what_somebody_put_there_is_told_from_what_gpunode_and_kubernetes_did() {
        let owned_by = |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u"}]);
        for (group, kind, metadata, expected) in [
            ("", "Secret", json!({"name": "pull"}), true),
            ("", "ConfigMap", json!({"name": "settings"}), true),
            ("", "ServiceAccount", json!({"name": "ci"}), true),
            ("apps", "Deployment", json!({"name": "grafana"}), true),
            ("", "Pod", json!({"name": "debug"}), true),
            ("networking.k8s.io", "NetworkPolicy", json!({"name": "deny"}), true),
            (
                "example.com",
                "Widget",
                json!({"name": "w", "ownerReferences": owned_by("WidgetSet")}),
                true,
            ),
            ("example.com", "Deployment", json!({"name": "gpunode-operator"}), true),
            ("", "ConfigMap", json!({"name": "kube-root-ca.crt"}), false),
            ("", "ServiceAccount", json!({"name": "default"}), false),
            ("", "ServiceAccount", json!({"name": "gpunode-agent"}), false),
            (
                "policy",
                "PodDisruptionBudget",
                json!({"name": "gpunode-operator"}),
                false,
            ),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"name": "gpunode-operator"}),
                false,
            ),
            (
                "apps",
                "DaemonSet",
                json!({"name": "p", "labels": {"app.kubernetes.io/managed-by": "gpunode-operator"}}),
                false,
            ),
            (
                "apps",
                "ReplicaSet",
                json!({"name": "r", "ownerReferences": owned_by("Deployment")}),
                false,
            ),
            (
                "",
                "Pod",
                json!({"name": "a", "labels": {"app.kubernetes.io/name": "gpunode-agent"}}),
                false,
            ),
            (
                "",
                "ResourceQuota",
                json!({"name": "gpunode-critical-pods", "labels": {"app.kubernetes.io/part-of": "gpunode"}}),
                false,
            ),
            (
                "",
                "ResourceQuota",
                json!({"name": "team-a", "labels": {"app.kubernetes.io/part-of": "gpunode"}}),
                true,
            ),
            (
                "",
                "Secret",
                json!({"name": "s", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
                false,
            ),
        ] {
            assert_eq!(judge(group, kind, &metadata), expected, "{kind} {metadata}");
        }
    }
}
