//! The move from NVIDIA's mig-manager and back, step by step as `docs/from-mig-manager.md` has it, with the commands of that page.
//!
//! On the cluster of `mig.yaml`, whose names stand in the place of the page's.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_config::{MigGroup, mig_parted_layouts};
use gpunode_e2e::{GpuOperator, Lab, MIG_A100, MIG_H100, MigDevices, eventually, of_profile, page_commands};
use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Duration};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_mins(3);
const PAGE: &str = "from-mig-manager.md";

const FILE_NAME: &str = "kubectl get clusterpolicies -o jsonpath='{.items[*].spec.migManager.config.name}'";
const GET_FILE: &str =
    "kubectl -n gpu-operator get configmap default-mig-parted-config -o jsonpath='{.data.config\\.yaml}' > config.yaml";
const STRATEGY: &str = "kubectl get clusterpolicies -o jsonpath='{.items[*].spec.mig.strategy}'";
const IMPORT: &str = "kubectl gpunode import mig-parted config.yaml > policies.yaml";
const LIST_NODES: &str = "kubectl get nodes -L nvidia.com/mig.config";
const IMPORT_LAYOUT: &str = "kubectl gpunode import mig-parted config.yaml --config all-1g.10gb -o layout";
const APPLY: &str = "kubectl apply -f policies.yaml";
const STOP: &str = "kubectl label node gpu-a100 --overwrite nvidia.com/gpu.deploy.mig-manager=false";
const PLAN: &str = "kubectl gpunode plan -f policies.yaml";
const PLUGIN_OFF: &str = "kubectl label node gpu-a100 --overwrite nvidia.com/gpu.deploy.device-plugin=false";
const STATUS: &str = "kubectl gpunode status gpu-a100";
const DOCTOR: &str = "kubectl gpunode doctor gpu-a100";
const EXPORT: &str = "kubectl gpunode export mig gpu-a100";
const STOP_OTHERS: &str = "kubectl label node -l nvidia.com/mig.config=all-1g.10gb --overwrite \
                           nvidia.com/gpu.deploy.mig-manager=false nvidia.com/gpu.deploy.device-plugin=false";
const LABEL_BACK: &str = "kubectl label node -l nvidia.com/gpu.deploy.device-plugin=false --overwrite \
                          nvidia.com/gpu.deploy.device-plugin=true";
const FORGET_STATE: &str = "kubectl label node gpu-a100 nvidia.com/mig.config.state-";
const EXPORT_FILE: &str = "kubectl gpunode export mig gpu-a100 -o mig-parted > current.yaml";
const CREATE_FILE: &str = "kubectl -n gpu-operator create configmap mig-configs --from-file=config.yaml=config.yaml";
const LIST_GPU_NODES: &str = "kubectl get gpunodes";
const DELETE: &str = "kubectl delete -f policies.yaml";
const SET_CONFIG: &str = "kubectl label node gpu-a100 --overwrite nvidia.com/mig.config=all-1g.10gb";
const START: &str = "kubectl label node gpu-a100 --overwrite nvidia.com/gpu.deploy.mig-manager=true \
                     nvidia.com/gpu.deploy.device-plugin=true";

/// Every command of the page, in its order. The tests below run each of them.
const COMMANDS: [&str; 23] = [
    FILE_NAME,
    GET_FILE,
    STRATEGY,
    IMPORT,
    LIST_NODES,
    IMPORT_LAYOUT,
    APPLY,
    STOP,
    PLAN,
    PLUGIN_OFF,
    APPLY,
    STATUS,
    DOCTOR,
    EXPORT,
    STOP_OTHERS,
    LABEL_BACK,
    FORGET_STATE,
    EXPORT_FILE,
    CREATE_FILE,
    LIST_GPU_NODES,
    DELETE,
    SET_CONFIG,
    START,
];

/// Configuration of the first node, and name of the policy that it becomes.
const FIRST: &str = "a100-pool";
/// Configuration of the other nodes, which is the page's.
const OTHERS: &str = "all-1g.10gb";

/// Every GPU that has MIG: the first node's, then those of the others.
const GPUS: [(&str, usize); 4] = [(MIG_A100, 0), (MIG_A100, 1), (MIG_H100[0], 0), (MIG_H100[1], 0)];

/// A file of mig-parted with filters for boards, as NVIDIA's own has them. The V100 of the first node is in none of the two.
const FILE: &str = r#"version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-1g.10gb:
  - device-filter: ["0x233010DE", "0x20B210DE", "0x20B510DE", "0x20F310DE", "0x20F510DE"]
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

/// Somebody who follows the page, with a folder for files.
struct Person<'a> {
    lab: &'a Lab,
    folder: TempDir,
}

