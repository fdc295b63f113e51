//! `validate` on the table of policies. `tests/api_server.rs` asks a real API server the same.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

mod table;

use kubectl_gpunode::validate::{self, DocumentProblem, KnownKinds, SourceText, ValidationResult};

#[test]
fn every_policy_of_the_table_gets_its_verdict() {
    let kinds = KnownKinds::new().expect("generated schemas");
    table::compare("validate", &table::cases(), |case| {
        let text = SourceText {
            name: case.name.clone(),
            contents: case.yaml.clone(),
        };
        let problems: Vec<_> = kinds
            .validate(&text)
            .into_iter()
            .flat_map(|report| report.problems)
            .collect();
        let words: Vec<_> = problems.iter().map(|problem| problem.message.clone()).collect();
        (
            problems.into_iter().map(|problem| problem.path).collect(),
            words.join("; "),
        )
    });
}

const POLICY: &str = "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {name: v100}\n";

fn verdicts(contents: &str) -> Vec<(ValidationResult, Vec<String>)> {
    let text = SourceText {
        name: "file".to_owned(),
        contents: contents.to_owned(),
    };
    let reports = KnownKinds::new().expect("generated schemas").validate(&text);
    let shown = |problem: &DocumentProblem| format!("{} {}", problem.line.unwrap_or_default(), problem.path);
    reports
        .iter()
        .map(|report| (report.result, report.problems.iter().map(shown).collect()))
        .collect()
}

#[test]
fn documents_of_other_kinds_are_skipped() {
    assert_eq!(
        verdicts(&format!(
            "kind: Pod\napiVersion: v1\n---\n{POLICY}spec: {{nodeSelector: {{}}}}\n"
        )),
        [(ValidationResult::Skipped, vec![]), (ValidationResult::Valid, vec![])]
    );
}

#[test]
fn a_kind_of_gpunodes_in_another_group_is_refused() {
    for version in ["gpunodes.dev/v1alpha1", "v1alpha1", "gpunode.dev/v1"] {
        for kind in ["GpuNodePolicy", "GpuNode"] {
            let object = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n");
            assert_eq!(
                verdicts(&object),
                [(ValidationResult::Invalid, vec!["1 apiVersion".to_owned()])],
                "{version} {kind}"
            );
        }
    }
}

#[test]
fn problems_that_hide_others_say_so() {
    let unchecked = |spec: &str| {
        let text = SourceText {
            name: "file".to_owned(),
            contents: format!("{POLICY}spec: {spec}\n"),
        };
        KnownKinds::new()
            .expect("generated schemas")
            .validate(&text)
            .remove(0)
            .rules_unchecked
    };
    let rule = "labels: {kubernetes.io/a: b}";
    assert!(!unchecked(&format!("{{nodeSelector: {{}}, {rule}}}")));
    assert!(unchecked(&format!("{{nodeSelector: {{}}, mode: Off, {rule}}}")));
}

#[test]
fn wrong_types_and_broken_rules_are_shown_in_one_round() {
    let resources = "[{name: gpu}, {name: a.b/c, sharing: {strategy: None, replicas: 4}}, {name: a.b/d, sharing: {strategy: timeSlicing, replicas: 4}}]";
    let spec = format!(
        "{{nodeSelector: {{}}, priority: high, labels: {{kubernetes.io/a: b}}, taints: [{{key: k8s.io/a}}], devicePlugin: {{passDeviceSpecs: 1, resources: {resources}}}}}"
    );
    let words = words(&spec);
    let resource = "spec.devicePlugin.resources";
    for path in [
        "spec.priority",
        "spec.labels",
        "spec.taints[0].effect",
        "spec.taints[0].key",
        "spec.devicePlugin.passDeviceSpecs",
        &format!("{resource}[0].name"),
        &format!("{resource}[1].sharing.replicas"),
        &format!("{resource}[2].sharing.strategy"),
    ] {
        let of_path = words.iter().filter(|word| word.starts_with(&format!("{path}: ")));
        assert_eq!(of_path.count(), 1, "{path}: {words:#?}");
    }
    assert_eq!(words.len(), 8, "{words:#?}");
}

#[test]
fn a_block_that_is_null_gets_a_warning_with_its_line() {
    let text = SourceText {
        name: "file".to_owned(),
        contents: format!("{POLICY}spec:\n  nodeSelector:\n  gpuSelector: {{minCount: 1}}\n  devicePlugin: null\n"),
    };
    let report = KnownKinds::new().expect("generated schemas").validate(&text).remove(0);
    assert_eq!(report.result, ValidationResult::Valid);
    let warnings: Vec<_> = report
        .warnings
        .iter()
        .map(|warning| (warning.line, warning.path.as_str(), warning.message.as_str()))
        .collect();
    assert_eq!(
        warnings,
        [
            (
                Some(5),
                "spec.nodeSelector",
                "is null, which counts as left out; write `nodeSelector: {}` to select every node, or remove the line"
            ),
            (
                Some(7),
                "spec.devicePlugin",
                "is null, which counts as left out; write `devicePlugin: {}` to run the device plugin with its defaults, or remove \
                 the line"
            )
        ]
    );
    assert_eq!(validate::text(&[report]).matches("warning: ").count(), 2);
}

