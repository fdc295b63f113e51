//! Removal in any state: `kubectl delete -k manifests/default`, what a later installation makes of what was left, and
//! `kubectl gpunode uninstall`.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, T4, V100, eventually, node_snapshot};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_mins(2);
/// A policy that is missing after an installation has a minute to come back; the rest is room.
const CLEANED: Duration = Duration::from_mins(5);
/// A kubelet lets go of a resource 5 minutes after its plugin; the rest is room.
const RESOURCES_LIMIT: Duration = Duration::from_mins(10);

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
    let output = lab.try_kubectl(&[
        "delete",
        "--ignore-not-found",
        &timeout,
        "-k",
        &manifests.to_string_lossy(),
    ])?;
    ensure!(
        output.status.success() && start.elapsed() < LIMIT,
        "{state}: kubectl delete -k took {:?}: {}",
        start.elapsed(),
        String::from_utf8_lossy(&output.stderr)
    );
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
    lab.install()?;
    eventually("what the deleted policy left on the node is gone", CLEANED, || {
        let seen = node_snapshot(&lab.node(V100)?);
        ensure!(seen == before, "before: {before}\n   now: {seen}");
        Ok(())
    })?;

    lab.apply(POLICY)?;
    lab.await_ready("left-behind")?;
    lab.kubectl(&[
        "-n",
        NAMESPACE,
        "delete",
        "deployment",
        "gpunode-operator",
        "--timeout=60s",
    ])?;
    delete(&lab, "the operator is gone")?;
    delete(&lab, "nothing is left")?;
    lab.install()?;
    lab.await_nothing_owned()
}

const T4_POLICY: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: left-behind-too}
spec:
  nodeSelector: {matchLabels: {pool: inference}}
  devicePlugin: {}
";

/// `kubectl gpunode uninstall`, which must leave every node as it was before and nothing of gpunode.
fn uninstall(lab: &Lab, state: &str, before: &[(String, Value)]) -> Result<()> {
    let start = Instant::now();
    let text = lab.gpunode(&["uninstall", "--yes"]).with_context(|| state.to_owned())?;
    ensure!(
        start.elapsed() < LIMIT,
        "{state}: it took {:?}: {text}",
        start.elapsed()
    );
    nothing_is_left(lab, before).with_context(|| state.to_owned())
}

fn nothing_is_left(lab: &Lab, before: &[(String, Value)]) -> Result<()> {
    lab.nothing_is_left_on_nodes(before)?;
    let kinds = "crd,ns,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let objects = lab.kubectl(&["get", kinds, "-o", "name"])?;
    let left: Vec<_> = objects.lines().filter(|name| name.contains("gpunode")).collect();
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

/// Foreign objects in gpunode's namespace keep the namespace, and nothing else of gpunode.
fn uninstall_keeps_what_is_not_gpunodes(lab: &Lab, before: &[(String, Value)]) -> Result<()> {
    lab.kubectl(&[
        "-n",
        NAMESPACE,
        "create",
        "secret",
        "generic",
        "theirs",
        "--from-literal=a=b",
    ])?;
    let output = lab.gpunode_command(&["uninstall", "--yes"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.code() == Some(1) && text.contains("not gpunode's: Secret theirs;"),
        "{output:?}"
    );
    lab.nothing_is_left_on_nodes(before)?;
    let left = lab.kubectl(&[
        "-n",
        NAMESPACE,
        "get",
        "all,secrets,leases,pdb,roles,rolebindings",
        "-o",
        "name",
    ])?;
    ensure!(left.trim() == "secret/theirs", "left: {left}");
    lab.kubectl(&["-n", NAMESPACE, "delete", "secret", "theirs"])?;
    uninstall(lab, "nothing but the namespace is left", before)
}

/// An uninstallation that waits for dead resources. It ends with the test, whatever becomes of that: one that is left behind
/// would go on in the cluster of the next test.
struct Waiting(Child);

impl Waiting {
    /// Starts it, and returns when dead resources are all that it waits for.
    fn start(lab: &Lab) -> Result<Self> {
        let mut command = lab.gpunode_command(&["uninstall", "--yes", "--wait-resources"]);
        let mut waiting = Self(command.stdout(Stdio::piped()).spawn()?);
        let mut lines = BufReader::new(waiting.0.stdout.take().context("open the output of uninstall")?);
        let mut line = String::new();
        while !line.starts_with("namespace") {
            line.clear();
            ensure!(
                lines.read_line(&mut line)? > 0,
                "uninstall ended before the namespace was gone"
            );
        }
        // Nobody reads on; what is written then is lost, and no failure.
        Ok(waiting)
    }

    /// Waits until it ends, and no longer than kubelets and it may take.
    fn finish(mut self) -> Result<()> {
        let status = eventually("uninstall --wait-resources ends", RESOURCES_LIMIT, || {
            self.0.try_wait()?.context("it still runs")
        })?;
        ensure!(status.success(), "uninstall --wait-resources failed");
        Ok(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Of one that has ended nothing is left to be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A state, and the kubectl commands that bring it about.
type Step = (&'static str, &'static [&'static [&'static str]]);

#[test]
#[ignore = "needs the local cluster: make test"]
fn uninstall_removes_everything_in_any_state() -> Result<()> {
    let lab = Lab::enter()?;
    // What discovery makes known of the nodes is not there before an installation.
    lab.gpunode(&["uninstall", "--yes"])?;
    let before = lab.snapshot()?;
    nothing_is_left(&lab, &before).context("an installation without policies")?;

    lab.install()?;
    lab.apply(T4_POLICY)?;
    lab.await_ready("left-behind-too")?;
    let waiting = Waiting::start(&lab)?;
    nothing_is_left(&lab, &before).context("a policy is in force")?;
    ensure!(
        lab.gpunode(&["uninstall"])?.contains("nothing of gpunode"),
        "nothing is left"
    );

    let wrong_orders: [Step; 4] = [
        (
            "the operator is gone",
            &[&["-n", NAMESPACE, "delete", "deployment", "gpunode-operator"]],
        ),
        (
            "the kinds are gone",
            &[&["delete", "crd", "gpunodepolicies.gpunode.dev", "gpunodes.gpunode.dev"]],
        ),
        (
            "the permissions of the operator are gone",
            &[
                &["delete", "clusterrolebinding", "gpunode-operator"],
                &["delete", "clusterrole", "gpunode-operator"],
            ],
        ),
        ("the namespace is gone", &[&["delete", "namespace", NAMESPACE]]),
    ];
    for (state, commands) in wrong_orders {
        lab.install()?;
        lab.apply(POLICY)?;
        lab.await_ready("left-behind")?;
        for command in commands {
            lab.kubectl(&[*command, &["--timeout=100s"]].concat()).context(state)?;
        }
        uninstall(&lab, state, &before)?;
    }

    lab.install()?;
    lab.apply(POLICY)?;
    lab.await_ready("left-behind")?;
    delete(&lab, "a policy is in force")?;
    uninstall(&lab, "everything was deleted", &before)?;

    lab.install()?;
    lab.apply(POLICY)?;
    lab.await_ready("left-behind")?;
    uninstall_keeps_what_is_not_gpunodes(&lab, &before)?;

    // Started first and awaited last: a kubelet lets go of a resource 5 minutes after its plugin has gone.
    waiting.finish()?;
    let status = &lab.node(T4)?["status"];
    for list in ["capacity", "allocatable"] {
        ensure!(status[list].get("nvidia.com/gpu").is_none(), "{list}: {}", status[list]);
    }
    lab.install()?;
    lab.await_nothing_owned()
}
