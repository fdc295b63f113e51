//! `kubectl delete -k manifests/default` in any state, and what a later installation makes of what was left.

use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, V100, eventually, node_snapshot};
use std::{
    process::Command,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_mins(2);

const POLICY: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: left-behind}
spec:
  nodeSelector: {matchLabels: {pool: training}}
  labels: {accelerator: nvidia-tesla-v100}
  taints: [{key: dedicated, value: v100, effect: NoSchedule}]
  devicePlugin: {}
";

fn delete(lab: &Lab, state: &str) -> Result<()> {
    let manifests = Lab::repository().join("manifests/default");
    let start = Instant::now();
    let timeout = format!("--timeout={}s", LIMIT.as_secs());
    let output = lab.try_kubectl(&["delete", "--ignore-not-found", &timeout, "-k", &manifests.to_string_lossy()])?;
    ensure!(
        output.status.success() && start.elapsed() < LIMIT,
        "{state}: kubectl delete -k took {:?}: {}",
        start.elapsed(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn install(lab: &Lab) -> Result<()> {
    let name = lab.cluster().folder().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let output = Command::new(Lab::repository().join("tests/cluster/install-gpunode.sh")).arg(name).output()?;
    ensure!(output.status.success(), "install gpunode: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn delete_returns_in_any_state_and_a_new_installation_cleans_up() -> Result<()> {
    let lab = Lab::enter()?;
    let before = node_snapshot(&lab.node(V100)?);

    lab.apply(POLICY)?;
    lab.await_ready("left-behind")?;
    delete(&lab, "a policy is in force")?;
    install(&lab)?;
    eventually("what the deleted policy left on the node is gone", LIMIT, || {
        let seen = node_snapshot(&lab.node(V100)?);
        ensure!(seen == before, "before: {before}\n   now: {seen}");
        Ok(())
    })?;

    lab.apply(POLICY)?;
    lab.await_ready("left-behind")?;
    lab.kubectl(&["-n", NAMESPACE, "delete", "deployment", "gpunode-operator", "--timeout=60s"])?;
    delete(&lab, "the operator is gone")?;
    delete(&lab, "nothing is left")?;
    install(&lab)?;
    lab.await_nothing_owned()
}
