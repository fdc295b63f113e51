//! Policies from configurations of NVIDIA's device plugin.

use super::*;
use crate::{
    cli::{Cli, ImportArgs, ImportFormat, PluginCommand},
    validate::{KnownKinds, SourceText, ValidationResult},
};
use clap::Parser;
use std::io::Write;

fn temporary(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("room for it");
    file
}

fn imported(text: &str, arguments: &[&str]) -> anyhow::Result<ImportedText> {
    let file = temporary(text);
    let path = file.path().to_string_lossy().into_owned();
    run(&[&path], arguments).map_err(|error| anyhow::anyhow!("{}", format!("{error:#}").replace(&path, "FILE")))
}

fn run(files: &[&str], arguments: &[&str]) -> anyhow::Result<ImportedText> {
    let words = ["kubectl-gpunode", "import", "nvidia-plugin"];
    let words = words.iter().chain(files).chain(arguments);
    match Cli::try_parse_from(words)?.command {
        PluginCommand::Import(ImportArgs {
            format: ImportFormat::NvidiaPlugin(args),
        }) => import(&args),
        other => panic!("{other:?}"),
    }
}

fn problem(text: &str, arguments: &[&str]) -> String {
    format!("{:#}", imported(text, arguments).expect_err("it has no counterpart"))
}

/// The policies without the rules for XIDs, which are long.
fn without_health(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut kept = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim() != "health:" {
            kept.push(line);
            continue;
        }
        let depth = line.len() - line.trim_start().len();
        while lines
            .next_if(|line| line.len() - line.trim_start().len() > depth)
            .is_some()
        {}
    }
    kept.join("\n")
}

const MAP: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: plugin-configs}
data:
  default: |
    version: v1
  a100: |
    version: v1
    flags: {migStrategy: mixed, failOnInitError: true}
    sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.5gb, replicas: 2}]}}
  T4_shared: |
    flags: {failOnInitError: true, nvidiaDriverRoot: /opt/driver}
    sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4, devices: [0]}]}}
";

#[test]
fn each_configuration_of_a_map_becomes_a_policy_and_the_default_one_is_for_the_other_nodes() {
    let imported = imported(MAP, &[]).expect("policies");
    insta::assert_snapshot!(without_health(&imported.text), @r"
    # the operator needs these flags: --driver-roots=/opt/driver,/run/nvidia/driver,/,/home/kubernetes/bin/nvidia
    # configuration T4_shared of NVIDIA's device plugin
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: t4-shared
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          nvidia.com/device-plugin.config: T4_shared
      devicePlugin:
        resources:
        - name: nvidia.com/gpu
          allocation: Spread
          sharing:
            strategy: Mps
            replicas: 4
            failRequestsGreaterThanOne: true
        deviceListStrategy:
        - Envvar
    ---
    # configuration a100 of NVIDIA's device plugin
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: a100
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          nvidia.com/device-plugin.config: a100
      devicePlugin:
        resources:
        - name: nvidia.com/gpu
        - name: nvidia.com/mig-1g.5gb
          devices:
            migProfiles:
            - 1g.5gb
          allocation: Spread
          sharing:
            strategy: TimeSlicing
            replicas: 2
        mig:
          strategy: Mixed
        deviceListStrategy:
        - Envvar
    ---
    # configuration default of NVIDIA's device plugin
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: default
    spec:
      mode: Preview
      nodeSelector:
        matchExpressions:
        - key: nvidia.com/device-plugin.config
          operator: NotIn
          values:
          - T4_shared
          - a100
      gpuSelector:
        minCount: 1
      devicePlugin:
        deviceListStrategy:
        - Envvar
    ");
    assert_eq!(
        imported.warnings,
        [
            "T4_shared: sharing.mps.resources[0].devices: left out, so every device is shared; --as-written takes it as the file \
             says",
            "T4_shared, a100: flags.failOnInitError: left out: the agent waits for the driver and says so in the node's status; \
             set failOnInitError to exit instead",
        ]
    );
    let source = SourceText {
        name: "policies".to_owned(),
        contents: imported.text,
    };
    let reports = KnownKinds::new().expect("the CRDs").validate(&source);
    assert_eq!(reports.len(), 3);
    for report in reports {
        assert_eq!(report.result, ValidationResult::Valid, "{report:?}");
    }
}

#[test]
fn a_file_becomes_one_policy_for_every_node_with_a_gpu() {
    let text = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
    let imported = imported(text, &["--node-selector", "pool=gpu"]).expect("a policy");
    insta::assert_snapshot!(without_health(&imported.text), @r"
    # configuration of NVIDIA's device plugin
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: nvidia-device-plugin
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          pool: gpu
      gpuSelector:
        minCount: 1
      devicePlugin:
        resources:
        - name: nvidia.com/gpu
          allocation: Spread
          sharing:
            strategy: TimeSlicing
            replicas: 4
        deviceListStrategy:
        - Envvar
    ");
    assert_eq!(imported.warnings, [""; 0]);
}

#[test]
fn an_imported_configuration_is_one_that_the_agent_takes() {
    let text = "flags: {nvidiaDriverRoot: /opt/driver, migStrategy: single}";
    let imported = imported(text, &["-o", "agent-config"]).expect("a configuration");
    insta::assert_snapshot!(without_health(&imported.text), @r"
    # gpunode-agent run needs these flags besides --config: --driver-roots=/opt/driver,/run/nvidia/driver,/,/home/kubernetes/bin/nvidia
    # configuration of NVIDIA's device plugin
    mig:
      strategy: Single
    deviceListStrategy:
    - Envvar
    ");
    let config = gpunode_config::load(&imported.text).expect("a configuration");
    assert_eq!(config.health.expect("rules").ignore_xids, [109]);
    assert!(
        problem(MAP, &["-o", "agent-config"])
            .ends_with("choose one of its configurations with --config for -o agent-config")
    );
    assert!(super::tests::imported(MAP, &["-o", "agent-config", "--config", "a100"]).is_ok());
}

/// The chart's DaemonSet with a ConfigMap, as `helm template` renders it, without what the plugin does not read.
const DAEMONSET: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-device-plugin, namespace: nvidia-device-plugin}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: nvidia-device-plugin}}
  template:
    metadata: {labels: {app.kubernetes.io/name: nvidia-device-plugin}}
    spec:
      nodeSelector: {nvidia.com/gpu.present: 'true', pool: gpu}
      affinity: {nodeAffinity: {}}
      initContainers:
      - name: nvidia-device-plugin-init
        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0
        command: [config-manager]
        env:
        - {name: DEFAULT_CONFIG, value: a100}
        - {name: FALLBACK_STRATEGIES, value: 'named,single'}
      containers:
      - name: nvidia-device-plugin-sidecar
        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0
        command: [config-manager]
      - name: nvidia-device-plugin-ctr
        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0
        command: [nvidia-device-plugin]
        args: [--pass-device-specs]
        env:
        - {name: MPS_ROOT, value: /run/nvidia/mps}
        - {name: MIG_STRATEGY, value: single}
        - {name: DEVICE_LIST_STRATEGY, value: 'cdi-cri'}
        - {name: CONFIG_FILE, value: /config/config.yaml}
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - name: DP_DISABLE_HEALTHCHECKS
          valueFrom: {configMapKeyRef: {name: health, key: xids}}
