//! What an agent configuration offers, in words, so that two of them can be compared line by line. Pure.

use gpunode_config::{AgentConfig, DeviceSelector, ResourceConfig};
use std::fmt::Write as _;

/// Each resource and what it offers.
pub fn resources(config: &AgentConfig) -> Vec<(String, String)> {
    let resources = config.effective_resources();
    resources.iter().map(|resource| (resource.name.clone(), offered(resource))).collect()
}

/// The other settings that differ from their defaults.
pub fn switched_on(config: &AgentConfig) -> Vec<&'static str> {
    let settings = [("passDeviceSpecs", config.pass_device_specs()), ("failOnInitError", config.fail_on_init_error())];
    settings.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

fn offered(resource: &ResourceConfig) -> String {
    let mut text = match resource.replicas() {
        1 => "whole GPUs".to_owned(),
        replicas => format!("{replicas} replicas per GPU (TimeSlicing)"),
    };
    if resource.fail_requests_greater_than_one() {
        text.push_str(", one per container");
    }
    if let Some(devices) = &resource.devices {
        let _ = write!(text, ", only of {}", selected(devices));
    }
    text
}

fn selected(devices: &DeviceSelector) -> String {
    let indices = devices.indices.as_ref().map(|indices| indices.iter().map(ToString::to_string).collect::<Vec<_>>());
    let conditions = [
        ("indices", indices.as_deref()),
        ("uuids", devices.uuids.as_deref()),
        ("products", devices.products.as_deref()),
    ];
    let conditions: Vec<_> =
        conditions.into_iter().filter_map(|(name, values)| Some(format!("{name} {}", values?.join(", ")))).collect();
    conditions.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_told_in_words() {
        let config = gpunode_config::load(
            "passDeviceSpecs: true\nresources:\n- name: a.b/c\n  devices: {indices: [0, 1], products: [T*]}\n- name: a.b/d\n  \
             sharing: {strategy: TimeSlicing, replicas: 4, failRequestsGreaterThanOne: true}\n",
        )
        .expect("a configuration");
        let expected = [
            ("a.b/c", "whole GPUs, only of indices 0, 1 and products T*"),
            ("a.b/d", "4 replicas per GPU (TimeSlicing), one per container"),
        ];
        assert_eq!(resources(&config), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(switched_on(&config), ["passDeviceSpecs"]);
        assert_eq!(resources(&AgentConfig::default()), [("nvidia.com/gpu".to_owned(), "whole GPUs".to_owned())]);
    }
}
