//! The move from NVIDIA's gpu-operator and back, step by step as `docs/from-gpu-operator.md` has it, with the commands of that page.
//! A device plugin of the tests serves while the pod of the operator's plugin runs.

use crate::{
    faults::allocates_a_gpu,
    samples,
    staying_up::{await_served_by_another, await_served_by_another_no_more, device_plugins, replicas, runtime},
};
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{GpuOperator, Lab, T4, V100, page_commands, with_match_expressions};
use gpunode_node_tests::OtherPlugin;
use serde_json::json;
use std::fs;

const PAGE: &str = "from-gpu-operator.md";
const GPU: &str = "nvidia.com/gpu";
const UNITS: u64 = 16;
const DEPLOY: &str = "nvidia.com/gpu.deploy.device-plugin";

const GET_CONFIG: &str = "kubectl get clusterpolicies -o jsonpath='{.items[*].spec.devicePlugin.config}'";
const GET_DAEMONSET: &str =
    "kubectl -n gpu-operator get daemonset nvidia-device-plugin-daemonset -o yaml > plugin.yaml";
const GET_CONFIGS: &str = "kubectl -n gpu-operator get configmap device-plugin-configs -o yaml > configs.yaml";
const IMPORT: &str = "kubectl gpunode import nvidia-plugin configs.yaml --from-daemonset plugin.yaml > policies.yaml";
const LIST_NODES: &str = "kubectl get nodes -L nvidia.com/gpu.workload.config,nvidia.com/gpu.deploy.device-plugin";
const APPLY: &str = "kubectl apply -f policies.yaml";
const PLAN: &str = "kubectl gpunode plan -f policies.yaml";
const SWITCH_OFF: &str = "kubectl label node gpu-v100 --overwrite nvidia.com/gpu.deploy.device-plugin=false";
const STATUS: &str = "kubectl gpunode status gpu-v100";
const DOCTOR: &str = "kubectl gpunode doctor gpu-v100";
const DISABLE: &str =
    r#"kubectl patch clusterpolicy cluster-policy --type=merge -p '{"spec":{"devicePlugin":{"enabled":false}}}'"#;
const AWAIT_END: &str =
    "kubectl -n gpu-operator wait --for=delete daemonset/nvidia-device-plugin-daemonset --timeout=10m";
const MARK: &str = "kubectl label node -l nvidia.com/gpu.deploy.device-plugin=false example.com/gpunode=off";
const LABEL_BACK: &str = "kubectl label node -l 'nvidia.com/gpu.deploy.device-plugin=false,example.com/gpunode!=off' \
                          --overwrite nvidia.com/gpu.deploy.device-plugin=true";
const DELETE: &str = "kubectl delete -f policies.yaml";
const ENABLE: &str =
    r#"kubectl patch clusterpolicy cluster-policy --type=merge -p '{"spec":{"devicePlugin":{"enabled":true}}}'"#;

/// Every command of the page, in its order. The test below runs each of them.
const COMMANDS: [&str; 18] = [
    GET_CONFIG,
    GET_DAEMONSET,
    GET_CONFIGS,
    IMPORT,
    LIST_NODES,
    MARK,
    APPLY,
    PLAN,
    APPLY,
    SWITCH_OFF,
    STATUS,
    DOCTOR,
    DISABLE,
    AWAIT_END,
    LABEL_BACK,
    DELETE,
    LABEL_BACK,
    ENABLE,
];

/// Configurations of the ConfigMap, which become policies of the same names.
const POLICIES: [&str; 2] = ["default", "whole"];