/// The warnings about a policy with this `spec`, each with its field.
fn warnings(spec: &str) -> Vec<String> {
    let text = SourceText {
        name: "file".to_owned(),
        contents: format!("{POLICY}spec: {spec}\n"),
    };
    let reports = KnownKinds::new().expect("generated schemas").validate(&text);
    assert_eq!(reports[0].problems, [], "{spec}");
    let warnings = reports.iter().flat_map(|report| &report.warnings);
    warnings
        .map(|warning| format!("{}: {}", warning.path, warning.message))
        .collect()
}

#[test]
fn a_layout_that_a_selected_board_cannot_have_gets_a_warning_with_the_nearest_one() {
    let layout = |selector: &str, group: &str| {
        warnings(&format!(
            "{{{selector}, devicePlugin: {{mig: {{strategy: Mixed, layout: [{{disabled: true, devices: {{indices: [0]}}}}, {group}]}}}}}}"
        ))
    };
    let path = "spec.devicePlugin.mig.layout[1]";
    let any = "nodeSelector: {}";
    assert_eq!(
        layout(
            any,
            "{devices: {products: [NVIDIA-A100-SXM4-80GB]}, instances: {3g.40gb: 2, 1g.10gb: 1}}"
        ),
        [format!(
            "{path}.instances: 1g.10gb:1,3g.40gb:2 cannot be on A100-80GB: it needs 9 memory slices, and a GPU has 8; the nearest layout that fits is 3g.40gb:2"
        )]
    );
    assert_eq!(
        layout(
            any,
            "{devices: {deviceIds: ['0x233010DE', '0x20B710DE']}, preset: all-1g.10gb}"
        ),
        [format!(
            "{path}.preset: all-1g.10gb cannot be on A30-24GB: the board has no preset `all-1g.10gb`; it has all-enabled, all-1g.6gb, all-1g.6gb.me, all-2g.12gb, all-2g.12gb.me, all-4g.24gb, all-balanced"
        )]
    );
    assert_eq!(
        layout("gpuSelector: {products: ['*A30']}", "{instances: {1g.10gb: 7}}").len(),
        1
    );
    for (selector, group) in [
        // It fits one of the boards that the glob selects.
        (any, "{devices: {products: ['*A100*']}, instances: {1g.10gb: 7}}"),
        ("gpuSelector: {products: [Tesla-V100*]}", "{instances: {1g.10gb: 7}}"),
        (any, "{instances: {1g.10gb: 7}}"),
        (any, "{devices: {products: [NVIDIA-H20]}, instances: {1g.12gb: 7}}"),
    ] {
        assert_eq!(layout(selector, group), Vec::<String>::new(), "{selector} {group}");
    }
}

#[test]
fn the_items_of_a_list_are_judged_one_by_one() {
    let item = "- apiVersion: gpunode.dev/v1alpha1\n  kind: GpuNodePolicy\n  metadata: {name: a}\n  spec:\n";
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n{item}    nodeSelector: {{}}\n{item}    nodeSelector: {{}}\n    mode: Off\n"
    );
    assert_eq!(
        verdicts(&list),
        [
            (ValidationResult::Valid, vec![]),
            (ValidationResult::Invalid, vec!["14 spec.mode".to_owned()])
        ]
    );
}

#[test]
fn what_is_no_object_is_refused() {
    assert_eq!(verdicts(""), [(ValidationResult::Invalid, vec!["0 ".to_owned()])]);
    assert_eq!(
        verdicts("resources: []\n"),
        [(ValidationResult::Invalid, vec!["1 apiVersion".to_owned()])]
    );
    assert_eq!(
        verdicts("- a\n"),
        [(ValidationResult::Invalid, vec!["1 apiVersion".to_owned()])]
    );
    let broken = verdicts(&format!("{POLICY}spec: {{nodeSelector: {{}}}}\n---\na: [\n"));
    assert_eq!(
        broken.iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(),
        [ValidationResult::Valid, ValidationResult::Invalid]
    );
}

