//! Policies from files of mig-parted.

use super::*;
use crate::{
    cli::{Cli, ImportArgs, ImportFormat, PluginCommand},
    validate::{KnownKinds, SourceText, ValidationResult},
};
use clap::Parser;
use std::io::Write;

const FILE: &str = r#"version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.10gb.me:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb+me": 1}
  Half_And Half:
  - devices: all
    mig-enabled: false
  - device-filter: ["0x20B210DE", "0x233010DE"]
    devices: [0, 1]
    mig-enabled: true
    mig-devices: {"3g.40gb": 2}
"#;

fn imported(text: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("room for it");
    let path = file.path().to_string_lossy().into_owned();
    let words = ["kubectl-gpunode", "import", "mig-parted", &path];
    match Cli::try_parse_from(words.iter().chain(arguments))?.command {
        PluginCommand::Import(ImportArgs {
            format: ImportFormat::MigParted(args),
        }) => import(&args).map_err(|error| anyhow::anyhow!("{}", format!("{error:#}").replace(&path, "FILE"))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_configuration_becomes_a_policy_for_the_nodes_that_have_it() {
    let file = FILE.replace("Half_And Half", "Half_And.Half");
    insta::assert_snapshot!(imported(&file, &[]).expect("policies"), @r"
    # mig-parted's configuration Half_And.Half
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: half-and.half
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          nvidia.com/mig.config: Half_And.Half
      devicePlugin:
        mig:
          strategy: Mixed
          layout:
          - devices:
              indices:
              - 0
              - 1
              deviceIds:
              - '0x20B210DE'
              - '0x233010DE'
            instances:
              3g.40gb: 2
          - disabled: true
    ---
    # mig-parted's configuration all-1g.10gb.me
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: all-1g.10gb.me
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          nvidia.com/mig.config: all-1g.10gb.me
      devicePlugin:
        mig:
          strategy: Mixed
          layout:
          - instances:
              1g.10gb+me: 1
    ---
    # mig-parted's configuration all-disabled
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: all-disabled
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          nvidia.com/mig.config: all-disabled
      devicePlugin:
        mig:
          strategy: Mixed
          layout:
          - disabled: true
    ");
}

#[test]
fn imported_policies_are_valid() {
    let kinds = KnownKinds::new().expect("generated schemas");
    let valid = |text: &str, arguments: &[&str], count: usize| {
        let reports = kinds.validate(&SourceText {
            name: "-".to_owned(),
            contents: imported(text, arguments).expect("policies"),
        });
        let results: Vec<_> = reports
            .iter()
            .map(|report| (report.result, report.problems.clone()))
            .collect();
        assert_eq!(results, vec![(ValidationResult::Valid, Vec::new()); count]);
    };
    valid(&FILE.replace("Half_And Half", "Half_And.Half"), &[], 3);
    valid(FILE, &["--config", "Half_And Half", "--node-selector", "pool=mig"], 1);
}

#[test]
fn one_configuration_becomes_a_policy_for_chosen_nodes_or_a_part_of_one() {
    let chosen = [
        "--config",
        "all-1g.10gb.me",
        "--strategy",
        "single",
        "--node-selector",
        "pool=a,tier=b",
    ];
    insta::assert_snapshot!(imported(FILE, &chosen).expect("a policy"), @r"
    # mig-parted's configuration all-1g.10gb.me
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: all-1g.10gb.me
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          pool: a
          tier: b
      devicePlugin:
        mig:
          strategy: Single
          layout:
          - instances:
              1g.10gb+me: 1
    ");
    let part = imported(FILE, &["--config", "all-1g.10gb.me", "-o", "layout"]).expect("a part");
    insta::assert_snapshot!(part, @r"
    # mig-parted's configuration all-1g.10gb.me
    mig:
      strategy: Mixed
      layout:
      - instances:
          1g.10gb+me: 1
    ");
    assert!(
        gpunode_config::load(&part).is_ok(),
        "it is a configuration of an agent too"
    );
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |text: &str, arguments: &[&str]| imported(text, arguments).expect_err("a refusal").to_string();
    assert_eq!(
        refused(FILE, &[]),
        "import configuration `Half_And Half`: its name cannot be the value of the label nvidia.com/mig.config, so no node can \
         have it; import it alone, with --config and --node-selector"
    );
    assert_eq!(
        refused(FILE, &["--node-selector", "pool=mig"]),
        "import FILE: choose one of its configurations with --config for --node-selector; several policies for the same nodes are \
         a conflict"
    );
    assert_eq!(
        refused(FILE, &["--config", "half"]),
        "import FILE: it has no configuration half; it has Half_And Half, all-1g.10gb.me, all-disabled"
    );
    assert_eq!(
        refused(FILE, &["-o", "layout"]),
        "import FILE: choose one of its configurations with --config for -o layout"
    );
    assert_eq!(
        refused("version: v1\nhooks: {}\n", &[]),
        "import FILE: hooks: this is a file of hooks for mig-parted, and gpunode runs no hooks; import the file with `mig-configs`"
    );
    let error = refused(FILE, &["--node-selector", "pool"]);
    assert!(error.contains("write KEY=VALUE"), "{error}");
}

#[test]
fn names_that_become_the_same_are_told_apart() {
    let entry = "[{devices: all, mig-enabled: false}]";
    let long = "x".repeat(60);
    let names = |configurations: &[&str], arguments: &[&str]| {
        let entries: Vec<String> = configurations.iter().map(|name| format!("{name}: {entry}")).collect();
        let text = format!("version: v1\nmig-configs: {{{}}}\n", entries.join(", "));
        let policies = imported(&text, arguments).expect("policies");
        let names = policies.lines().filter_map(|line| line.strip_prefix("  name: "));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, second) = ("x".repeat(40), "x".repeat(38) + "-2");
    let configurations = ["a_b", "A-B", &format!("{long}1"), &format!("{long}2")];
    assert_eq!(names(&configurations, &[]), ["a-b", "a-b-2", &first, &second]);
    // The only configuration of its file needs no name.
    assert_eq!(names(&["-.-"], &["--node-selector", "a=b"]), ["mig"]);
}
