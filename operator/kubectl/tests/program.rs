//! The program itself: what it writes into a pipe, and its exit codes.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    io::Write,
    ops::Deref,
    process::{Command, Output},
};
use tempfile::NamedTempFile;

const DUMP: &str = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: n1, uid: u, resourceVersion: '1', labels: {pool: training}}
  status: {conditions: [{type: Ready, status: 'True'}]}
- apiVersion: gpunode.dev/v1alpha1
  kind: GpuNodePolicy
  metadata: {name: there}
  spec: {nodeSelector: {}, labels: {team: platform}}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: gpunode-operator, namespace: g, labels: {app.kubernetes.io/name: gpunode-operator}}
  spec: {selector: {}, template: {spec: {containers: [{name: operator, args: [--gpu-labels=false, --agent-image=x]}]}}}
";

fn policy(pool: &str, effect: &str) -> String {
    let taints = format!("[{{key: dedicated, effect: {effect}}}]");
    format!(
        "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: p}}\n\
         spec: {{nodeSelector: {{matchLabels: {{pool: {pool}}}}}, taints: {taints}}}\n"
    )
}

/// A file of one test; it is gone with the value.
struct InputFile {
    path: String,
    _file: NamedTempFile,
}

impl Deref for InputFile {
    type Target = str;

    fn deref(&self) -> &str {
        &self.path
    }
}

fn file(text: &str) -> InputFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("room for it");
    let path = file.path().to_string_lossy().into_owned();
    InputFile { path, _file: file }
}

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let Output { status, stdout, .. } = output(arguments, environment);
    (status.code(), String::from_utf8(stdout).expect("text"))
}

fn output(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-gpunode"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    let command = command.args(arguments).envs(environment.iter().copied());
    command.output().expect("the program")
}

#[test]
fn nodes_without_a_version_can_be_planned() {
    let nodes = file(&DUMP.replace("uid: u, resourceVersion: '1', ", ""));
    let policy = file(&policy("training", "NoSchedule"));
    let (code, text) = run(&["plan", "-f", &policy, "--nodes", &nodes], &[]);
    assert!(code != Some(1) && text.contains("dedicated"), "{code:?} {text}");
}

#[test]
fn doctor_fails_where_pods_would_get_no_gpu() {
    let dump = |cdi: &str| {
        file(&format!(
            "{DUMP}- apiVersion: gpunode.dev/v1alpha1
  kind: GpuNode
  metadata: {{name: n1}}
  spec: {{}}
  status:
    gpus: [{{index: 0, uuid: GPU-0, product: P, memoryMiB: 1}}]
    runtime: {{name: containerd, version: 1.7.27, cdi: {cdi}, handlers: [runc]}}
    conditions:
    - {{type: DriverAvailable, status: 'True', reason: DriverAnswers, message: the driver answers, lastTransitionTime: '2026-01-01T00:00:00Z'}}
"
        ))
    };
    let (off, on) = (dump("Disabled"), dump("Enabled"));
    let (code, text) = run(&["doctor", "--nodes", &off], &[]);
    assert!(
        code == Some(1) && text.contains("CDI is off in containerd 1.7.27"),
        "{code:?} {text}"
    );
    let (code, text) = run(&["doctor", "n1", "--nodes", &off], &[("COLUMNS", "80")]);
    assert!(
        code == Some(1) && text.lines().all(|line| line.chars().count() <= 80),
        "{code:?} {text}"
    );
    assert!(
        text.lines().nth(1).is_some_and(|line| line.starts_with("no GPU")),
        "{text}"
    );
    let (code, text) = run(&["doctor", "-o", "json", "--nodes", &off], &[]);
    let fleet: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(code, Some(1));
    assert_eq!(fleet["withoutGpus"], 1);
    assert_eq!(fleet["problems"][0]["reason"], "CdiDisabled");
    assert_eq!(fleet["problems"][0]["examples"][0], "n1");
    let (code, text) = run(&["doctor", "--nodes", &on], &[]);
    assert!(
        code == Some(0) && text.contains("1 node with GPUs examined"),
        "{code:?} {text}"
    );
    assert_eq!(run(&["doctor", "other", "--nodes", &on], &[]).0, Some(1));
}