impl<'a> Person<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let folder = tempfile::tempdir().context("create a folder")?;
        Ok(Self { lab, folder })
    }

    /// Runs a command for the first node.
    fn run(&self, command: &str) -> Result<String> {
        self.run_for(MIG_A100, command)
    }

    fn run_for(&self, node: &str, command: &str) -> Result<String> {
        self.lab.shell(self.folder.path(), &of_node(command, node))
    }

    fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.folder.path().join(file)).with_context(|| format!("read {file}"))
    }

    /// Applies both policies. MIG devices come later than a configuration, so no plan tells what nodes advertise in the end.
    fn apply(&self, policies: &str) -> Result<()> {
        fs::write(self.folder.path().join("policies.yaml"), policies).context("write the policies")?;
        let both = || self.lab.unplanned(OTHERS, || self.run(APPLY));
        self.lab.unplanned(FIRST, both).map(drop)
    }

    /// Gets the file of mig-parted and makes policies of it. Gives those of the configurations that nodes have.
    fn import(&self) -> Result<String> {
        assert_eq!(self.run(FILE_NAME)?, "default-mig-parted-config");
        self.run(GET_FILE)?;
        assert_eq!(self.read("config.yaml")?, FILE);
        assert_eq!(self.run(STRATEGY)?, "mixed");
        self.run(IMPORT)?;
        let imported = self.read("policies.yaml")?;
        let policies: Vec<&str> = imported.split("---\n").collect();
        ensure!(
            policies.len() == 3 && policies.iter().all(|policy| policy.contains("\n  mode: Preview\n")),
            "{imported}"
        );
        let nodes = self.run(LIST_NODES)?;
        for (node, config) in [(MIG_A100, FIRST), (MIG_H100[0], OTHERS), (MIG_H100[1], OTHERS)] {
            let mut lines = nodes.lines();
            let is_listed = lines.any(|line| line.starts_with(node) && line.trim_end().ends_with(config));
            ensure!(is_listed, "{nodes}");
        }
        let small = instances_of(&self.run(IMPORT_LAYOUT)?)?;
        let sevens = BTreeMap::from([("1g.10gb".to_owned(), 7)]);
        assert_eq!(small, [sevens.clone(), sevens]);
        let of_config = |config: &str| {
            let selector = format!("nvidia.com/mig.config: {config}\n");
            let mut policies = policies.iter().copied();
            policies
                .find(|policy| policy.contains(&selector))
                .with_context(|| format!("find the policy of {config}"))
        };
        Ok([of_config(FIRST)?, of_config(OTHERS)?].join("---\n"))
    }

    /// Plans the policies and checks the changes of the first node, on which mig-manager no longer is. The others have it, which is
    /// an obstacle.
    fn plan(&self) -> Result<()> {
        let output = self.lab.try_shell(self.folder.path(), PLAN)?;
        let plan = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.code() == Some(2), "{output:?}");
        let is_change = |line: &&str| line.contains("goes ") || line.contains("comes ");
        let changes: Vec<&str> = plan.lines().filter(is_change).map(str::trim).collect();
        assert_eq!(
            changes,
            ["GPU 1: 1g.10gb:1,3g.40gb:1 -> 3g.40gb:2 (goes 1 x 1g.10gb; comes 1 x 3g.40gb)"]
        );
        for node in MIG_H100 {
            let start = format!("node {node}\n");
            let mut nodes = plan.split("\n\n");
            let of_node = nodes.find(|text| text.starts_with(&start)).unwrap_or_default();
            ensure!(
                of_node.contains("! NVIDIA's mig-manager changes MIG on the node"),
                "{plan}"
            );
        }
        ensure!(plan.contains("obstacles on 2 nodes"), "{plan}");
        Ok(())
    }
}

/// A command of the page for a node of the cluster.
fn of_node(command: &str, node: &str) -> String {
    command.replace("gpu-a100", node)
}

/// Instances of both A100 by index, in a layout that selects by index or not at all.
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

/// Instances of both A100 in a document of an agent's configuration.
fn instances_of(document: &str) -> Result<Vec<BTreeMap<String, i32>>> {
    let config = gpunode_config::load(document)?;
    Ok(instances(&config.mig.context("find a layout")?.layout))
}

/// MIG devices of every GPU that has MIG.
fn devices(lab: &Lab) -> Result<Vec<MigDevices>> {
    GPUS.iter().map(|(node, index)| lab.mig_devices(node, *index)).collect()
}