#[test]
fn a_policy_in_force_cannot_become_a_preview() {
    let kinds = KnownKinds::new().expect("generated schemas");
    let object = |mode: &str| {
        let contents = format!("{POLICY}spec: {{nodeSelector: {{}}, mode: {mode}}}\n");
        kinds
            .validate(&SourceText {
                name: "file".to_owned(),
                contents,
            })
            .remove(0)
            .object
    };
    for mode in ["Enforce", "Paused"] {
        assert!(
            kinds.validate_change(&object(mode), &object("Preview")).is_empty(),
            "{mode}"
        );
        let problems = kinds.validate_change(&object("Preview"), &object(mode));
        assert_eq!(
            problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(),
            ["spec.mode"],
            "{mode}"
        );
        assert!(
            problems[0].message.contains("Paused") && problems[0].message.contains("plan"),
            "{problems:?}"
        );
    }
    for (from, to) in [("Enforce", "Paused"), ("Paused", "Enforce")] {
        assert!(
            kinds.validate_change(&object(to), &object(from)).is_empty(),
            "{from} to {to}"
        );
    }
}

/// The messages about a policy with this `spec`, each with its field.
fn words(spec: &str) -> Vec<String> {
    let text = SourceText {
        name: "file".to_owned(),
        contents: format!("{POLICY}spec: {spec}\n"),
    };
    let reports = KnownKinds::new().expect("generated schemas").validate(&text);
    let problems = reports.iter().flat_map(|report| &report.problems);
    problems
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect()
}

#[test]
fn what_is_too_short_is_told_how_much_it_needs() {
    let selected = |devices: &str| {
        words(&format!(
            "{{nodeSelector: {{}}, devicePlugin: {{resources: [{{name: a.b/c, devices: {devices}}}]}}}}"
        ))
    };
    assert_eq!(
        selected("{products: []}"),
        ["spec.devicePlugin.resources[0].devices.products: needs at least 1 entry"]
    );
    assert_eq!(
        selected("{products: [\"\"]}")[0],
        "spec.devicePlugin.resources[0].devices.products[0]: needs at least 1 character"
    );
    assert_eq!(
        selected("{uuids: [GPU]}")[0],
        "spec.devicePlugin.resources[0].devices.uuids[0]: needs at least 5 characters"
    );
}

#[test]
fn a_slip_in_a_fixed_value_is_told_the_right_one() {
    assert_eq!(
        words("{nodeSelector: {}, mode: preview}"),
        ["spec.mode: \"preview\" is not supported; did you mean `Preview`?"]
    );
    assert_eq!(
        words("{nodeSelector: {}, mode: DryRun}"),
        ["spec.mode: \"DryRun\" is not supported; supported values: Enforce, Preview, Paused"]
    );
    let sharing = "{strategy: Timeslicing, replicas: 4}";
    assert_eq!(
        words(&format!(
            "{{nodeSelector: {{}}, devicePlugin: {{resources: [{{name: a.b/c, sharing: {sharing}}}]}}}}"
        )),
        [
            "spec.devicePlugin.resources[0].sharing.strategy: \"Timeslicing\" is not supported; did you mean `TimeSlicing`?"
        ]
    );
}

#[test]
fn what_matches_no_pattern_is_told_in_words_what_is_meant() {
    let resource = |fields: &str| {
        words(&format!(
            "{{nodeSelector: {{}}, devicePlugin: {{resources: [{{{fields}}}]}}}}"
        ))
    };
    let path = "spec.devicePlugin.resources[0]";
    assert_eq!(
        resource("name: gpu"),
        [format!(
            "{path}.name: name must be DOMAIN/NAME, such as nvidia.com/gpu: a domain in lower case, then at most 63 letters, digits, '-', '_' and '.'"
        )]
    );
    assert_eq!(
        resource("name: a.b/c, devices: {minMemory: \"16\"}"),
        [format!(
            "{path}.devices.minMemory: memory needs a unit; write a whole number of Mi, Gi or Ti, such as 16Gi or 512Mi"
        )]
    );
    assert_eq!(
        resource("name: a.b/c, sharing: {strategy: Memory, unit: 1G}"),
        [format!(
            "{path}.sharing.unit: sharing.unit must be a whole number of Mi, Gi or Ti, such as 1Gi or 512Mi"
        )]
    );
    assert_eq!(
        resource("name: a.b/c, devices: {products: [Tesla V100]}"),
        [format!(
            "{path}.devices.products[0]: \"Tesla V100\" is not a glob for product names, such as `Tesla-V100*`; it does not match ^[-A-Za-z0-9_.*?]+$"
        )]
    );
    let label = words("{nodeSelector: {matchLabels: {a.b/pool: '-'}}, labels: {a.b/c: 'x y'}}").join("\n");
    assert_eq!(
        label.matches("is not a valid label or taint value").count(),
        2,
        "{label}"
    );
}
