//! The move from NVIDIA's mig-manager, step by step as `docs/from-mig-manager.md` has it, with the commands of that page.
//!
//! On the cluster of `mig.yaml`, whose names stand in the place of the page's.

use anyhow::{Context, Result, ensure};
use gpunode_config::{MigGroup, mig_parted_layouts};
use gpunode_e2e::{GpuOperator, Lab, MIG_A100, MIG_H100, MigDevices, eventually, page_commands};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);
const PAGE: &str = "from-mig-manager.md";

const GET_FILE: &str =
    "kubectl -n gpu-operator get configmap default-mig-parted-config -o jsonpath='{.data.config\\.yaml}' > config.yaml";
const IMPORT: &str = "kubectl gpunode import mig-parted config.yaml > policies.yaml";
const LIST_NODES: &str = "kubectl get nodes -L nvidia.com/mig.config";
const IMPORT_LAYOUT: &str = "kubectl gpunode import mig-parted config.yaml --config all-1g.10gb -o layout";
const APPLY: &str = "kubectl apply -f policies.yaml";
const STOP: &str = "kubectl label node -l pool=mig --overwrite nvidia.com/gpu.deploy.mig-manager=false";
const FORGET: &str = "kubectl label node -l pool=mig nvidia.com/mig.config.state-";
const PLAN: &str = "kubectl gpunode plan -f policies.yaml";
const PLUGIN_OFF: &str = "kubectl label node -l pool=mig --overwrite nvidia.com/gpu.deploy.device-plugin=false";
const STATUS: &str = "kubectl gpunode status gpu-a100";
const EXPORT: &str = "kubectl gpunode export mig gpu-a100";
const EXPORT_FILE: &str = "kubectl gpunode export mig gpu-a100 -o mig-parted";
const START: &str = "kubectl label node -l pool=mig --overwrite nvidia.com/gpu.deploy.mig-manager=true nvidia.com/gpu.deploy.device-plugin=true";

/// Every command of the page, in its order. The tests below run each of them.
const COMMANDS: [&str; 14] = [
    GET_FILE,
    IMPORT,
    LIST_NODES,
    IMPORT_LAYOUT,
    APPLY,
    STOP,
    FORGET,
    PLAN,
    PLUGIN_OFF,
    APPLY,
    STATUS,
    EXPORT,
    EXPORT_FILE,
    START,
];

/// Configuration of the node, and the policy that it becomes.
const CONFIG: &str = "a100-pool";

/// A file of mig-parted with filters for every A100 of 80 GB, as NVIDIA's own has them. The V100 of the node is in none of them.
const FILE: &str = r#"version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.10gb:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x20F310DE", "0x20F510DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      "1g.10gb": 7
  a100-pool:
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x20F310DE", "0x20F510DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      "3g.40gb": 2
  - device-filter: ["0x20B210DE", "0x20B510DE", "0x20F310DE", "0x20F510DE"]
    devices: [0]
    mig-enabled: true
    mig-devices:
      "1g.10gb": 2
      "3g.40gb": 1
"#;

/// A command of the page for a pool of the cluster.
fn of_pool(command: &str, pool: &str) -> String {
    command
        .replace("pool=mig", &format!("pool={pool}"))
        .replace("gpu-a100", MIG_A100)
}

/// Runs a command of the page for the node.
fn run(lab: &Lab, folder: &Path, command: &str) -> Result<String> {
    lab.shell(folder, &of_pool(command, MIG_A100))
}

/// Instances of each A100 by index, in a layout that selects by index or not at all.
fn instances(layout: &[MigGroup]) -> Vec<BTreeMap<String, i32>> {
    let of_gpu = |index: i32| {
        let selects = |group: &&MigGroup| {
            let indices = group.devices.as_ref().and_then(|devices| devices.indices.as_ref());
            indices.is_none_or(|indices| indices.contains(&index))
        };
        let group = layout.iter().find(selects);
        group.and_then(|group| group.instances.clone()).unwrap_or_default()
    };
    [0, 1].map(of_gpu).to_vec()
}

