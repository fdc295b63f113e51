//! Checks that a schema cannot express: Kubernetes' rules for names, and combinations that cannot work.
//!
//! | module | what it does |
//! |---|---|
//! | `problem` | a field that is wrong, and what to do about it |
//! | `list_length` | bounds of the number of entries in a list |
//! | `name_syntax` | the syntax of names in Kubernetes |
//! | `resource_name` | the kubelet's rule for names of extended resources |
//! | `device_list` | ways in which containers get their devices |
//! | `devices` | bounds and formats of a device selector |
//! | `sharing` | fields of sharing by strategy, and their bounds |
//! | `mig` | layouts of MIG instances |
//! | `health` | lists of faults and XIDs |
//! | `usage` | durations of the figures of what containers use |
//! | `companions` | names, paths and variables of companions |

mod companions;
mod device_list;
mod devices;
pub(crate) mod health;
mod list_length;
mod mig;
mod name_syntax;
mod problem;
mod resource_name;
mod sharing;
mod usage;

#[cfg(test)]
pub(crate) use mig::validate as validate_mig;
pub(crate) use mig::{is_profile, unknown_profile};
pub use name_syntax::{is_dns_subdomain, is_name_part};
pub use problem::FieldProblem;

use crate::{AgentConfig, DeviceKind, MigStrategy, ResourceConfig, SharingStrategy};
use list_length::validate_length;
use resource_name::is_extended_resource_name;

impl AgentConfig {
    /// Returns every problem of this configuration; empty if it is valid.
    pub fn validate(&self) -> Vec<FieldProblem> {
        let mut problems = Vec::new();
        device_list::validate(self, &mut problems);
        companions::validate(self, &mut problems);
        if let Some(health) = &self.health {
            health::validate("health", health, &mut problems);
        }
        if let Some(usage) = &self.usage {
            usage::validate(usage, &mut problems);
        }
        if let Some(mig) = &self.mig {
            mig::validate(mig, &mut problems);
        }
        validate_length("resources", self.resources.len(), 0..=32, &mut problems);
        for (index, resource) in self.resources.iter().enumerate() {
            let path = format!("resources[{index}]");
            let (name, advertised) = (&resource.name, resource.advertised_name());
            let others = || {
                self.resources
                    .iter()
                    .enumerate()
                    .filter(|(at, _)| *at != index)
                    .map(|(_, other)| other)
            };
            if self.resources.iter().take(index).any(|earlier| earlier.name == *name) {
                problems.push(FieldProblem::new(
                    format!("{path}.name"),
                    format!("duplicate name {name}; each resource has one entry"),
                ));
            } else if advertised != *name && others().any(|other| other.name == advertised) {
                problems.push(FieldProblem::new(
                    format!("{path}.sharing.renameByDefault"),
                    format!("renames {name} to {advertised}, the name of another entry; resource names must be unique"),
                ));
            }
            validate_resource(&path, resource, &mut problems);
            let devices = resource.devices.as_ref();
            let wants_mig = devices
                .is_some_and(|devices| devices.kind == Some(DeviceKind::MigDevice) || devices.mig_profiles.is_some());
            if wants_mig && self.mig_strategy() == MigStrategy::None {
                problems.push(FieldProblem::new(
                    format!("{path}.devices"),
                    "selects MIG devices, which requires mig.strategy Single or Mixed",
                ));
            }
        }
        problems
    }
}

fn validate_resource(path: &str, resource: &ResourceConfig, problems: &mut Vec<FieldProblem>) {
    let advertised = resource.advertised_name();
    let refused = [&resource.name, &advertised].into_iter().find_map(|name| {
        is_extended_resource_name(name)
            .err()
            .map(|reason| format!("`{name}` {reason}"))
    });
    if let Some(message) = refused {
        problems.push(FieldProblem::new(format!("{path}.name"), message));
    }
    if let Some(devices) = &resource.devices {
        devices::validate(&format!("{path}.devices"), devices, problems);
    }
    if resource.allocation.is_some() && resource.strategy() == SharingStrategy::Memory {
        problems.push(FieldProblem::new(
            format!("{path}.allocation"),
            "does not apply when sharing.strategy is Memory; remove it and set sharing.placement instead",
        ));
    }
    if let Some(sharing) = &resource.sharing {
        sharing::validate(&format!("{path}.sharing"), sharing, problems);
    }
}

#[cfg(test)]
mod tests {
    use crate::load;

    pub fn problems(text: &str) -> Vec<String> {
        load(text).map_or_else(
            |error| error.problems().iter().map(ToString::to_string).collect(),
            |_| Vec::new(),
        )
    }

