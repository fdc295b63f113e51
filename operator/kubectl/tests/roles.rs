//! The roles for people in `manifests/default`: who gets them, and what they allow.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::ResourceExt;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeSet;

const READ: [&str; 3] = ["get", "list", "watch"];
/// Begins the labels by which Kubernetes adds a role's rules to `view`, `edit` or `admin`.
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// Returns the objects of this kind.
fn of_kind<K: DeserializeOwned>(kind: &str) -> Vec<K> {
    serde_yaml::Deserializer::from_str(include_str!("../../../manifests/default/people-rbac.yaml"))
        .map(|document| Value::deserialize(document).expect("an object"))
        .filter(|object| object["kind"] == kind)
        .map(|object| serde_json::from_value(object).expect("a role"))
        .collect()
}

fn roles() -> Vec<ClusterRole> {
    of_kind("ClusterRole")
}

fn role(name: &str) -> ClusterRole {
    let found = roles().into_iter().find(|role| role.name_any() == name);
    found.expect(name)
}

fn rules(role: &ClusterRole) -> &[PolicyRule] {
    role.rules.as_deref().unwrap_or_default()
}

/// Returns what a role allows, as `verb resource.group`.
fn allowed(role: &ClusterRole) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for rule in rules(role) {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                allowed.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
    }
    allowed
}

#[test]
fn view_reads_the_kinds_of_gpunode_and_no_other_role_is_added_to_another() {
    for role in roles() {
        let added: Vec<_> = role.labels().keys().filter(|key| key.starts_with(AGGREGATE)).collect();
        if role.name_any() != "gpunode-aggregate-to-view" {
            assert!(added.is_empty() && role.aggregation_rule.is_none(), "{added:?}");
            continue;
        }
        assert_eq!(added, ["rbac.authorization.k8s.io/aggregate-to-view"]);
        for rule in rules(&role) {
            assert_eq!(rule.verbs, READ);
            assert_eq!(rule.api_groups.as_deref(), Some(&["gpunode.dev".to_owned()][..]));
        }
    }
}

#[test]
fn viewers_read_what_the_commands_read_and_write_nothing() {
    let role = role("gpunode-viewer");
    assert!(rules(&role).iter().all(|rule| rule.verbs == READ), "{:?}", rules(&role));
    let allowed = allowed(&role);
    for kind in [
        "gpunodepolicies.gpunode.dev",
        "gpunodes.gpunode.dev",
        "nodes.",
        "pods.",
        "daemonsets.apps",
        "deployments.apps",
        "runtimeclasses.node.k8s.io",
    ] {
        assert!(allowed.contains(&format!("list {kind}")), "{allowed:?}");
    }
}

#[test]
fn pods_answer_through_the_api_server_in_the_namespace_of_gpunode_alone() {
    let [role] = &of_kind::<Role>("Role")[..] else {
        panic!("there is one Role")
    };
    assert_eq!(role.name_any(), "gpunode-usage-viewer");
    assert_eq!(role.namespace().as_deref(), Some("gpunode-system"));
    let [allows] = role.rules.as_deref().unwrap_or_default() else {
        panic!("{:?}", role.rules)
    };
    assert_eq!(
        (&allows.resources, &allows.verbs),
        (&Some(vec!["pods/proxy".to_owned()]), &vec!["get".to_owned()])
    );
    for role in roles() {
        assert!(!allowed(&role).iter().any(|of| of.contains("proxy")), "{role:?}");
    }
}

#[test]
fn editors_write_policies_alone() {
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let expected = verbs.map(|verb| format!("{verb} gpunodepolicies.gpunode.dev"));
    assert_eq!(allowed(&role("gpunode-policy-editor")), BTreeSet::from(expected));
}