#[test]
fn every_command_of_the_page_is_run() -> Result<()> {
    assert_eq!(page_commands(PAGE)?, COMMANDS);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_moves_from_gpu_operators_plugin_with_its_pods_and_back() -> Result<()> {
    let lab = Lab::enter()?;
    let folder = tempfile::tempdir().context("create a folder")?;
    let run = |command: &str| lab.shell(folder.path(), &command.replace("gpu-v100", T4));
    // No plan tells what a node offers before a plugin leaves.
    let unplanned = |command: &str| {
        let [first, second] = POLICIES;
        lab.unplanned(first, || lab.unplanned(second, || run(command)))
    };
    let policies = folder.path().join("policies.yaml");
    let sliced = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n";
    let configurations = json!({"default": sliced, "whole": "version: v1\n"});
    let operator = GpuOperator::install_device_plugin(&lab, T4, &configurations)?;
    let runtime = runtime()?;
    let plugins = device_plugins(&lab)?;
    let serve = || runtime.block_on(OtherPlugin::register_ids(&plugins, GPU, &replicas(&lab)?));
    let serving = serve()?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    lab.apply(&samples::holding("held", "inference", 2, GPU, 1))?;
    let held = lab.await_running("held", 2)?;

    let config = run(GET_CONFIG)?;
    ensure!(config.contains("device-plugin-configs"), "{config}");
    for command in [GET_DAEMONSET, GET_CONFIGS, IMPORT] {
        run(command)?;
    }
    let nodes = run(LIST_NODES)?;
    let is_labelled = |line: &str| line.starts_with(T4) && line.ends_with("true");
    ensure!(nodes.lines().any(|line| is_labelled(line.trim_end())), "{nodes}");
    // A node that never ran the plugin.
    lab.kubectl(&["label", "node", V100, &format!("{DEPLOY}=false")])?;
    run(MARK)?;
    let preview = fs::read_to_string(&policies).context("read the policies")?;
    ensure!(preview.matches("  mode: Preview\n").count() == 2, "{preview}");
    let preview = with_match_expressions(PAGE, &preview)?;
    fs::write(&policies, &preview).context("write the policies")?;
    unplanned(APPLY)?;
    let planned = lab.try_shell(folder.path(), PLAN)?;
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    ensure!(
        text.contains("node gpu-t4") && text.contains("4 replicas per GPU"),
        "{planned:?}"
    );

    fs::write(&policies, preview.replace("  mode: Preview\n", "")).context("write the policies")?;
    unplanned(APPLY)?;
    await_served_by_another(&lab)?;
    assert_eq!(lab.allocatable(T4, GPU)?, UNITS, "gpunode waits");

    run(SWITCH_OFF)?;
    operator.await_pods(0, 0)?;
    drop(serving);
    await_served_by_another_no_more(&lab)?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    lab.await_ready("default")?;
    for (node, is_selected) in [(T4, true), (V100, false), ("cpu", false)] {
        let labels = lab.node(node)?["metadata"]["labels"].clone();
        let has_policy = labels.get("gpunode.dev/policy.default").is_some();
        assert_eq!(has_policy, is_selected, "{node}: {labels}");
    }
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their GPUs");
    let status = run(STATUS)?;
    ensure!(held.iter().all(|pod| status.contains(pod.as_str())), "{status}");
    // Exit code 1 says that there is something to mend, and also that the command failed.
    let found = lab.try_shell(folder.path(), &DOCTOR.replace("gpu-v100", T4))?;
    ensure!(
        String::from_utf8_lossy(&found.stdout).contains("580.95.05"),
        "{found:?}"
    );
    run(DISABLE)?;
    // As gpu-operator does.
    operator.stop()?;
    run(AWAIT_END)?;
    run(LABEL_BACK)?;
    allocates_a_gpu(&lab, "after-gpu-operator")?;

    unplanned(DELETE)?;
    lab.await_nothing_owned()?;
    lab.await_allocatable(T4, GPU, 0)?;
    // A node that was not labelled back before.
    run(SWITCH_OFF)?;
    run(LABEL_BACK)?;
    run(ENABLE)?;
    operator.start_device_plugin()?;
    operator.await_pods(0, 1)?;
    let _serving = serve()?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their GPUs");
    assert_eq!(lab.node(V100)?["metadata"]["labels"][DEPLOY], "false", "it stays off");
    Ok(())
}
