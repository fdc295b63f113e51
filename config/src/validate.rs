//! What a schema cannot say: names by Kubernetes' rules and combinations that cannot work.

use crate::agent_config::{AgentConfig, DeviceSelector, MAX_REPLICAS, ResourceConfig, Sharing, SharingStrategy};
use std::fmt;

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, such as `resources[0].sharing.replicas`; empty for the document itself.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// A problem of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

impl AgentConfig {
    /// Everything that is wrong with this configuration; nothing where it can be put in force.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.resources.len() > 32 {
            problems.push(Problem::new("resources", format!("{} entries are more than 32", self.resources.len())));
        }
        for (index, resource) in self.resources.iter().enumerate() {
            let path = format!("resources[{index}]");
            if self.resources.iter().take(index).any(|earlier| earlier.name == resource.name) {
                problems.push(Problem::new(
                    format!("{path}.name"),
                    format!("{} is named twice; each resource has one entry", resource.name),
                ));
            }
            validate_resource(&path, resource, &mut problems);
        }
        problems
    }
}

fn validate_resource(path: &str, resource: &ResourceConfig, problems: &mut Vec<Problem>) {
    if let Err(reason) = is_extended_resource_name(&resource.name) {
        problems.push(Problem::new(format!("{path}.name"), format!("`{}` {reason}", resource.name)));
    }
    if let Some(devices) = &resource.devices {
        validate_devices(&format!("{path}.devices"), devices, problems);
    }
    if let Some(sharing) = &resource.sharing {
        validate_sharing(&format!("{path}.sharing"), sharing, problems);
    }
}

fn validate_devices(path: &str, devices: &DeviceSelector, problems: &mut Vec<Problem>) {
    if *devices == DeviceSelector::default() {
        problems
            .push(Problem::new(path, "must name indices, uuids or products; leave devices out to select every GPU"));
    }
    for (index, gpu) in devices.indices.iter().flatten().enumerate() {
        if !(0..64).contains(gpu) {
            problems.push(Problem::new(format!("{path}.indices[{index}]"), format!("{gpu} is not between 0 and 63")));
        }
    }
    for (index, uuid) in devices.uuids.iter().flatten().enumerate() {
        let digits = uuid.strip_prefix("GPU-").unwrap_or_default();
        if digits.is_empty() || uuid.len() > 64 || !digits.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
            problems.push(Problem::new(
                format!("{path}.uuids[{index}]"),
                format!("`{uuid}` is not a GPU UUID; `nvidia-smi -L` lists them as GPU-..."),
            ));
        }
    }
    for (index, glob) in devices.products.iter().flatten().enumerate() {
        if glob.is_empty() || glob.len() > 63 || !glob.chars().all(|c| c.is_ascii_alphanumeric() || "-_.*?".contains(c))
        {
            problems.push(Problem::new(
                format!("{path}.products[{index}]"),
                format!(
                    "`{glob}` is not a glob of letters, digits, `-`, `_`, `.`, `*` and `?` of at most 63 characters"
                ),
            ));
        }
    }
    for (name, length, most) in [
        ("indices", devices.indices.as_ref().map(Vec::len), 64),
        ("uuids", devices.uuids.as_ref().map(Vec::len), 64),
        ("products", devices.products.as_ref().map(Vec::len), 16),
    ] {
        if let Some(length) = length.filter(|length| *length == 0 || *length > most) {
            problems
                .push(Problem::new(format!("{path}.{name}"), format!("{length} entries are not between 1 and {most}")));
        }
    }
}

fn validate_sharing(path: &str, sharing: &Sharing, problems: &mut Vec<Problem>) {
    let mut refuse = |field: &str, message: String| problems.push(Problem::new(format!("{path}.{field}"), message));
    match (sharing.strategy, sharing.replicas) {
        (SharingStrategy::TimeSlicing, None) => {
            refuse("replicas", "is required when sharing.strategy is TimeSlicing".to_owned());
        }
        (SharingStrategy::TimeSlicing, Some(replicas)) if !(2..=MAX_REPLICAS).contains(&replicas) => {
            refuse("replicas", format!("{replicas} is not between 2 and {MAX_REPLICAS}"));
        }
        (SharingStrategy::None, Some(_)) => {
            refuse(
                "replicas",
                "has a meaning only when sharing.strategy is TimeSlicing; remove it or set the strategy".to_owned(),
            );
        }
        _ => {}
    }
    if sharing.strategy == SharingStrategy::None && sharing.fail_requests_greater_than_one.is_some() {
        refuse(
            "failRequestsGreaterThanOne",
            "has a meaning only when sharing.strategy is TimeSlicing; remove it or set the strategy".to_owned(),
        );
    }
}

/// Whether the kubelet takes a name as an extended resource, and if not, why.
///
/// Rule: `IsExtendedResourceName` in Kubernetes `pkg/apis/core/v1/helper/helpers.go`: with a domain, not under
/// `kubernetes.io`, not starting with `requests.`, and `requests.NAME` a qualified name.
pub fn is_extended_resource_name(name: &str) -> Result<(), &'static str> {
    let Some((domain, local)) = name.split_once('/') else {
        return Err("has no domain; write DOMAIN/NAME, such as nvidia.com/gpu");
    };
    if name.contains("kubernetes.io/") {
        return Err("is under kubernetes.io, which Kubernetes keeps for itself; use a domain of your own");
    }
    if name.starts_with("requests.") {
        return Err("starts with `requests.`, which quotas use; use another domain");
    }
    // The kubelet checks "requests." + name, so nine of the 253 characters of a DNS subdomain are taken.
    if domain.len() > 253 - "requests.".len() {
        return Err("has a domain of more than 244 characters");
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !domain.split('.').all(is_label) {
        return Err("has a domain that is not a DNS name of lower case letters, digits, `-` and `.`");
    }
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = local.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if local.len() > 63 || !inner || !edge(local.chars().next()) || !edge(local.chars().last()) {
        return Err(
            "has a name part that is not 1 to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn problems(text: &str) -> Vec<String> {
        load(text).map_or_else(|error| error.problems().iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

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

    #[test]
    fn impossible_combinations_name_the_field() {
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing}\n"),
            ["resources[0].sharing.replicas: is required when sharing.strategy is TimeSlicing"]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: None, replicas: 4}\n"),
            [
                "resources[0].sharing.replicas: has a meaning only when sharing.strategy is TimeSlicing; remove it or set the strategy"
            ]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  devices: {}\n- name: nvidia.com/gpu\n"),
            [
                "resources[0].devices: must name indices, uuids or products; leave devices out to select every GPU",
                "resources[1].name: nvidia.com/gpu is named twice; each resource has one entry",
            ]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing, replicas: 1}\n"),
            ["resources[0].sharing.replicas: 1 is not between 2 and 8192"]
        );
    }
}