/// Divides every GPU as mig-manager did, which stopped halfway on the second one.
fn divide(lab: &Lab) -> Result<Vec<MigDevices>> {
    let sevens: Vec<(&str, u32)> = (0..7).map(|start| ("1g.10gb", start)).collect();
    let layouts = [
        &[("3g.40gb", 4), ("1g.10gb", 0), ("1g.10gb", 1)][..],
        &[("3g.40gb", 4), ("1g.10gb", 0)],
        &sevens,
        &sevens,
    ];
    let gpus = GPUS.iter().zip(layouts);
    gpus.map(|((node, index), instances)| lab.divide(node, *index, instances))
        .collect()
}

/// Waits until a policy in mode Preview shows what it would do to a node, and checks that nothing of it was done.
fn is_previewed(lab: &Lab, policy: &str, node: &str) -> Result<()> {
    eventually(&format!("policy {policy} previews {node}"), LIMIT, || {
        let status = lab.get(&["gpunodepolicy", policy])?["status"].clone();
        let mut previews = status["preview"].as_array().into_iter().flatten();
        ensure!(
            previews.any(|preview| preview["node"] == node),
            "its status is {status}"
        );
        Ok(())
    })?;
    is_left_alone(lab, node)
}

/// Waits until a policy says that mig-manager keeps it from these nodes, and checks that nothing of it was done there.
fn is_kept_away(lab: &Lab, policy: &str, nodes: &[&str]) -> Result<()> {
    let is_kept = |failure: &&Value| {
        let message = failure["message"].as_str().unwrap_or_default();
        failure["reason"] == "MigManager" && message.contains("nvidia.com/gpu.deploy.mig-manager=false")
    };
    eventually(&format!("mig-manager keeps policy {policy} away"), LIMIT, || {
        let status = lab.get(&["gpunodepolicy", policy])?["status"].clone();
        let failures = status["failures"].as_array().into_iter().flatten();
        let kept = failures.filter(is_kept).filter_map(|failure| failure["node"].as_str());
        ensure!(kept.eq(nodes.iter().copied()), "its status is {status}");
        Ok(())
    })?;
    nodes.iter().try_for_each(|node| is_left_alone(lab, node))
}

/// Checks that a node has neither a configuration nor an agent with the device plugin.
fn is_left_alone(lab: &Lab, node: &str) -> Result<()> {
    let spec = lab.get(&["gpunode", node])?["spec"].clone();
    ensure!(spec.get("config").is_none(), "{node} has a configuration: {spec}");
    let labels = lab.node(node)?["metadata"]["labels"].clone();
    ensure!(labels["gpunode.dev/governed"].is_null(), "labels of {node}: {labels}");
    Ok(())
}

/// Checks a pod that was there before.
fn runs_on(lab: &Lab, pod: &str) -> Result<()> {
    let object = lab.get(&["pod", pod])?;
    let container = &object["status"]["containerStatuses"][0];
    ensure!(
        object["status"]["phase"] == "Running" && container["restartCount"] == 0,
        "status is {}",
        object["status"]
    );
    Ok(())
}

#[test]
fn every_command_of_the_page_is_run() -> Result<()> {
    assert_eq!(page_commands(PAGE)?, COMMANDS);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn nodes_move_from_mig_manager_one_by_one_with_their_instances_and_back() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let person = Person::new(&lab)?;
    let nodes = [(MIG_A100, FIRST), (MIG_H100[0], OTHERS), (MIG_H100[1], OTHERS)];
    let gpu_operator = GpuOperator::install(&lab, &nodes, FILE)?;
    let before = divide(&lab)?;

    let preview = person.import()?;
    person.apply(&preview)?;
    is_previewed(&lab, FIRST, MIG_A100)?;
    person.run(STOP)?;
    gpu_operator.await_pods(2, 3)?;
    person.plan()?;
    is_left_alone(&lab, MIG_A100)?;
    assert_eq!(devices(&lab)?, before);
    person.run(PLUGIN_OFF)?;
    gpu_operator.await_pods(2, 2)?;
    person.apply(&preview.replace("  mode: Preview\n", ""))?;

    let first = lab.await_layout(MIG_A100, 0, "1g.10gb:2,3g.40gb:1")?;
    assert_eq!(first, before[0], "the UUIDs are the same");
    let second = lab.await_layout(MIG_A100, 1, "3g.40gb:2")?;
    let half = of_profile(&before[1], "3g.40gb");
    ensure!(
        half.len() == 1 && half.is_subset(&of_profile(&second, "3g.40gb")),
        "the half that was there stays: {half:?}, {second:?}"
    );
    for (resource, count) in [
        ("nvidia.com/mig-3g.40gb", 3),
        ("nvidia.com/mig-1g.10gb", 2),
        ("nvidia.com/gpu", 1),
    ] {
        lab.await_allocatable(MIG_A100, resource, count)?;
    }
    lab.await_ready(FIRST)?;
    // Whoever does not stop mig-manager first changes nothing.
    is_kept_away(&lab, OTHERS, &MIG_H100)?;
    assert_eq!(devices(&lab)?[2..], before[2..]);
    check_first_node(&person)?;

    person.run(STOP_OTHERS)?;
    gpu_operator.await_pods(0, 0)?;
    for (node, before) in MIG_H100.iter().zip(&before[2..]) {
        assert_eq!(lab.await_layout(node, 0, "1g.10gb:7")?, *before, "{node}");
        lab.await_allocatable(node, "nvidia.com/mig-1g.10gb", 7)?;
    }
    lab.await_ready(OTHERS)?;
    gpu_operator.stop()?;
    person.run(LABEL_BACK)?;
    for (node, _) in nodes {
        let labels = lab.node(node)?["metadata"]["labels"].clone();
        ensure!(
            labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
                && labels["nvidia.com/gpu.deploy.mig-manager"] == "false",
            "labels of {node}: {labels}"
        );
    }
    lab.apply(&samples::holding("held", MIG_A100, 1, "nvidia.com/mig-3g.40gb", 1))?;
    let held = lab.await_running("held", 1)?.concat();
    for policy in [FIRST, OTHERS] {
        lab.await_ready(policy)?;
    }

    let moved = devices(&lab)?;
    go_back(&person, &gpu_operator, &nodes)?;
    assert_eq!(devices(&lab)?, moved, "the instances stay");
    runs_on(&lab, &held)
}

