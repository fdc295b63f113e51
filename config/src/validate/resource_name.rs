//! Names of extended resources.

use super::name_syntax::{is_dns_subdomain, is_name_part};

/// Checks a name by the kubelet's rule for extended resources; the error completes a sentence that begins with the
/// name.
///
/// Rule: `IsExtendedResourceName` in Kubernetes `pkg/apis/core/v1/helper/helpers.go`: the name has a domain, is not
/// under `kubernetes.io`, does not start with `requests.`, and `requests.NAME` is a qualified name.
pub fn is_extended_resource_name(name: &str) -> Result<(), &'static str> {
    let Some((domain, local)) = name.split_once('/') else {
        return Err("has no domain; write DOMAIN/NAME, such as nvidia.com/gpu");
    };
    if name.contains("kubernetes.io/") {
        return Err("is under kubernetes.io, which is reserved for Kubernetes; use your own domain");
    }
    if name.starts_with("requests.") {
        return Err("starts with `requests.`, which resource quotas use; use another domain");
    }
    // The kubelet checks "requests." + name, so nine of the 253 characters of a DNS subdomain are taken.
    if domain.len() > 253 - "requests.".len() {
        return Err("has a domain of more than 244 characters");
    }
    if !is_dns_subdomain(domain) {
        return Err("has a domain that is not a DNS name of lowercase letters, digits, `-` and `.`");
    }
    if !is_name_part(local) {
        return Err(
            "has a name part that is not 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_follow_the_kubelets_rule() {
        for good in ["nvidia.com/gpu", "aliyun.com/gpu-mem", "rdma/hca", "a.b/C_d.e"] {
            assert_eq!(is_extended_resource_name(good), Ok(()), "{good}");
        }
        let long = format!("nvidia.com/{}", "g".repeat(64));
        for bad in [
            "gpu",
            "kubernetes.io/gpu",
            "node.kubernetes.io/gpu",
            "requests.nvidia.com/gpu",
            "NVIDIA.com/gpu",
            "nvidia.com/",
            "nvidia.com/-a",
            "nvidia.com/a/b",
            "nvidia..com/gpu",
            "/gpu",
            &long,
        ] {
            assert!(is_extended_resource_name(bad).is_err(), "{bad} was accepted");
        }
    }
}
