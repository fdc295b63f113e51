//! Changes of MIG that evict pods: `drain: {policy: Evict}`.
//!
//! On the cluster of `mig.yaml`.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, MIG_A100, eventually, names, taints};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const WHOLE: &str = "nvidia.com/mig-7g.80gb";
const TAINT: &str = "gpunode.dev/reconfiguring";

/// A `devicePlugin` with a layout of the first GPU, for which pods are evicted.
fn evicting(instances: &str, timeout: &str) -> String {
    format!(
        "{{mig: {{strategy: Mixed, layout: [{{devices: {{indices: [0]}}, instances: {{{instances}}}}}]}}}}
  drain: {{policy: Evict, timeout: {timeout}}}"
    )
}

/// Pods that do not tolerate the taint, and so do not come straight back.
fn pods(name: &str, replicas: usize) -> String {
    let tolerations = "      tolerations: [{operator: Exists}]\n";
    samples::holding(name, MIG_A100, replicas, SMALL, 1).replace(tolerations, "")
}

/// A budget that lets no pod of an app go.
fn budget(app: &str) -> String {
    format!(
        "apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: {app}}}
spec: {{minAvailable: 1, selector: {{matchLabels: {{app: {app}}}}}}}
"
    )
}

fn await_taint(lab: &Lab, wanted: bool) -> Result<()> {
    eventually(&format!("{MIG_A100} has the taint: {wanted}"), LIMIT, || {
        let taints = taints(&lab.node(MIG_A100)?);
        let has_taint = taints.iter().any(|taint| taint.starts_with(TAINT));
        ensure!(has_taint == wanted, "it has {taints:?}");
        Ok(())
    })
}

/// The node with a pod of `held` on an instance that no budget lets go.
fn held_by_a_budget() -> Result<(Lab, Vec<String>)> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &evicting("1g.10gb: 1", "15m"))?;
    lab.await_layout(MIG_A100, 0, "1g.10gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    lab.apply(&pods("held", 1))?;
    lab.apply(&budget("held"))?;
    let held = lab.await_running("held", 1)?;
    Ok((lab, held))
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_budget_delays_an_eviction_and_a_cordoned_node_stays_cordoned() -> Result<()> {
    let (lab, held) = held_by_a_budget()?;
    lab.kubectl(&["cordon", MIG_A100])?;
    lab.put_layout(MIG_A100, &evicting("7g.80gb: 1", "15m"))?;
    await_taint(&lab, true)?;
    lab.await_allocatable(MIG_A100, SMALL, 0)?;
    let waiting = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Waiting")?;
    assert_eq!(lab.await_running("held", 1)?, held, "{waiting}");

    lab.kubectl(&["delete", "poddisruptionbudget", "held"])?;
    lab.await_layout(MIG_A100, 0, "7g.80gb:1")?;
    lab.await_allocatable(MIG_A100, WHOLE, 1)?;
    await_taint(&lab, false)?;
    let pods = names(&lab.get(&["pods", "-l", "app=held"])?);
    ensure!(!pods.contains(&held.concat()), "it was evicted: {pods:?}");
    assert_eq!(lab.node(MIG_A100)?["spec"]["unschedulable"], true);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_eviction_that_takes_too_long_gives_everything_back() -> Result<()> {
    let (lab, held) = held_by_a_budget()?;
    lab.put_layout(MIG_A100, &evicting("7g.80gb: 1", "20s"))?;
    await_taint(&lab, true)?;
    let blocked = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Blocked")?;
    ensure!(blocked["reason"] == "DrainTimedOut", "{blocked}");
    await_taint(&lab, false)?;
    assert_eq!(lab.await_running("held", 1)?, held);
    lab.await_allocatable(MIG_A100, SMALL, 1)
}

/// As a DaemonSet would: it is bound to the node, and no taint keeps it away.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_that_would_come_straight_back_is_named_and_not_evicted() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &evicting("1g.10gb: 1", "15m"))?;
    lab.await_layout(MIG_A100, 0, "1g.10gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    let bound = samples::holding("bound", MIG_A100, 1, SMALL, 1);
    let bound = bound.replace("nodeSelector: {pool: mig-a100}", "nodeName: mig-a100");
    lab.apply(&bound)?;
    let pod = lab.await_running("bound", 1)?.concat();
    lab.put_layout(MIG_A100, &evicting("7g.80gb: 1", "15m"))?;
    let blocked = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Blocked")?;
    ensure!(
        blocked["reason"] == "CannotEvict" && blocked["message"].to_string().contains(&pod),
        "{blocked}"
    );
    assert_eq!(lab.await_running("bound", 1)?, [pod]);
    Ok(())
}
