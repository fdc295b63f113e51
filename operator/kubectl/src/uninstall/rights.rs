//! Whether the caller may do all of it: a removal that stops half-way helps nobody.

use super::{Removal, requests::request};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, api::PostParams};

/// Verb, group, resource with subresource, and whether it is in gpunode's namespace.
const RIGHTS: [(&str, &str, &str, bool); 14] = [
    ("list", "", "nodes", false),
    ("patch", "", "nodes", false),
    ("list", "", "pods", true),
    ("delete", "", "pods", true),
    ("delete", "apps", "deployments", true),
    ("list", "apps", "daemonsets", true),
    ("delete", "apps", "daemonsets", true),
    ("delete", "gpunode.dev", "gpunodepolicies", false),
    ("delete", "apiextensions.k8s.io", "customresourcedefinitions", false),
    ("delete", "rbac.authorization.k8s.io", "clusterroles", false),
    ("delete", "rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("delete", "admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("delete", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", false),
    ("delete", "", "namespaces", false),
];

/// What only the removal of dead resources needs.
const STATUS: (&str, &str, &str, bool) = ("patch", "", "nodes/status", false);

impl Removal {
    /// What the caller may not do of what is needed, as verb and resource.
    ///
    /// # Errors
    /// When the API server does not say.
    pub async fn missing_rights(&self, wait_resources: bool) -> anyhow::Result<Vec<String>> {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let mut missing = Vec::new();
        for (verb, group, resource, namespaced) in RIGHTS.into_iter().chain(wait_resources.then_some(STATUS)) {
            let (name, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let attributes = ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(name.to_owned()),
                subresource: Some(subresource.to_owned()).filter(|name| !name.is_empty()),
                namespace: namespaced.then(|| self.namespace.clone()),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
            let review = SelfSubjectAccessReview { spec, ..Default::default() };
            let answer = request("ask what you may do", reviews.create(&PostParams::default(), &review)).await?;
            if !answer.and_then(|answer| answer.status).is_some_and(|status| status.allowed) {
                let group = if group.is_empty() { String::new() } else { format!(".{group}") };
                missing.push(format!("{verb} {resource}{group}"));
            }
        }
        Ok(missing)
    }
}
