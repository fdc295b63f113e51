//! The permissions that a removal needs. They are checked first, because a removal that stops half-way helps nobody.

use super::{installed, removal::Removal, requests::request, scope::RemovalScope};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, api::PostParams};
use std::collections::BTreeSet;

/// A verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequiredPermission {
    verb: &'static str,
    group: String,
    resource: String,
    /// In gpunode's namespace.
    namespaced: bool,
}

/// Permissions to take everything back from the nodes.
const NODES: [(&str, &str, &str, bool); 7] = [
    ("list", "", "nodes", false),
    ("patch", "", "nodes", false),
    ("list", "", "pods", true),
    ("delete", "", "pods", true),
    ("list", "apps", "daemonsets", true),
    ("delete", "apps", "daemonsets", true),
    ("delete", "apps", "deployments", true),
];

/// Permissions for the rest, besides the deletion of installed objects.
const OTHERS: [(&str, &str, &str, bool); 2] = [
    ("delete", "gpunode.dev", "gpunodepolicies", false),
    ("delete", "", "namespaces", false),
];

/// Permission that only the removal of stale resources needs.
const STATUS: (&str, &str, &str, bool) = ("patch", "", "nodes/status", false);

/// Returns the permissions that the caller lacks, as verb and resource.
///
/// # Errors
/// When the API server does not say.
pub async fn missing(removal: &Removal, scope: RemovalScope, wait_resources: bool) -> anyhow::Result<Vec<String>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(removal.requests.client.clone());
    let mut missing = Vec::new();
    for RequiredPermission {
        verb,
        group,
        resource,
        namespaced,
    } in required(scope, wait_resources)?
    {
        let (name, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group.clone()),
            resource: Some(name.to_owned()),
            subresource: Some(subresource.to_owned()).filter(|name| !name.is_empty()),
            namespace: namespaced.then(|| removal.requests.namespace.clone()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..Default::default()
        };
        let review = SelfSubjectAccessReview {
            spec,
            ..Default::default()
        };
        let answer = request(
            "check your permissions",
            reviews.create(&PostParams::default(), &review),
        )
        .await?;
        if !answer
            .and_then(|answer| answer.status)
            .is_some_and(|status| status.allowed)
        {
            let group = if group.is_empty() {
                String::new()
            } else {
                format!(".{group}")
            };
            missing.push(format!("{verb} {resource}{group}"));
        }
    }
    Ok(missing)
}

/// Returns every permission once, sorted for reading.
fn required(scope: RemovalScope, wait_resources: bool) -> anyhow::Result<BTreeSet<RequiredPermission>> {
    let permission = |(verb, group, resource, namespaced): (_, &str, &str, _)| RequiredPermission {
        verb,
        group: group.to_owned(),
        resource: resource.to_owned(),
        namespaced,
    };
    let of_nodes = NODES
        .into_iter()
        .chain(wait_resources.then_some(STATUS))
        .map(permission);
    if scope == RemovalScope::Nodes {
        return Ok(of_nodes.collect());
    }
    let deleted = installed::objects("")?
        .into_iter()
        .chain(installed::definitions())
        .map(|object| RequiredPermission {
            verb: "delete",
            group: object.kind.group,
            resource: object.kind.plural,
            namespaced: object.namespace.is_some(),
        });
    Ok(of_nodes
        .chain(OTHERS.into_iter().map(permission))
        .chain(deleted)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(scope: RemovalScope, wait_resources: bool) -> Vec<String> {
        let required = required(scope, wait_resources).expect("readable manifests");
        required
            .iter()
            .map(|it| format!("{} {}.{}", it.verb, it.resource, it.group))
            .collect()
    }

    #[test]
    fn nothing_but_the_nodes_needs_few_permissions() {
        assert_eq!(
            shown(RemovalScope::Nodes, false),
            [
                "delete pods.",
                "delete daemonsets.apps",
                "delete deployments.apps",
                "list nodes.",
                "list pods.",
                "list daemonsets.apps",
                "patch nodes."
            ]
        );
        assert!(shown(RemovalScope::Nodes, true).contains(&"patch nodes/status.".to_owned()));
    }

    #[test]
    fn every_kind_that_goes_is_asked_for() {
        let shown = shown(RemovalScope::Everything, true);
        for kind in [
            "roles.rbac.authorization.k8s.io",
            "poddisruptionbudgets.policy",
            "serviceaccounts.",
            "deployments.apps",
        ] {
            assert!(shown.contains(&format!("delete {kind}")), "{shown:?}");
        }
        assert!(shown.contains(&"patch nodes/status.".to_owned()), "{shown:?}");
    }
}
