//! A life with the Helm chart: installation, upgrade, rollback, test and removal.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::{AuditLog, GPU_NODES, Lab, NAMESPACE, NODES, V100, eventually, names};
use gpunode_helm_tests::{chart, helm};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

const SETTLE: Duration = Duration::from_mins(2);
const RELEASE: &str = "gpunode";
const MANIFEST: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: with-helm}
spec:
  nodeSelector: {matchLabels: {pool: training}}
  labels: {accelerator: nvidia-tesla-v100}
  taints: [{key: dedicated, value: v100, effect: NoSchedule}]
  devicePlugin: {}
";
const POLICY: &str = "with-helm";
/// Column of GpuNodes that the earlier chart does not have yet.
const COLUMN: &str = "Fault";

/// Runs Helm on the cluster of the tests to whatever end.
fn try_helm(lab: &Lab, arguments: &[&str]) -> Result<Output> {
    helm()
        .args(arguments)
        .args(["--namespace", NAMESPACE, "--kubeconfig"])
        .arg(lab.cluster().kubeconfig())
        .output()
        .context("start helm; `make kubernetes` builds it")
}

fn run_helm(lab: &Lab, arguments: &[&str]) -> Result<String> {
    let output = try_helm(lab, arguments)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {arguments:?}: {text}{errors}");
    Ok(text)
}

/// Upgrades to the chart of the repository, with one value besides its own.
fn upgrade(lab: &Lab, value: &str) -> Result<String> {
    run_helm(
        lab,
        &["upgrade", RELEASE, &chart().to_string_lossy(), "--wait", "--set", value],
    )
}

/// Copies the chart as an earlier version would have been: with a version of its own, and a CRD without a column.
fn earlier_chart(folder: &Path) -> Result<PathBuf> {
    let earlier = folder.join("gpunode");
    copy(&chart(), &earlier)?;
    let replace = |file: &str, text: &str, by: &str| -> Result<()> {
        let path = earlier.join(file);
        let content = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        ensure!(content.matches(text).count() == 1, "{file} does not have once: {text}");
        std::fs::write(&path, content.replace(text, by)).with_context(|| format!("write {}", path.display()))
    };
    replace(
        "Chart.yaml",
        &format!("\nversion: {}\n", env!("CARGO_PKG_VERSION")),
        "\nversion: 0.0.9\n",
    )?;
    let column = "    - jsonPath: .status.gpus[?(@.health.state=='Unhealthy')].health.reason\n      name: Fault\n      type: string\n";
    replace("templates/crd-gpunodes.yaml", column, "")?;
    Ok(earlier)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target).with_context(|| format!("copy {}", target.display()))?;
        }
    }
    Ok(())
}

/// UIDs of the agents' pods by name.
fn agents(lab: &Lab) -> Result<BTreeMap<String, String>> {
    let pods = lab.get(&["pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=gpunode-agent"])?;
    let text = |pod: &Value, field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
    let items = pods["items"].as_array().into_iter().flatten();
    Ok(items.map(|pod| (text(pod, "name"), text(pod, "uid"))).collect())
}

/// Checks that no Node was written, and that no agent was replaced or reconfigured.
fn assert_operator_alone_changed(lab: &Lab, audit: &AuditLog, before: &BTreeMap<String, String>) -> Result<()> {
    let mut seen = Vec::new();
    for event in audit.gpunode_writes()? {
        let is_of_nodes = ["nodes", "nodes/status", "gpunodes", "daemonsets"].contains(&event.resource().as_str());
        if is_of_nodes {
            seen.push(event.to_string());
        }
    }
    ensure!(seen.is_empty(), "written: {}", seen.join("\n"));
    let now = agents(lab)?;
    ensure!(now == *before, "agents before: {before:?}, now: {now:?}");
    Ok(())
}

/// Waits until each node has one agent, and each GPU node its labels: what an operator writes after an installation.
fn settled(lab: &Lab) -> Result<()> {
    lab.await_plugin(V100)?;
    eventually("each node has one agent and its labels", SETTLE, || {
        let agents = agents(lab)?;
        ensure!(agents.len() == NODES.len(), "agents are {:?}", agents.keys());
        for node in GPU_NODES {
            let labels = lab.node(node)?["metadata"]["labels"].clone();
            ensure!(
                !labels["nvidia.com/gpu.product"].is_null(),
                "{node} has the labels {labels}"
            );
        }
        Ok(())
    })
}

