//! The move from NVIDIA's device plugin and back, step by step as `docs/from-nvidia-device-plugin.md` has it, with the commands of
//! that page. A DaemonSet whose pods do nothing stands for the plugin's, and a device plugin of the tests serves while its pod runs.

use crate::{
    faults::allocates_a_gpu,
    samples,
    staying_up::{await_served_by_another, await_served_by_another_no_more, device_plugins, replicas, runtime},
};
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{
    Lab, T4, eventually, manifest, names, nvidia_plugin_daemonset, page_commands, page_file, with_match_expressions,
};
use gpunode_node_tests::OtherPlugin;
use serde_json::json;
use std::{fs, time::Duration};
use tempfile::TempDir;

const PAGE: &str = "from-nvidia-device-plugin.md";
const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const NAMESPACE: &str = "nvidia-device-plugin";
const UNITS: u64 = 16;

const GET_DAEMONSET: &str = "kubectl -n nvidia-device-plugin get daemonset nvidia-device-plugin -o yaml > plugin.yaml";
const GET_CONFIGS: &str =
    "kubectl -n nvidia-device-plugin get configmap nvidia-device-plugin-configs -o yaml > configs.yaml";
const IMPORT: &str = "kubectl gpunode import nvidia-plugin configs.yaml --from-daemonset plugin.yaml > policies.yaml";
const APPLY: &str = "kubectl apply -f policies.yaml";
const PLAN: &str = "kubectl gpunode plan -f policies.yaml";
const LIST: &str = "kubectl get gpunodes";
const FIND: &str = "kubectl get daemonsets -A | grep nvidia-device-plugin";
const LABEL: &str = "kubectl label node -l nvidia.com/gpu.count example.com/nvidia-plugin=on";
const LIST_PODS: &str = "kubectl -n nvidia-device-plugin get pods -o wide";
const LIST_LABELLED: &str = "kubectl get nodes -l example.com/nvidia-plugin=on";
const TAKE_OFF: &str = "kubectl label node gpu-v100 example.com/nvidia-plugin-";
const SWITCH: &str = "kubectl -n nvidia-device-plugin patch daemonset nvidia-device-plugin --type=merge \
                        --patch-file=off.yaml";
const STATUS: &str = "kubectl gpunode status gpu-v100";
const DOCTOR: &str = "kubectl gpunode doctor gpu-v100";
const DELETE_PLUGIN: &str = "kubectl -n nvidia-device-plugin delete daemonset nvidia-device-plugin";
const LEAVE: &str = "kubectl label node gpu-v100 example.com/gpunode=off";
const AWAIT_END: &str =
    r"kubectl wait node/gpu-v100 --for=jsonpath='{.status.allocatable.nvidia\.com/gpu}'=0 --timeout=3m";
const PUT_ON: &str = "kubectl label node gpu-v100 example.com/nvidia-plugin=on";
const DELETE: &str = "kubectl delete -f policies.yaml";

/// Every command of the page, in its order. The test below runs each of them.
const COMMANDS: [&str; 21] = [
    FIND,
    GET_DAEMONSET,
    GET_CONFIGS,
    IMPORT,
    LABEL,
    LIST_PODS,
    LIST_LABELLED,
    SWITCH,
    APPLY,
    PLAN,
    APPLY,
    LIST,
    TAKE_OFF,
    STATUS,
    DOCTOR,
    DELETE_PLUGIN,
    APPLY,
    LEAVE,
    AWAIT_END,
    PUT_ON,
    DELETE,
];

/// Configurations of the ConfigMap, which become policies of the same names.
const POLICIES: [&str; 2] = ["default", "whole"];

/// NVIDIA's device plugin on the T4 node, which is removed when this is dropped.
struct NvidiaPlugin<'a> {
    lab: &'a Lab,
}

impl<'a> NvidiaPlugin<'a> {
    fn install(lab: &'a Lab) -> Result<Self> {
        let plugin = Self { lab };
        let sliced = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n";
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"default": sliced, "whole": "version: v1\n"},
                "metadata": {"name": "nvidia-device-plugin-configs", "namespace": NAMESPACE}}),
            nvidia_plugin_daemonset(NAMESPACE, "nvidia-device-plugin", &json!({"pool": "inference"})),
        ];
        lab.apply(&manifest(&objects))?;
        plugin.await_pods(1)?;
        Ok(plugin)
    }

    fn pods(&self) -> Result<Vec<String>> {
        let selector = ["-n", NAMESPACE, "--field-selector", "status.phase=Running"];
        Ok(names(&self.lab.get(&[&["pods"], &selector[..]].concat())?))
    }

    fn await_pods(&self, count: usize) -> Result<()> {
        self.lab.await_pods(NAMESPACE, "nvidia-device-plugin", count)?;
        eventually("its pods run", LIMIT, || {
            let running = self.pods()?;
            ensure!(running.len() == count, "{running:?} run");
            Ok(())
        })
    }
}

impl Drop for NvidiaPlugin<'_> {
    fn drop(&mut self) {
        self.lab.remove_after_test(&["namespace", NAMESPACE]);
    }
}