/// The steps of docs/from-mig-manager.md that need no cluster.
#[test]
fn a_node_moves_from_mig_manager_and_back_without_a_change() {
    let device = |gpu: u32, instance: u32, profile: &str| {
        format!(
            "{{uuid: MIG-{gpu}-{instance}, profile: {profile}, gpuInstance: {instance}, computeInstance: 0, memoryMiB: 1}}"
        )
    };
    let gpu = |index: u32| {
        let devices = [(1, "3g.40gb"), (2, "2g.20gb"), (3, "1g.10gb"), (4, "1g.10gb")];
        let devices: Vec<String> = devices
            .into_iter()
            .map(|(id, profile)| device(index, id, profile))
            .collect();
        format!(
            "{{index: {index}, uuid: GPU-{index}, product: NVIDIA-A100-SXM4-80GB, memoryMiB: 81920, computeCapability: '8.0', \
             migMode: Enabled, migDevices: [{}]}}",
            devices.join(", ")
        )
    };
    let dump = DUMP.replace("pool: training", "nvidia.com/mig.config: all-balanced");
    let nodes = file(&format!(
        "{dump}- apiVersion: gpunode.dev/v1alpha1
  kind: GpuNode
  metadata: {{name: n1}}
  spec: {{}}
  status: {{gpus: [{}, {}]}}
",
        gpu(0),
        gpu(1)
    ));
    let config = file(
        "version: v1
mig-configs:
  all-balanced:
  - device-filter: ['0x20B710DE']
    devices: all
    mig-enabled: true
    mig-devices: {1g.6gb: 2, 2g.12gb: 1}
  - device-filter: ['0x233010DE', '0x20B210DE', '0x20B510DE', '0x20F310DE', '0x20F510DE']
    devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
  all-1g.10gb:
  - devices: all
    mig-enabled: true
    mig-devices: {1g.10gb: 7}
",
    );
    let (code, text) = run(&["import", "mig-parted", &config], &[]);
    assert_eq!((code, text.matches("mode: Preview").count()), (Some(0), 2), "{text}");
    let policies = file(&text);
    let (code, text) = run(&["validate", "-f", &policies], &[]);
    assert!(code == Some(0) && text.contains("2 valid"), "{text}");

    let (code, text) = run(&["plan", "-f", &policies, "--nodes", &nodes], &[]);
    assert!(
        code == Some(0) && text.contains("mig-3g.40gb would have 2 MIG devices"),
        "{code:?} {text}"
    );
    assert!(!text.contains(" -> "), "each GPU has its layout: {text}");
    let (code, text) = run(&["plan", "-f", &policies, "--nodes", &nodes, "-o", "json"], &[]);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, plan["nodes"][0].get("mig")), (Some(0), None), "{text}");

    let (code, back) = run(&["export", "mig", "n1", "--nodes", &nodes, "-o", "mig-parted"], &[]);
    assert_eq!(code, Some(0), "{back}");
    let back = file(&back);
    let (_, one) = run(&["import", "mig-parted", &back, "-o", "layout"], &[]);
    let (_, other) = run(&["export", "mig", "n1", "--nodes", &nodes], &[]);
    assert_eq!(one.split_once('\n').map(|(_, layout)| layout), Some(other.as_str()));

    let (code, text) = run(&["import", "mig-parted", &config, "--config", "all-1g.10gb"], &[]);
    assert_eq!(code, Some(0), "{text}");
    let all = file(&text.replace(
        "nvidia.com/mig.config: all-1g.10gb",
        "nvidia.com/mig.config: all-balanced",
    ));
    let (code, text) = run(&["plan", "-f", &all, "--nodes", &nodes], &[("COLUMNS", "80")]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let change =
        "GPUs 0, 1: 1g.10gb:2,2g.20gb:1,3g.40gb:1 -> 1g.10gb:7 (goes 1 x 2g.20gb, 1 x 3g.40gb; comes 5 x 1g.10gb)";
    assert!(code == Some(0) && words.contains(change), "{code:?} {text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let nodes = file(DUMP);
    let policy = file(&policy("training", "NoSchedule"));
    let plan = ["plan", "-f", &policy, "--nodes", &nodes];
    let explain = ["explain", "n1", "--nodes", &nodes];
    for arguments in [plan.as_slice(), &explain] {
        let has_colour = |environment: &[(&str, &str)]| run(arguments, environment).1.contains('\u{1b}');
        assert!(!has_colour(&[]), "{arguments:?} in a pipe");
        assert!(
            has_colour(&[("CLICOLOR_FORCE", "1")]),
            "{arguments:?} where it is wanted all the same"
        );
        assert!(!has_colour(&[("NO_COLOR", "1")]), "{arguments:?}");
    }
}

#[test]
fn exit_codes_tell_pipelines_what_would_happen() {
    let nodes = file(DUMP);
    for (name, text, code) in [
        ("harmless", policy("training", "NoSchedule"), 0),
        ("disruptive", policy("training", "NoExecute"), 2),
        ("refused", policy("training", "Sometimes"), 1),
    ] {
        let policy = file(&text);
        assert_eq!(
            run(&["plan", "-f", &policy, "--nodes", &nodes], &[]).0,
            Some(code),
            "{name}"
        );
    }
    assert_eq!(run(&["plan", "--delete", "there", "--nodes", &nodes], &[]).0, Some(0));
    assert_eq!(
        run(&["plan", "--delete", "gone", "--nodes", &nodes], &[]).0,
        Some(1),
        "there is no such policy"
    );
    assert_eq!(
        run(&["explain", "n2", "--nodes", &nodes], &[]).0,
        Some(1),
        "there is no such node"
    );
    assert_eq!(run(&["plan"], &[]).0, Some(1), "wrong arguments are not a disruption");
    let kustomization = file("kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\n");
    let (code, text) = run(&["validate", "-f", &kustomization], &[]);
    assert!(
        code == Some(1) && text.contains("kubectl kustomize FOLDER"),
        "what was not validated is not valid: {text}"
    );
}

#[test]
fn a_plan_names_the_pods_that_a_taint_evicts() {
    let pod = |name: &str, tolerations: &str| {
        format!(
            "- apiVersion: v1\n  kind: Pod\n  metadata: {{name: {name}, namespace: team}}\n  spec: {{nodeName: n1, containers: [], tolerations: {tolerations}}}\n"
        )
    };
    let (tolerant, other) = (pod("stays", "[{operator: Exists}]"), pod("goes", "[]"));
    let policy = file(&policy("training", "NoExecute"));
    let plan = |pods: &str| {
        let nodes = file(&format!("{DUMP}{pods}"));
        let (code, text) = run(&["plan", "-f", &policy, "--nodes", &nodes], &[]);
        (
            code,
            text,
            run(&["plan", "-f", &policy, "--nodes", &nodes, "-o", "json"], &[]).1,
        )
    };
    let (code, text, json) = plan(&format!("{tolerant}{other}"));
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("disruptive: taint dedicated:NoExecute evicts pod team/goes\n"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["nodes"][0]["evicted"][0]["pod"], "goes", "{json}");
    let (code, text, _) = plan(&tolerant);
    assert_eq!(code, Some(0), "a taint that evicts nobody disrupts nobody: {text}");
    let (code, text, _) = plan("");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("evicts pods that do not tolerate it"), "{text}");
}