";

#[test]
fn a_daemonsets_flags_and_environment_beat_the_file() {
    let (map, daemonset) = (temporary(MAP), temporary(DAEMONSET));
    let path = |file: &tempfile::NamedTempFile| file.path().to_string_lossy().into_owned();
    let (map, daemonset) = (path(&map), path(&daemonset));
    let imported = run(&[&map, "--from-daemonset", &daemonset], &["--config", "a100"]).expect("a policy");
    insta::assert_snapshot!(without_health(&imported.text), @r"
    # configuration a100 of NVIDIA's device plugin
    apiVersion: gpunode.dev/v1alpha1
    kind: GpuNodePolicy
    metadata:
      name: a100
    spec:
      mode: Preview
      nodeSelector:
        matchLabels:
          pool: gpu
        matchExpressions:
        - key: nvidia.com/device-plugin.config
          operator: NotIn
          values:
          - T4_shared
          - default
      gpuSelector:
        minCount: 1
      devicePlugin:
        resources:
        - name: nvidia.com/gpu
        mig:
          strategy: Single
        deviceListStrategy:
        - CdiCri
    ");
    assert_eq!(
        imported.warnings,
        [
            "DP_DISABLE_HEALTHCHECKS: its value comes from another object (valueFrom); add it to the file, or write it into the \
             manifest",
            "--pass-device-specs: NVIDIA's plugin passes no device nodes if every deviceListStrategy is one of CDI",
            "sharing.timeSlicing.resources[0].name: no device is nvidia.com/mig-1g.5gb under this migStrategy",
            "flags.failOnInitError: left out: the agent waits for the driver and says so in the node's status; set failOnInitError \
             to exit instead",
            "MPS_ROOT: gpunode keeps the files of its MPS daemons in a folder of its own; remove the old one after the move",
            "nodeSelector nvidia.com/gpu.present: not taken over; gpu-operator sets this label for the plugin, and may take it away",
            "affinity: not taken over; if it keeps the plugin from nodes with a GPU, select the others with --node-selector",
        ]
    );
    // Without a file: what the DaemonSet alone says.
    let alone = run(&["--from-daemonset", &daemonset], &["-o", "agent-config"]).expect("a configuration");
    insta::assert_snapshot!(without_health(&alone.text), @r"
    # configuration of NVIDIA's device plugin
    mig:
      strategy: Single
    deviceListStrategy:
    - CdiCri
    ");
    assert_eq!(
        alone.warnings[3],
        "the plugin reads /config/config.yaml, which is not taken over; name that file, or the ConfigMap that it comes from, as FILE"
    );
}

#[test]
fn a_plugin_without_config_manager_has_the_configuration_of_its_file_on_every_node() {
    let manifest = |file: &str| {
        format!(
            "
kind: DaemonSet
spec:
  selector: {{}}
  template:
    spec:
      containers:
      - name: plugin
        command: [nvidia-device-plugin, --config-file=/config/{file}]
"
        )
    };
    let map = temporary(
        "kind: ConfigMap\ndata: {default: 'version: v1', a100.yaml: 'sharing: {timeSlicing: {resources: [{name: gpu, replicas: 7}]}}'}",
    );
    let path = |file: &tempfile::NamedTempFile| file.path().to_string_lossy().into_owned();
    let daemonset = temporary(&manifest("a100.yaml"));
    let imported = run(&[&path(&map), "--from-daemonset", &path(&daemonset)], &[]).expect("policies");
    assert!(imported.text.contains("replicas: 7"), "{}", imported.text);
    assert!(
        !imported.text.contains("device-plugin.config") && imported.text.contains("minCount: 1"),
        "{}",
        imported.text
    );
    let daemonset = temporary(&manifest("config.yaml"));
    let error = run(&[&path(&map), "--from-daemonset", &path(&daemonset)], &[]).expect_err("no such key");
    assert!(
        format!("{error:#}").contains(
            "the DaemonSet has no config-manager, and its plugin reads /config/config.yaml; name the key of that file with --config: a100.yaml, default"
        ),
        "{error:#}"
    );
}

#[test]
fn the_daemonset_of_gpu_operator_is_read() {
    let manifest = "
kind: DaemonSet
spec:
  selector: {}
  template:
    spec:
      nodeSelector: {nvidia.com/gpu.deploy.device-plugin: 'true'}
      containers:
      - name: nvidia-device-plugin
        command: [/bin/sh, -c]
        args: [/bin/entrypoint.sh]
        env: [{name: MIG_STRATEGY, value: single}, {name: CONFIG_FILE, value: /config/config.yaml}, {name: MPS_ROOT, value: /run/nvidia/mps}]
      - name: config-manager
        command: [config-manager]
        env: [{name: FALLBACK_STRATEGIES, value: empty}, {name: NODE_LABEL, value: example.com/config}]
";
    let (map, daemonset) = (temporary(MAP), temporary(manifest));
    let path = |file: &tempfile::NamedTempFile| file.path().to_string_lossy().into_owned();
    let imported = run(&[&path(&map), "--from-daemonset", &path(&daemonset)], &[]).expect("policies");
    assert_eq!(
        imported.text.matches("strategy: Single").count(),
        4,
        "{}",
        imported.text
    );
    assert!(
        !imported.text.contains("gpu.deploy") && !imported.text.contains("device-plugin.config"),
        "{}",
        imported.text
    );
    // That of nodes without the label.
    let empty = imported.text.split("---\n").last().unwrap_or_default();
    assert!(
        empty.contains("  name: empty\n") && empty.contains("    - key: example.com/config\n      operator: NotIn\n"),
        "{empty}"
    );
    for told in [
        "entrypoint.sh: gpu-operator's script",
        "nodeSelector nvidia.com/gpu.deploy.device-plugin",
    ] {
        let is_told = imported.warnings.iter().any(|warning| warning.contains(told));
        assert!(is_told, "{told}: {:?}", imported.warnings);
    }
}

#[test]
fn paths_that_one_operator_cannot_have_are_refused() {
    let map = "{kind: ConfigMap, data: {a: 'flags: {nvidiaDevRoot: /a}', b: ''}}";
    assert_eq!(
        problem(map, &[]),
        "import FILE: its configurations need --dev-root=/a and --dev-root=/, and an operator has one of them for all nodes; \
         import one at a time"
    );
    assert!(imported(map, &["--config", "a"]).is_ok());
}

#[test]
fn what_the_plugin_ignores_is_refused_with_strict() {
    let text = "flags: {migStrategie: single, failOnInitError: true}";
    assert_eq!(
        problem(text, &["--strict"]),
        "import FILE: NVIDIA's plugin ignores what follows; remove it, or import without --strict\n  flags.migStrategie: unknown \
         field; did you mean `migStrategy`?"
    );
    assert!(
        imported("flags: {failOnInitError: true}", &["--strict"]).is_ok(),
        "this the plugin follows"
    );
}

#[test]
fn what_cannot_be_imported_says_why() {
    for (text, arguments, expected) in [
        (
            "kind: Pod",
            &[][..],
            "it is a Pod; name the plugin's file or its ConfigMap, and a DaemonSet with --from-daemonset",
        ),
        ("kind: ConfigMap", &[], "the ConfigMap has no data"),
        (
            MAP,
            &["--config", "none"],
            "it has no configuration none; it has T4_shared, a100, default",
        ),
        (
            "{}",
            &["--config", "none"],
            "it has no configuration none; it has no named ones",
        ),
        (
            MAP,
            &["--default-config", "none"],
            "it has no configuration none, which is the default; it has T4_shared, a100, default",
        ),
        (
            "{kind: ConfigMap, data: {a b: '', default: ''}}",
            &[],
            "configuration `a b`: its name cannot be the value of the label nvidia.com/device-plugin.config, so no node can have it",
        ),
        (
            "{kind: ConfigMap, data: {a: 'version: v2', b: ''}}",
            &[],
            "configuration a: version: only v1 is known",
        ),
        ("a: [", &[], "it is not YAML: did not find expected node content"),
    ] {
        let told = problem(text, arguments);
        assert!(told.contains(expected), "{text}: {told}");
    }
    let unclear = imported("{kind: ConfigMap, data: {a: '', b: ''}}", &[]).expect("policies");
    assert_eq!(
        unclear.warnings,
        [
            "no configuration is the default, so nodes without the label that names one get none; name it with --default-config"
        ]
    );
    let only = imported("{kind: ConfigMap, data: {a: ''}}", &[]).expect("a policy");
    assert!(
        only.text.contains("minCount: 1") && !only.text.contains("device-plugin.config"),
        "{}",
        only.text
    );
    for (manifest, expected) in [
        (
            "kind: Deployment",
            "it is a Deployment; name the DaemonSet of NVIDIA's device plugin or one of its pods",
        ),
        (
            "a: 1",
            "it has no kind; name the DaemonSet of NVIDIA's device plugin or one of its pods",
        ),
        ("{kind: DaemonSet}", "the DaemonSet has no spec.template.spec"),
        (
            "{kind: Pod, spec: {containers: [{name: a}, {name: b}]}}",
            "none of its containers runs nvidia-device-plugin",
        ),
        (
            "{kind: Pod, spec: {containers: [{name: a, args: [--colour]}]}}",
            "--colour: is no flag of NVIDIA's device plugin 0.20",
        ),
    ] {
        let file = temporary(manifest);
        let path = file.path().to_string_lossy().into_owned();
        let told = format!(
            "{:#}",
            run(&["--from-daemonset", &path], &[]).expect_err("it is no plugin")
        );
        assert!(told.contains(expected), "{manifest}: {told}");
    }
}

#[test]
fn what_the_api_server_would_refuse_is_refused_with_the_field() {
    let many: Vec<String> = (0..66).map(|at| format!("  c{at}: 'version: v1'")).collect();
    let many = many.join("\n");
    let map =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n  default: 'version: v1'\n{many}");
    let refused = problem(&map, &[]);
    assert!(
        refused.contains("policy default: spec.nodeSelector.matchExpressions[0].values: "),
        "{refused}"
    );
    let refused = problem("version: v1", &["--node-selector", "no label=a"]);
    assert!(refused.contains("spec.nodeSelector"), "{refused}");
}

#[test]
fn options_that_choose_nothing_are_refused_or_noted() {
    let refused = problem("version: v1", &["--default-config", "a"]);
    assert_eq!(
        refused,
        "import FILE: it is one configuration, and --default-config chooses one of a ConfigMap"
    );
    let refused = problem("version: v1", &["-o", "agent-config", "--node-selector", "pool=a"]);
    assert!(refused.contains("--node-selector is for policies"), "{refused}");
    let daemonset = temporary(
        "kind: DaemonSet\nspec:\n  template:\n    spec:\n      nodeSelector: {pool: a}\n      containers:\n      - {name: a, command: [nvidia-device-plugin], env: [{name: CONFIG_FILE, value: /config/config.yaml}]}\n      - {name: b, command: [config-manager]}\n",
    );
    let path = daemonset.path().to_string_lossy().into_owned();
    let noted = imported("version: v1", &["--from-daemonset", &path, "-o", "agent-config"])
        .expect("a configuration")
        .warnings;
    for text in [
        "nodeSelector: not taken over",
        "config-manager: the plugin of this DaemonSet gets",
    ] {
        assert!(noted.iter().any(|warning| warning.starts_with(text)), "{noted:?}");
    }
}