/// Looks at the first node once it has moved.
fn check_first_node(person: &Person) -> Result<()> {
    let status = person.run(STATUS)?;
    let is_applied = |layout: &str| {
        let mut lines = status.lines();
        lines.any(|line| line.contains("Applied") && line.contains(layout))
    };
    ensure!(is_applied("1g.10gb:2,3g.40gb:1") && is_applied("3g.40gb:2"), "{status}");
    eventually("doctor knows the container runtime", LIMIT, || {
        let findings = person.run(DOCTOR)?;
        ensure!(findings.contains("with CDI"), "{findings}");
        Ok(())
    })?;
    let wanted = instances(&mig_parted_layouts(FILE)?[FIRST]);
    assert_eq!(instances_of(&person.run(EXPORT)?)?, wanted);
    Ok(())
}

fn go_back(person: &Person, gpu_operator: &GpuOperator, nodes: &[(&str, &str)]) -> Result<()> {
    let lab = person.lab;
    person.run(EXPORT_FILE)?;
    let current = mig_parted_layouts(&person.read("current.yaml")?)?;
    let wanted = instances(&mig_parted_layouts(FILE)?[FIRST]);
    assert_eq!(instances(&current["current"]), wanted);
    // A configuration has these instances already, so mig-manager can do with its own file; another one is as easily made.
    person.run(CREATE_FILE)?;
    let get = ["get", "configmap", "mig-configs", "-n", "gpu-operator"];
    let data = lab.kubectl(&[&get[..], &["-o", r"jsonpath={.data.config\.yaml}"]].concat())?;
    assert_eq!(data, FILE);

    person.run(DELETE)?;
    eventually("no GpuNode has a policy", LIMIT, || {
        let listed = person.run(LIST_GPU_NODES)?;
        ensure!(
            listed.contains(MIG_A100) && !listed.contains(FIRST) && !listed.contains(OTHERS),
            "{listed}"
        );
        Ok(())
    })?;
    lab.await_nothing_owned()?;
    for (node, config) in nodes {
        person.run_for(node, &SET_CONFIG.replace(OTHERS, config))?;
    }
    gpu_operator.start()?;
    for (node, _) in nodes {
        person.run_for(node, START)?;
    }
    gpu_operator.await_pods(nodes.len(), nodes.len())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_label_that_mig_manager_leaves_behind_keeps_a_layout_away_until_it_is_removed() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let person = Person::new(&lab)?;
    for node in MIG_H100 {
        lab.kubectl(&["label", "node", node, "nvidia.com/mig.config.state=success"])?;
    }
    lab.put_layout(
        "mig-h100",
        "{mig: {strategy: Mixed, layout: [{instances: {7g.80gb: 1}}]}}",
    )?;
    is_kept_away(&lab, "sharing", &MIG_H100)?;
    for node in MIG_H100 {
        person.run_for(node, FORGET_STATE)?;
        lab.await_layout(node, 0, "7g.80gb:1")?;
    }
    lab.await_ready("sharing").map(drop)
}