/// Applies both policies. Before a plugin leaves, no plan tells what the node offers.
fn apply(lab: &Lab, folder: &TempDir) -> Result<()> {
    let [first, second] = POLICIES;
    let both = || lab.unplanned(second, || lab.shell(folder.path(), APPLY));
    lab.unplanned(first, both).map(drop)
}

#[test]
fn every_command_of_the_page_is_run() -> Result<()> {
    assert_eq!(page_commands(PAGE)?, COMMANDS);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_moves_from_nvidias_plugin_with_its_pods_and_back() -> Result<()> {
    let lab = Lab::enter()?;
    let folder = tempfile::tempdir().context("create a folder")?;
    let run = |command: &str| lab.shell(folder.path(), &command.replace("gpu-v100", T4));
    let policies = folder.path().join("policies.yaml");
    let plugin = NvidiaPlugin::install(&lab)?;
    let runtime = runtime()?;
    let plugins = device_plugins(&lab)?;
    let serve = || runtime.block_on(OtherPlugin::register_ids(&plugins, GPU, &replicas(&lab)?));
    let serving = serve()?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    lab.apply(&samples::holding("held", "inference", 2, GPU, 1))?;
    let held = lab.await_running("held", 2)?;

    for command in [
        FIND,
        GET_DAEMONSET,
        GET_CONFIGS,
        IMPORT,
        LABEL,
        LIST_PODS,
        LIST_LABELLED,
    ] {
        run(command)?;
    }
    fs::write(folder.path().join("off.yaml"), page_file(PAGE, "off.yaml")?).context("write off.yaml")?;
    let pods = plugin.pods()?;
    run(SWITCH)?;
    let preview = fs::read_to_string(&policies).context("read the policies")?;
    ensure!(
        preview.matches("  mode: Preview\n").count() == 2 && preview.matches("      pool: inference\n").count() == 2,
        "{preview}"
    );
    apply(&lab, &folder)?;
    let planned = lab.try_shell(folder.path(), PLAN)?;
    let text = String::from_utf8_lossy(&planned.stdout).into_owned();
    ensure!(
        text.contains("node gpu-t4") && text.contains("4 replicas per GPU"),
        "{planned:?}"
    );

    fs::write(&policies, preview.replace("  mode: Preview\n", "")).context("write the policies")?;
    apply(&lab, &folder)?;
    await_served_by_another(&lab)?;
    eventually("the list says who serves the node", LIMIT, || {
        let listed = run(LIST)?;
        let of_node = listed.lines().find(|line| line.starts_with(T4)).unwrap_or_default();
        ensure!(of_node.contains("ServedByAnother"), "{listed}");
        Ok(())
    })?;
    assert_eq!(lab.allocatable(T4, GPU)?, UNITS, "gpunode waits");

    assert_eq!(plugin.pods()?, pods, "the switch replaces no pod");
    run(TAKE_OFF)?;
    plugin.await_pods(0)?;
    drop(serving);
    await_served_by_another_no_more(&lab)?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    lab.await_ready("default")?;
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their GPUs");
    let status = run(STATUS)?;
    ensure!(
        status.contains("default") && held.iter().all(|pod| status.contains(pod.as_str())),
        "the status lacks pods that hold shares: {status}"
    );
    // Exit code 1 says that there is something to mend, and also that the command failed.
    let found = lab.try_shell(folder.path(), &DOCTOR.replace("gpu-v100", T4))?;
    ensure!(
        String::from_utf8_lossy(&found.stdout).contains("580.95.05"),
        "{found:?}"
    );
    allocates_a_gpu(&lab, "after-nvidias-plugin")?;

    // Back on this node alone, and away again.
    let enforced = fs::read_to_string(&policies).context("read the policies")?;
    fs::write(&policies, with_match_expressions(PAGE, &enforced)?).context("write the policies")?;
    apply(&lab, &folder)?;
    run(LEAVE)?;
    run(AWAIT_END)?;
    run(PUT_ON)?;
    plugin.await_pods(1)?;
    let serving = serve()?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their GPUs");
    run("kubectl label node gpu-v100 example.com/gpunode-")?;
    await_served_by_another(&lab)?;
    run(TAKE_OFF)?;
    plugin.await_pods(0)?;
    drop(serving);
    lab.await_allocatable(T4, GPU, UNITS)?;
    lab.await_ready("default")?;
    run(DELETE_PLUGIN)?;

    let [first, second] = POLICIES;
    lab.unplanned(first, || lab.unplanned(second, || run(DELETE)))?;
    lab.await_nothing_owned()?;
    let listed = run(LIST)?;
    // The namespace of a holder has the name of one of them.
    let has_policy = |line: &str| line.split_whitespace().any(|word| POLICIES.contains(&word));
    ensure!(!listed.lines().any(has_policy), "{listed}");
    lab.await_allocatable(T4, GPU, 0)?;
    // Without the switch.
    let _plugin = NvidiaPlugin::install(&lab)?;
    let _serving = serve()?;
    lab.await_allocatable(T4, GPU, UNITS)?;
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their GPUs");
    Ok(())
}