/// Instances that a document of an agent's configuration wants.
fn instances_of(document: &str) -> Result<Vec<BTreeMap<String, i32>>> {
    let config = gpunode_config::load(document)?;
    Ok(instances(&config.mig.context("there is no layout")?.layout))
}

/// UUIDs of the devices of a profile.
fn of_profile(devices: &MigDevices, profile: &str) -> BTreeSet<String> {
    let of_profile = devices.iter().filter(|(_, (name, _))| name == profile);
    of_profile.map(|(uuid, _)| uuid.clone()).collect()
}

/// MIG devices of both A100.
fn devices(lab: &Lab) -> Result<[MigDevices; 2]> {
    Ok([lab.mig_devices(MIG_A100, 0)?, lab.mig_devices(MIG_A100, 1)?])
}

/// Waits until a policy says that mig-manager keeps it from these nodes, which have no configuration.
fn is_kept_away(lab: &Lab, policy: &str, nodes: &[&str]) -> Result<()> {
    eventually(&format!("mig-manager keeps policy {policy} away"), LIMIT, || {
        let status = lab.get(&["gpunodepolicy", policy])?["status"].clone();
        let failures = status["failures"].as_array().into_iter().flatten();
        let by_mig_manager = failures.filter(|failure| {
            failure["reason"] == "MigManager"
                && failure["message"]
                    .to_string()
                    .contains("nvidia.com/gpu.deploy.mig-manager=false")
        });
        let kept: Vec<_> = by_mig_manager.filter_map(|failure| failure["node"].as_str()).collect();
        ensure!(kept == nodes, "its status is {status}");
        Ok(())
    })?;
    for node in nodes {
        let spec = lab.get(&["gpunode", node])?["spec"].clone();
        ensure!(spec.get("config").is_none(), "{node} has a configuration: {spec}");
        let labels = lab.node(node)?["metadata"]["labels"].clone();
        ensure!(labels["gpunode.dev/governed"].is_null(), "its labels are {labels}");
    }
    Ok(())
}