    #[test]
    fn impossible_combinations_name_the_field() {
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing}\n"),
            ["resources[0].sharing.replicas: is required when sharing.strategy is TimeSlicing or Mps"]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: None, replicas: 4}\n"),
            [
                "resources[0].sharing.replicas: applies only when sharing.strategy is TimeSlicing or Mps; remove it or change the strategy"
            ]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  devices: {}\n- name: nvidia.com/gpu\n"),
            [
                "resources[0].devices: must set a condition, such as indices, uuids or products; to select every GPU, leave out devices, or set only sharing.replicas",
                "resources[1].name: duplicate name nvidia.com/gpu; each resource has one entry",
            ]
        );
        assert_eq!(
            problems("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing, replicas: 1}\n"),
            ["resources[0].sharing.replicas: 1 is not between 2 and 8192"]
        );
    }

    #[test]
    fn units_of_memory_are_placed_and_not_allocated() {
        let with = |sharing: &str| {
            problems(&format!(
                "resources: [{{name: a.b/c, allocation: Packed, sharing: {{strategy: {sharing}}}}}]\n"
            ))
        };
        assert_eq!(
            with("Memory"),
            [
                "resources[0].allocation: does not apply when sharing.strategy is Memory; remove it and set sharing.placement instead"
            ]
        );
        for sharing in ["None", "TimeSlicing, replicas: 2", "Mps, replicas: 2"] {
            assert!(with(sharing).is_empty(), "{sharing}");
        }
    }

    #[test]
    fn names_that_renaming_makes_equal_are_refused() {
        let clash = "resources:\n- name: a.b/c\n  sharing: {strategy: TimeSlicing, replicas: 2, renameByDefault: true}\n- name: a.b/c.shared\n  devices: {indices: [1]}\n";
        assert_eq!(
            problems(clash),
            [
                "resources[0].sharing.renameByDefault: renames a.b/c to a.b/c.shared, the name of another entry; resource names must be unique"
            ]
        );
        let long = format!(
            "resources: [{{name: a.b/{}, sharing: {{strategy: Mps, replicas: 2, renameByDefault: true}}}}]",
            "c".repeat(60)
        );
        assert!(
            problems(&long).concat().contains("has a name part"),
            "{:?}",
            problems(&long)
        );
    }

    #[test]
    fn mig_devices_need_a_strategy_that_offers_them() {
        let selects = |strategy: &str, devices: &str| {
            problems(&format!(
                "mig: {{strategy: {strategy}}}\nresources: [{{name: a.b/c, devices: {devices}}}]\n"
            ))
        };
        for devices in ["{kind: MigDevice}", "{migProfiles: [1g.10gb]}"] {
            assert_eq!(
                selects("None", devices),
                ["resources[0].devices: selects MIG devices, which requires mig.strategy Single or Mixed"]
            );
            assert!(selects("Mixed", devices).is_empty());
        }
        assert!(selects("None", "{kind: FullGpu}").is_empty());
        assert_eq!(
            selects("Mixed", "{kind: FullGpu, migProfiles: ['*+me']}"),
            ["resources[0].devices.migProfiles: selects MIG devices; remove it or set kind to MigDevice"]
        );
    }

    #[test]
    fn globs_have_the_characters_that_the_crd_allows() {
        let selects = |devices: &str| {
            problems(&format!(
                "mig: {{strategy: Mixed}}\nresources: [{{name: a.b/c, devices: {{{devices}}}}}]\n"
            ))
        };
        for good in [
            "products: ['Tesla-V100*', '?100_.']",
            "migProfiles: [1g.10gb+me, '?g.*']",
        ] {
            assert!(selects(good).is_empty(), "{good}: {:?}", selects(good));
        }
        assert_eq!(
            [selects("products: [A100+]"), selects("migProfiles: [1G.10gb]")].concat(),
            [
                "resources[0].devices.products[0]: `A100+` is not a valid glob; use at most 63 letters, digits, `-`, `_` and `.`, with the wildcards `*` and `?`",
                "resources[0].devices.migProfiles[0]: `1G.10gb` is not a valid glob; use at most 63 lowercase letters, digits, `-`, `_`, `.` and `+`, with the wildcards `*` and `?`",
            ]
        );
    }

    #[test]
    fn sharing_by_memory_and_by_mps_have_their_own_fields_and_bounds() {
        let shared = |sharing: &str| problems(&format!("resources: [{{name: a.b/c, sharing: {{{sharing}}}}}]"));
        for good in [
            "strategy: Memory",
            "strategy: Memory, unit: 512Mi, placement: Spread",
            "strategy: Mps, replicas: 48",
            "strategy: TimeSlicing, replicas: 4, replicasPerDevice: [{devices: {indices: [1]}, replicas: 8192}]",
        ] {
            assert!(shared(good).is_empty(), "{good}: {:?}", shared(good));
        }
        for (bad, field) in [
            ("strategy: Memory, replicas: 4", "replicas: applies only"),
            ("strategy: Memory, unit: 1G", "unit: `1G` is not an amount of memory"),
            (
                "strategy: Memory, unit: 63Mi",
                "unit: 63 MiB is less than 64 MiB; smaller units make more shares than the kubelet accepts",
            ),
            ("strategy: TimeSlicing, replicas: 2, unit: 1Gi", "unit: applies only"),
            (
                "strategy: Mps, replicas: 2, placement: Spread",
                "placement: applies only",
            ),
            ("strategy: Mps", "replicas: is required"),
            ("strategy: Mps, replicas: 49", "replicas: 49 is not between 2 and 48"),
            (
                "strategy: Mps, replicas: 2, replicasPerDevice: [{devices: {indices: [1]}, replicas: 49}]",
                "replicasPerDevice[0].replicas: 49 is not between 2 and 48",
            ),
            (
                "strategy: Mps, replicas: 2, replicasPerDevice: [{devices: {}, replicas: 4}]",
                "replicasPerDevice[0].devices: must set a condition, such as indices, uuids or products; to select every GPU, leave out devices, or set only sharing.replicas",
            ),
            ("strategy: None, renameByDefault: true", "renameByDefault: applies only"),
        ] {
            let found = shared(bad);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(
                found[0].starts_with(&format!("resources[0].sharing.{field}")),
                "{bad}: {found:?}"
            );
        }
    }
}
