//! Files of mig-parted, and layouts on the way to one and back.

use super::*;
use crate::{MigConfig, MigStrategy, validate::validate_mig};

const FILE: &str = include_str!("config.yaml");

/// Returns each layout of a file as one line of JSON, or the problems.
fn layouts(text: &str) -> Vec<String> {
    match mig_parted_layouts(text) {
        Ok(layouts) => layouts
            .iter()
            .map(|(name, layout)| format!("{name}: {}", serde_json::to_string(layout).expect("JSON")))
            .collect(),
        Err(MigPartedError::Refused(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// Returns the problems of one entry, or its groups.
fn entry(text: &str) -> Vec<String> {
    layouts(&format!("version: v1\nmig-configs: {{a: [{text}]}}\n"))
}

/// Returns the decision about each of 8 GPUs of two boards, of the first group that selects it, or of the last entry.
fn decided(layout: &[MigGroup], is_reversed: bool) -> Vec<Option<MigGroup>> {
    let selects = |group: &&MigGroup, gpu: i32, id: &str| {
        let devices = group.devices.clone().unwrap_or_default();
        devices.indices.is_none_or(|indices| indices.contains(&gpu))
            && devices.device_ids.is_none_or(|ids| ids.iter().any(|known| known == id))
    };
    let gpus = (0..8).flat_map(|gpu| ["0x20B210DE", "0x233010DE"].map(|id| (gpu, id)));
    let decide = |(gpu, id): (i32, &str)| {
        let mut selecting = layout.iter().filter(|group| selects(group, gpu, id));
        let group = if is_reversed {
            selecting.next_back()
        } else {
            selecting.next()
        };
        group.map(|group| MigGroup {
            devices: None,
            ..group.clone()
        })
    };
    gpus.map(decide).collect()
}

#[test]
fn each_configuration_becomes_a_layout_in_which_the_last_entry_is_the_first_group() {
    assert_eq!(
        layouts(FILE),
        [
            r#"all-1g.10gb: [{"devices":{"deviceIds":["0x20B010DE","0x20F110DE"]},"instances":{"1g.10gb":4}},{"devices":{"deviceIds":["0x233010DE","0x20B210DE"]},"instances":{"1g.10gb":7}}]"#,
            r#"all-1g.24gb-me: [{"instances":{"1g.24gb-me":4}}]"#,
            r#"all-1g.24gb.me.all: [{"instances":{"1g.24gb+me.all":1}}]"#,
            r#"all-1g.5gb.me: [{"instances":{"1g.5gb+me":1}}]"#,
            r#"all-2g.48gb.gfx: [{"instances":{"2g.48gb+gfx":2}}]"#,
            r#"all-balanced: [{"devices":{"deviceIds":["0x20B210DE"]},"instances":{"1g.10gb":2,"2g.20gb":1,"3g.40gb":1}},{"devices":{"deviceIds":["0x20B710DE"]},"instances":{"1g.6gb":2,"2g.12gb":1}}]"#,
            r#"all-disabled: [{"disabled":true}]"#,
            r#"all-enabled: [{"instances":{}}]"#,
            r#"half: [{"devices":{"indices":[3],"deviceIds":["0x20B210DE"]},"instances":{}},{"devices":{"indices":[0,1,2,3]},"instances":{"3g.40gb":2}},{"disabled":true}]"#,
        ]
    );
}

#[test]
fn layouts_are_valid_and_the_way_to_a_file_and_back_changes_nothing() {
    for (name, layout) in mig_parted_layouts(FILE).expect("a file") {
        let mig = MigConfig {
            strategy: MigStrategy::Mixed,
            layout: layout.clone(),
        };
        let mut problems = Vec::new();
        validate_mig(&mig, &mut problems);
        assert_eq!(problems, [], "{name}");
        let text = mig_parted_file(&name, &layout).expect("a file");
        let back = mig_parted_layouts(&text).expect("a file");
        assert_eq!(back, BTreeMap::from([(name, layout)]), "{text}");
    }
}

#[test]
fn the_entry_that_mig_parted_applies_last_is_the_group_that_wins() {
    let entries = "
- {devices: [0, 1], mig-enabled: true, mig-devices: {7g.80gb: 1}}
- {devices: all, mig-enabled: false}
- {devices: [1, 2], mig-enabled: true, mig-devices: {1g.10gb: 7}}
- {devices: [2], device-filter: '0x233010DE', mig-enabled: true, mig-devices: {}}
";
    let file = format!("version: v1\nmig-configs:\n  a:{}", entries.replace('\n', "\n  "));
    let layout = mig_parted_layouts(&file)
        .expect("a file")
        .remove("a")
        .expect("a layout");
    let mut in_order = Vec::new();
    for line in entries.lines().filter(|line| !line.is_empty()) {
        let one = format!("version: v1\nmig-configs:\n  a:\n  {line}\n");
        in_order.extend(mig_parted_layouts(&one).expect("a file").remove("a").expect("a layout"));
    }
    assert_eq!(decided(&layout, false), decided(&in_order, true));
    assert_eq!(layout.len(), 3, "the first entry is overridden everywhere: {layout:?}");
}

#[test]
fn compute_instances_on_part_of_a_gpu_instance_are_refused_with_the_whole_profile() {
    assert_eq!(
        entry("{devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 3}}"),
        [
            "mig-configs.a[0].mig-devices: `1c.3g.20gb` is a compute instance on part of a GPU instance, and a layout has only whole ones: write `3g.20gb`"
        ]
    );
    assert_eq!(
        entry("{devices: all, mig-enabled: true, mig-devices: {3c.3g.20gb: 1, 3g.20gb: 1}}"),
        [r#"a: [{"instances":{"3g.20gb":2}}]"#]
    );
}

#[test]
fn unknown_fields_and_other_files_are_refused_by_path() {
    for (text, expected) in [
        (
            "mig-configs: {a: [{devices: all, mig-enabled: false}]}",
            "version: is missing; write `version: v1`",
        ),
        (
            "version: v2\nmig-configs: {a: [{devices: all, mig-enabled: false}]}",
            "version: only v1 is known",
        ),
        ("version: v1", "mig-configs: must name at least one configuration"),
        (
            "version: v1\nmig-configs: {}",
            "mig-configs: must name at least one configuration",
        ),
        (
            "version: v1\nmig-configs: {all-1g.5gb: []}",
            "mig-configs.all-1g.5gb: must be a list of at least one entry",
        ),
        (
            "version: v1\nmig-config: {}\nmig-configs: {a: [{devices: all, mig-enabled: false}]}",
            "mig-config: unknown field; did you mean `mig-configs`?",
        ),
        (
            "version: v1\nhooks: {apply-start: []}",
            "hooks: this is a file of hooks for mig-parted, and gpunode runs no hooks; import the file with `mig-configs`",
        ),
        (
            "kind: ConfigMap\ndata: {}",
            "kind: this is an object of Kubernetes; import the file in it, as of `kubectl get configmap NAME -o jsonpath='{.data.config\\.yaml}'`",
        ),
        ("[]", "the file must have the fields version and mig-configs"),
    ] {
        assert!(
            layouts(text).contains(&expected.to_owned()),
            "{text}: {:?}",
            layouts(text)
        );
    }
    assert_eq!(
        entry("{devices: all, mig-enabled: false, mig-device: {}}"),
        ["mig-configs.a[0].mig-device: unknown field; did you mean `mig-devices`?"]
    );
    assert!(layouts("a: [\n")[0].starts_with("the file is not YAML: "));
    assert_eq!(
        mig_parted_layouts(&"#".repeat(MAX_DOCUMENT_BYTES + 1)),
        Err(MigPartedError::TooLong(MAX_DOCUMENT_BYTES + 1))
    );
}

#[test]
fn entries_without_a_counterpart_are_refused_by_path() {
    for (text, expected) in [
        (
            "{mig-enabled: false}",
            "devices: is missing; write `devices: all`, or a list of indices",
        ),
        (
            "{devices: every, mig-enabled: false}",
            "devices: must be all, or a list of indices from 0 to 63; remove an entry without GPUs",
        ),
        (
            "{devices: [], mig-enabled: false}",
            "devices: must be all, or a list of indices from 0 to 63; remove an entry without GPUs",
        ),
        (
            "{devices: [0, 64], mig-enabled: false}",
            "devices: must be all, or a list of indices from 0 to 63; remove an entry without GPUs",
        ),
        ("{devices: all}", "mig-enabled: must be true or false"),
        (
            "{devices: all, mig-enabled: 'yes'}",
            "mig-enabled: must be true or false",
        ),
        (
            "{devices: all, mig-enabled: true}",
            "mig-devices: is missing; write {} for no instance",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: }",
            "mig-devices: is missing; write {} for no instance",
        ),
        (
            "{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}",
            "mig-devices: must be empty where mig-enabled is false",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}",
            "mig-devices: names profiles with 0 instances alone; write {} for no instance",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}",
            "mig-devices.1g.5gb: must be a number from 0 to 64",
        ),
        (
            "{devices: all, device-filter: '0x20B210DE:0x153310DE', mig-enabled: false}",
            "device-filter: `0x20B210DE:0x153310DE` selects by the subsystem 0x153310DE, which a layout cannot; write `0x20B210DE`, which selects every board with this PCI id, or list the GPUs in `devices`",
        ),
        (
            "{devices: all, device-filter: [20B210DE], mig-enabled: false}",
            "device-filter: must be a PCI id, or a list of them: device and vendor in hexadecimal and in quotes, such as \"0x20B210DE\"",
        ),
    ] {
        assert_eq!(entry(text), [format!("mig-configs.a[0].{expected}")], "{text}");
    }
}

#[test]
fn a_filter_with_more_ids_than_a_group_becomes_several_groups() {
    let ids: Vec<String> = (0..20).map(|id| format!("'0x{id:04X}10DE'")).collect();
    let text = format!(
        "version: v1\nmig-configs: {{a: [{{devices: all, device-filter: [{}], mig-enabled: false}}]}}",
        ids.join(", ")
    );
    let layouts = mig_parted_layouts(&text).expect("a file");
    let numbers: Vec<usize> = layouts["a"]
        .iter()
        .map(|group| {
            group
                .devices
                .clone()
                .and_then(|devices| devices.device_ids)
                .unwrap_or_default()
                .len()
        })
        .collect();
    assert_eq!(numbers, [4, 16]);
}

#[test]
fn a_layout_that_mig_parted_cannot_say_is_refused_by_path() {
    let by_product = MigGroup {
        devices: Some(MigGpuSelector {
            products: Some(vec!["NVIDIA-A100*".to_owned()]),
            ..MigGpuSelector::default()
        }),
        preset: Some("all-balanced".to_owned()),
        ..MigGroup::default()
    };
    assert_eq!(
        mig_parted_file("a", &[by_product]).unwrap_err().to_string(),
        "layout[0].devices: mig-parted selects GPUs by index and PCI id alone; layout[0].preset: mig-parted has no presets within a file; write the instances"
    );
}