#[test]
fn an_old_dump_gives_a_warning_beside_the_output() {
    let policy = file(&policy("training", "NoSchedule"));
    let warned = |metadata: &str| {
        let nodes = file(&DUMP.replace("kind: List\n", &format!("kind: List\n{metadata}")));
        let output = output(&["plan", "-f", &policy, "--nodes", &nodes, "-o", "json"], &[]);
        let json: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
        assert!(json.is_ok() && output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    let old = warned("metadata: {creationTimestamp: 2020-01-01T00:00:00Z}\n");
    assert!(
        old.starts_with("warning: ") && old.contains("days ago, at 2020-01-01T00:00:00Z"),
        "{old}"
    );
    assert_eq!(warned(""), "");
}

#[test]
fn two_policies_of_one_name_are_refused() {
    let first = file(&policy("training", "NoSchedule"));
    let second = file(&policy("inference", "NoSchedule"));
    let nodes = file(DUMP);
    for arguments in [
        ["validate", "-f", &first, "-f", &second].as_slice(),
        &["plan", "-f", &first, "-f", &second, "--nodes", &nodes],
    ] {
        let (code, text) = run(arguments, &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("metadata.name: p is also the name of the GpuNodePolicy on line 3 of "),
            "{text}"
        );
    }
    let (code, text) = run(&["validate", "-f", &first, "-f", &first], &[]);
    assert_eq!(code, Some(0), "one file that is named twice: {text}");
}

#[test]
fn tables_fit_the_columns_unless_wide_is_wanted() {
    let nodes = file(&DUMP.replace("team: platform", "a-long-key-of-a-label: a-long-value-of-a-label"));
    let explain = |more: &[&str], columns: &[(&str, &str)]| {
        run(
            &[["explain", "n1", "--nodes", &nodes].as_slice(), more].concat(),
            columns,
        )
        .1
    };
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    let whole = explain(&[], &[]);
    assert!(widest(&whole) > 80, "{whole}");
    assert!(widest(&explain(&[], &[("COLUMNS", "80")])) <= 80);
    assert_eq!(explain(&["-o", "wide"], &[("COLUMNS", "80")]), whole);
}

#[test]
fn programs_get_json_and_yaml_that_say_the_same() {
    let nodes = file(DUMP);
    let policy = file(&policy("trainings", "NoSchedule"));
    for arguments in [
        ["plan", "-f", &policy, "--nodes", &nodes].as_slice(),
        &["explain", "n1", "--nodes", &nodes],
        &["validate", "-f", &policy],
    ] {
        let form = |form: &str| run(&[arguments, &["-o", form]].concat(), &[]).1;
        let json: serde_json::Value = serde_json::from_str(&form("json")).expect("JSON");
        let yaml: serde_json::Value = serde_yaml::from_str(&form("yaml")).expect("YAML");
        assert_eq!(json, yaml, "{arguments:?}");
        if arguments.contains(&"plan") {
            assert_eq!(json["policies"][0]["nearest"]["node"], "n1", "{json}");
        }
        if !arguments.contains(&"validate") {
            assert_eq!(
                json["unreadable"].as_array().map(Vec::len),
                Some(0),
                "the operator is known: {json}"
            );
        }
    }
}
