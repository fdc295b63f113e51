//! Layouts of MIG instances.

use super::{
    devices::{is_gpu_uuid, validate_indices, validate_products},
    list_length::validate_length,
    problem::FieldProblem,
};
use crate::{
    MigConfig, MigGpuSelector, MigGroup, MigStrategy,
    device_selector::LAYOUT_WITHOUT_STRATEGY,
    mig_layout::{MAX_GROUPS, MAX_INSTANCES, MAX_NAME, MAX_PROFILES, ONE_LAYOUT},
};

/// Adds the problems of `mig`.
pub fn validate(mig: &MigConfig, problems: &mut Vec<FieldProblem>) {
    validate_length("mig.layout", mig.layout.len(), 0..=MAX_GROUPS, problems);
    if mig.strategy == MigStrategy::None && mig.layout.iter().any(|group| group.disabled.is_none()) {
        problems.push(FieldProblem::new("mig.layout", LAYOUT_WITHOUT_STRATEGY));
    }
    for (index, group) in mig.layout.iter().enumerate() {
        validate_group(&format!("mig.layout[{index}]"), group, problems);
    }
}

fn validate_group(path: &str, group: &MigGroup, problems: &mut Vec<FieldProblem>) {
    let MigGroup {
        devices,
        instances,
        preset,
        disabled,
    } = group;
    let layouts = [instances.is_some(), preset.is_some(), disabled.is_some()];
    if layouts.iter().filter(|is_set| **is_set).count() != 1 {
        problems.push(FieldProblem::new(path, ONE_LAYOUT));
    }
    if *disabled == Some(false) {
        problems.push(FieldProblem::new(
            format!("{path}.disabled"),
            "can only be true; leave it out to set instances or preset",
        ));
    }
    if instances
        .as_ref()
        .is_some_and(|instances| instances.len() > MAX_PROFILES)
    {
        problems.push(FieldProblem::new(
            format!("{path}.instances"),
            format!("must have at most {MAX_PROFILES} profiles"),
        ));
    }
    for (profile, count) in instances.iter().flatten() {
        if !is_profile(profile) {
            problems.push(FieldProblem::new(format!("{path}.instances"), unknown_profile(profile)));
        }
        if !(1..=MAX_INSTANCES).contains(count) {
            problems.push(FieldProblem::new(
                format!("{path}.instances.{profile}"),
                format!("{count} is not between 1 and {MAX_INSTANCES}; leave the profile out for none"),
            ));
        }
    }
    if let Some(preset) = preset.as_ref().filter(|preset| !is_preset(preset)) {
        problems.push(FieldProblem::new(
            format!("{path}.preset"),
            format!("`{preset}` is no preset; write all-balanced, all-enabled or all-PROFILE, such as all-1g.10gb"),
        ));
    }
    if let Some(devices) = devices {
        validate_selector(&format!("{path}.devices"), devices, problems);
    }
}

/// Says that a name is no profile, and what to write.
pub fn unknown_profile(profile: &str) -> String {
    let whole = profile
        .split_once("c.")
        .map(|(_, whole)| whole)
        .filter(|whole| is_profile(whole));
    match whole {
        Some(whole) => format!(
            "`{profile}` is a compute instance on part of a GPU instance, and a layout has only whole ones: write `{whole}`"
        ),
        None => format!(
            "`{profile}` is no profile of a GPU instance; write such as 1g.10gb or 1g.10gb+me; \
             `kubectl gpunode mig --board BOARD` lists those of a board"
        ),
    }
}

/// Returns true for names such as `1g.10gb+me`, as NVIDIA's go-nvlib writes them (`pkg/nvlib/device/mig_profile.go`).
pub fn is_profile(name: &str) -> bool {
    let attributes = ["+me.all", "+me", "+gfx", "-me"];
    let base = attributes
        .iter()
        .find_map(|attribute| name.strip_suffix(attribute))
        .unwrap_or(name);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = base.strip_suffix("gb").and_then(|base| base.split_once("g."));
    name.len() <= MAX_NAME && parts.is_some_and(|(slices, memory)| is_number(slices) && is_number(memory))
}

/// Returns true for the names that mig-parted generates, in which `.` stands for `+`.
fn is_preset(name: &str) -> bool {
    let Some(of) = name.strip_prefix("all-") else {
        return false;
    };
    let profile = [".me.all", ".me", ".gfx"]
        .iter()
        .find_map(|end| Some((of.strip_suffix(end)?, end)))
        .map_or_else(
            || of.to_owned(),
            |(base, end)| format!("{base}+{}", end.trim_start_matches('.')),
        );
    name.len() <= MAX_NAME && (matches!(of, "balanced" | "enabled") || is_profile(&profile))
}