fn has_column(lab: &Lab) -> Result<bool> {
    let definition = lab.kubectl(&["get", "crd", "gpunodes.gpunode.dev", "-o", "json"])?;
    let definition: Value = serde_json::from_str(&definition).context("read a CRD")?;
    let columns = &definition["spec"]["versions"][0]["additionalPrinterColumns"];
    let mut columns = columns.as_array().into_iter().flatten();
    Ok(columns.any(|column| column["name"] == COLUMN))
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn chart_installs_upgrades_rolls_back_and_restores_the_nodes() -> Result<()> {
    let lab = Lab::enter()?;
    // Of an earlier run that failed.
    try_helm(
        &lab,
        &["uninstall", RELEASE, "--ignore-not-found", "--no-hooks", "--wait"],
    )?;
    lab.gpunode(&["uninstall", "--yes"])?;
    let before = lab.snapshot()?;

    lab.kubectl(&["create", "namespace", NAMESPACE])?;
    let privileged = "pod-security.kubernetes.io/enforce=privileged";
    lab.kubectl(&["label", "namespace", NAMESPACE, privileged])?;
    let folder = tempfile::tempdir().context("create a folder for the earlier chart")?;
    let earlier = earlier_chart(folder.path())?;
    run_helm(&lab, &["install", RELEASE, &earlier.to_string_lossy(), "--wait"])?;
    ensure!(!has_column(&lab)?, "the earlier CRD has the column");
    lab.apply(MANIFEST)?;
    lab.await_ready(POLICY)?;
    settled(&lab)?;
    run_helm(&lab, &["test", RELEASE])?;

    let (running, leader, audit) = (agents(&lab)?, lab.leader()?, lab.audit()?);
    upgrade(&lab, "operator.logLevel=debug")?;
    let leader = lab.await_leader_other_than(&leader)?;
    lab.await_ready(POLICY)?;
    ensure!(has_column(&lab)?, "the upgrade did not upgrade the CRD");
    assert_operator_alone_changed(&lab, &audit, &running).context("an upgrade of the operator")?;
    run_helm(&lab, &["rollback", RELEASE, "1", "--wait"])?;
    lab.await_leader_other_than(&leader)?;
    lab.await_ready(POLICY)?;
    assert_operator_alone_changed(&lab, &audit, &running).context("a rollback")?;

    upgrade(&lab, "operator.replicas=0")?;
    let test = try_helm(&lab, &["test", RELEASE])?;
    let told = String::from_utf8_lossy(&test.stdout).into_owned() + &String::from_utf8_lossy(&test.stderr);
    ensure!(!test.status.success(), "helm test succeeds without an operator: {told}");
    ensure!(told.contains("no pod of the operator is ready"), "helm test: {told}");

    upgrade(&lab, "uninstall.restoreNodes=true")?;
    lab.await_ready(POLICY)?;
    run_helm(&lab, &["uninstall", RELEASE, "--wait"])?;
    lab.nothing_is_left_on_nodes(&before)?;
    let kept = names(&lab.get(&["gpunodepolicies"])?);
    ensure!(kept == [POLICY], "kept policies: {kept:?}");
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let left = lab.kubectl(&["get", kinds, "-o", "name"])?;
    let left: Vec<_> = left.lines().filter(|name| name.contains("gpunode")).collect();
    ensure!(left.is_empty(), "left in the cluster: {left:?}");
    let left = lab.kubectl(&[
        "get",
        "-n",
        NAMESPACE,
        "all,roles,rolebindings,secrets,pdb",
        "-o",
        "name",
    ])?;
    // The failed test is there for a look at it.
    let left: Vec<_> = left.lines().filter(|name| *name != "pod/gpunode-test").collect();
    ensure!(left.is_empty(), "left in the namespace: {left:?}");

    lab.kubectl(&["delete", "gpunodepolicy", POLICY])?;
    lab.kubectl(&["delete", "crd", "gpunodepolicies.gpunode.dev", "gpunodes.gpunode.dev"])?;
    lab.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=60s"])?;
    lab.install()?;
    lab.await_nothing_owned()
}