#[test]
fn every_command_of_the_page_is_run() -> Result<()> {
    assert_eq!(page_commands(PAGE)?, COMMANDS);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_moves_from_mig_manager_with_its_instances_and_back() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    // On the second GPU mig-manager has stopped halfway.
    let gpu_operator = GpuOperator::install(&lab, MIG_A100, CONFIG, FILE)?;
    let first = lab.divide(MIG_A100, 0, &[("3g.40gb", 4), ("1g.10gb", 0), ("1g.10gb", 1)])?;
    let second = lab.divide(MIG_A100, 1, &[("3g.40gb", 4), ("1g.10gb", 0)])?;
    let before = [first.clone(), second.clone()];

    // Import the configurations.
    run(&lab, folder, GET_FILE)?;
    ensure!(
        fs::read_to_string(folder.join("config.yaml"))? == FILE,
        "the file is another one"
    );
    run(&lab, folder, IMPORT)?;
    let imported = fs::read_to_string(folder.join("policies.yaml"))?;
    let policies: Vec<&str> = imported.split("---\n").collect();
    ensure!(
        policies.len() == 3 && policies.iter().all(|policy| policy.contains("\n  mode: Preview\n")),
        "{imported}"
    );
    let nodes = run(&lab, folder, LIST_NODES)?;
    let mut lines = nodes.lines();
    ensure!(
        lines.any(|line| line.starts_with(MIG_A100) && line.ends_with(CONFIG)),
        "{nodes}"
    );
    let selector = format!("nvidia.com/mig.config: {CONFIG}\n");
    let kept = policies.into_iter().find(|policy| policy.contains(&selector));
    let preview = kept.context("find the policy of the node")?;
    fs::write(folder.join("policies.yaml"), preview)?;
    let small = instances_of(&run(&lab, folder, IMPORT_LAYOUT)?)?;
    ensure!(small.iter().all(|gpu| gpu["1g.10gb"] == 7), "{small:?}");
    let enforced = preview.replace("  mode: Preview\n", "");
    let apply = |policies: &str| {
        fs::write(folder.join("policies.yaml"), policies)?;
        lab.unplanned(CONFIG, || run(&lab, folder, APPLY))
    };

    // Whoever does not stop mig-manager first changes nothing.
    apply(&enforced)?;
    is_kept_away(&lab, CONFIG, &[MIG_A100])?;
    assert_eq!(devices(&lab)?, before);
    lab.kubectl(&["delete", "gpunodepolicy", CONFIG, "--timeout=60s"])?;

    // Move the nodes.
    apply(preview)?;
    run(&lab, folder, STOP)?;
    gpu_operator.await_mig_managers(0)?;
    let plan = run(&lab, folder, PLAN)?;
    let changes: Vec<&str> = plan
        .lines()
        .filter(|line| line.contains("goes") || line.contains("comes"))
        .collect();
    let [change] = changes.try_into().map_err(|_| anyhow::anyhow!("the plan is {plan}"))?;
    ensure!(
        change.contains("GPU 1: ") && change.contains("(goes 1 x 1g.10gb; comes 1 x 3g.40gb)"),
        "{plan}"
    );
    let spec = lab.get(&["gpunode", MIG_A100])?["spec"].clone();
    ensure!(spec.get("config").is_none(), "a preview gives no configuration: {spec}");
    assert_eq!(devices(&lab)?, before);
    run(&lab, folder, PLUGIN_OFF)?;
    apply(&enforced)?;

    assert_eq!(
        lab.await_layout(MIG_A100, 0, "1g.10gb:2,3g.40gb:1")?,
        first,
        "the UUIDs are the same"
    );
    let halves = lab.await_layout(MIG_A100, 1, "3g.40gb:2")?;
    let half = of_profile(&second, "3g.40gb");
    ensure!(
        halves.len() == 2 && half.is_subset(&of_profile(&halves, "3g.40gb")),
        "the half that was there stays: {second:?}, {halves:?}"
    );
    for (resource, count) in [
        ("nvidia.com/mig-3g.40gb", 3),
        ("nvidia.com/mig-1g.10gb", 2),
        ("nvidia.com/gpu", 1),
    ] {
        lab.await_allocatable(MIG_A100, resource, count)?;
    }
    lab.await_ready(CONFIG)?;
    let status = run(&lab, folder, STATUS)?;
    let applied = |layout: &str| {
        status
            .lines()
            .any(|line| line.contains("Applied") && line.contains(layout))
    };
    ensure!(applied("1g.10gb:2,3g.40gb:1") && applied("3g.40gb:2"), "{status}");
    let wanted = instances(&mig_parted_layouts(FILE)?[CONFIG]);
    assert_eq!(instances_of(&run(&lab, folder, EXPORT)?)?, wanted);

    // Go back.
    let file = run(&lab, folder, EXPORT_FILE)?;
    assert_eq!(instances(&mig_parted_layouts(&file)?["current"]), wanted);
    lab.kubectl(&["delete", "gpunodepolicy", CONFIG, "--timeout=60s"])?;
    lab.await_nothing_owned()?;
    run(&lab, folder, START)?;
    gpu_operator.await_mig_managers(1)?;
    assert_eq!(devices(&lab)?, [first, halves], "the instances stay");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_label_that_mig_manager_leaves_behind_keeps_a_layout_away_until_it_is_removed() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let folder = tempfile::tempdir()?;
    lab.kubectl(&[
        "label",
        "node",
        "-l",
        "pool=mig-h100",
        "nvidia.com/mig.config.state=success",
    ])?;
    lab.put_layout(
        "mig-h100",
        "{mig: {strategy: Mixed, layout: [{instances: {7g.80gb: 1}}]}}",
    )?;
    is_kept_away(&lab, "sharing", &MIG_H100)?;
    lab.shell(folder.path(), &of_pool(FORGET, "mig-h100"))?;
    for node in MIG_H100 {
        lab.await_layout(node, 0, "7g.80gb:1")?;
    }
    lab.await_ready("sharing").map(drop)
}