fn validate_selector(path: &str, devices: &MigGpuSelector, problems: &mut Vec<FieldProblem>) {
    let MigGpuSelector {
        indices,
        uuids,
        products,
        device_ids,
    } = devices;
    if *devices == MigGpuSelector::default() {
        problems.push(FieldProblem::new(
            path,
            "must set a condition: indices, uuids, products or deviceIds; to select every GPU, leave out devices",
        ));
    }
    for (name, length, most) in [
        ("indices", indices.as_ref().map(Vec::len), 64),
        ("uuids", uuids.as_ref().map(Vec::len), 64),
        ("products", products.as_ref().map(Vec::len), 16),
        ("deviceIds", device_ids.as_ref().map(Vec::len), 16),
    ] {
        validate_length(format!("{path}.{name}"), length, 1..=most, problems);
    }
    validate_indices(path, indices.as_deref(), problems);
    for (index, uuid) in uuids.iter().flatten().enumerate() {
        if !is_gpu_uuid(uuid) {
            problems.push(FieldProblem::new(
                format!("{path}.uuids[{index}]"),
                format!("`{uuid}` is not the UUID of a GPU; `nvidia-smi -L` lists them as GPU-..."),
            ));
        }
    }
    validate_products(&format!("{path}.products"), products.as_deref(), problems);
    for (index, id) in device_ids.iter().flatten().enumerate() {
        let digits = id.strip_prefix("0x").unwrap_or_default();
        if digits.len() != 8 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            problems.push(FieldProblem::new(
                format!("{path}.deviceIds[{index}]"),
                format!("`{id}` is no PCI id; write device and vendor in hexadecimal, such as 0x20B210DE"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::validate::tests::problems;

    fn layout(group: &str) -> Vec<String> {
        problems(&format!("mig: {{strategy: Mixed, layout: [{group}]}}\n"))
    }

    #[test]
    fn a_group_has_exactly_one_layout() {
        for group in [
            "{instances: {1g.10gb: 3, 4g.40gb: 1}}",
            "{instances: {}}",
            "{preset: all-balanced}",
            "{preset: all-1g.10gb.me}",
            "{preset: all-1g.24gb.me.all, devices: {deviceIds: ['0x2BB510DE']}}",
            "{disabled: true, devices: {indices: [0], products: ['NVIDIA-A100*']}}",
        ] {
            assert_eq!(layout(group), Vec::<String>::new(), "{group}");
        }
        for group in ["{}", "{instances: {}, disabled: true}", "{devices: {indices: [0]}}"] {
            assert_eq!(
                layout(group),
                ["mig.layout[0]: a group of mig.layout must set exactly one of instances, preset and disabled"],
                "{group}"
            );
        }
    }

    #[test]
    fn names_and_numbers_are_refused_by_field() {
        assert_eq!(
            layout("{instances: {1c.3g.40gb: 1, 1g: 1, 2g.20gb: 0}}"),
            [
                "mig.layout[0].instances: `1c.3g.40gb` is a compute instance on part of a GPU instance, and a layout has only whole ones: write `3g.40gb`",
                "mig.layout[0].instances: `1g` is no profile of a GPU instance; write such as 1g.10gb or 1g.10gb+me; `kubectl gpunode mig --board BOARD` lists those of a board",
                "mig.layout[0].instances.2g.20gb: 0 is not between 1 and 64; leave the profile out for none",
            ]
        );
        assert_eq!(
            layout("{preset: balanced}"),
            [
                "mig.layout[0].preset: `balanced` is no preset; write all-balanced, all-enabled or all-PROFILE, such as all-1g.10gb"
            ]
        );
        assert_eq!(
            layout("{disabled: false}"),
            ["mig.layout[0].disabled: can only be true; leave it out to set instances or preset"]
        );
        assert_eq!(
            layout("{disabled: true, devices: {}}"),
            [
                "mig.layout[0].devices: must set a condition: indices, uuids, products or deviceIds; to select every GPU, leave out devices"
            ]
        );
        assert_eq!(
            layout("{disabled: true, devices: {uuids: [MIG-0c1b5e0a], deviceIds: ['20B2']}}"),
            [
                "mig.layout[0].devices.uuids[0]: `MIG-0c1b5e0a` is not the UUID of a GPU; `nvidia-smi -L` lists them as GPU-...",
                "mig.layout[0].devices.deviceIds[0]: `20B2` is no PCI id; write device and vendor in hexadecimal, such as 0x20B210DE",
            ]
        );
    }

    #[test]
    fn instances_that_nobody_could_get_are_refused() {
        let with = |group: &str| problems(&format!("mig: {{strategy: None, layout: [{group}]}}\n"));
        assert_eq!(with("{disabled: true}"), Vec::<String>::new());
        assert_eq!(
            with("{preset: all-balanced}"),
            [
                "mig.layout: mig.layout creates instances, which mig.strategy None does not advertise; set mig.strategy to Single or Mixed, or disabled in each group"
            ]
        );
    }
}
