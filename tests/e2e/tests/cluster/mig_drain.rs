//! Changes of GPUs that evict pods: `drain: {policy: Evict}`.
//!
//! On the cluster of `mig.yaml`.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_cluster::Signal;
use gpunode_e2e::{AuditEvent, Lab, MIG_A100, eventually, names, taints};
use gpunode_scenario::OpenHandle;
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const WHOLE: &str = "nvidia.com/mig-7g.80gb";
const TAINT: &str = "gpunode.dev/reconfiguring";

/// A `devicePlugin` with a layout of the first GPU.
fn first_gpu(instances: &str) -> String {
    format!("{{mig: {{strategy: Mixed, layout: [{{devices: {{indices: [0]}}, instances: {{{instances}}}}}]}}}}")
}

fn evicting(more: &str) -> String {
    format!("{{policy: Evict{more}}}")
}

/// A pod of a Deployment on an instance, which waits for its end by SIGTERM no longer than it must.
fn pods(name: &str) -> String {
    samples::holding(name, MIG_A100, 1, SMALL, 1)
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

fn change(lab: &Lab) -> Result<Value> {
    Ok(lab.get(&["gpunode", MIG_A100])?["spec"]["change"].clone())
}

/// The node with the first GPU divided into one small instance, which nobody holds.
fn with_small_instance() -> Result<Lab> {
    let lab = Lab::enter_undivided()?;
    lab.put_layout(MIG_A100, &first_gpu("1g.10gb: 1"))?;
    lab.await_layout(MIG_A100, 0, "1g.10gb:1")?;
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    Ok(lab)
}

/// The same, with a pod on the instance that no budget lets go.
fn held_by_a_budget() -> Result<(Lab, Vec<String>)> {
    let lab = with_small_instance()?;
    lab.apply(&pods("held"))?;
    lab.apply(&budget("held"))?;
    let held = lab.await_running("held", 1)?;
    Ok((lab, held))
}

fn await_whole(lab: &Lab) -> Result<()> {
    lab.await_layout(MIG_A100, 0, "7g.80gb:1")?;
    lab.await_allocatable(MIG_A100, WHOLE, 1)?;
    await_taint(lab, false)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_budget_delays_an_eviction_and_a_cordoned_node_stays_cordoned() -> Result<()> {
    let (lab, held) = held_by_a_budget()?;
    lab.kubectl(&["cordon", MIG_A100])?;
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(", timeout: 15m"))?;
    await_taint(&lab, true)?;
    // Also the held instance: whoever got it next would be evicted too.
    lab.await_allocatable(MIG_A100, SMALL, 0)?;
    let waiting = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Waiting")?;
    assert_eq!(lab.await_running("held", 1)?, held, "{waiting}");
    assert_eq!(change(&lab)?["state"], "Prepare");

    lab.kubectl(&["delete", "poddisruptionbudget", "held"])?;
    await_whole(&lab)?;
    let pods = names(&lab.get(&["pods", "-l", "app=held"])?);
    ensure!(!pods.contains(&held.concat()), "it was evicted: {pods:?}");
    assert_eq!(lab.node(MIG_A100)?["spec"]["unschedulable"], true);
    lab.kubectl(&["uncordon", MIG_A100]).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_operator_killed_in_a_drain_is_followed_by_one_that_ends_it() -> Result<()> {
    let (lab, _held) = held_by_a_budget()?;
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(", timeout: 15m"))?;
    lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Waiting")?;
    await_taint(&lab, true)?;
    // The taint comes before the drain; the agent withdraws the devices once it has begun.
    lab.await_allocatable(MIG_A100, SMALL, 0)?;
    let audit = lab.audit()?;
    lab.operator_process(&lab.leader()?)?.signal(Signal::KILL)?;
    lab.kubectl(&["delete", "poddisruptionbudget", "held"])?;
    await_whole(&lab)?;
    let is_new = |event: &AuditEvent| {
        event
            .request()
            .is_some_and(|request| request.to_string().contains("Prepare"))
    };
    let begun: Vec<String> = audit
        .gpunode_writes()?
        .iter()
        .filter(|event| is_new(event))
        .map(ToString::to_string)
        .collect();
    assert_eq!(begun, Vec::<String>::new(), "the drain was begun again");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_eviction_that_takes_too_long_gives_everything_back() -> Result<()> {
    let (lab, held) = held_by_a_budget()?;
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(", timeout: 20s"))?;
    await_taint(&lab, true)?;
    let blocked = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Blocked")?;
    ensure!(
        blocked["reason"] == "DrainTimedOut" && blocked["message"].to_string().contains(&held.concat()),
        "{blocked}"
    );
    await_taint(&lab, false)?;
    assert_eq!(lab.await_running("held", 1)?, held);
    lab.await_allocatable(MIG_A100, SMALL, 1)?;
    let failed = change(&lab)?;
    ensure!(failed["state"] == "Failed" && failed["attempts"] == 1, "{failed}");
    // The policy counts the node as Ready: its pods run.
    lab.await_ready("sharing").map(drop)
}

/// Pods that name their node run there whatever its taints are.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_that_would_come_straight_back_is_named_and_not_evicted() -> Result<()> {
    let lab = with_small_instance()?;
    let bound = pods("bound").replace("nodeSelector: {pool: mig-a100}", "nodeName: mig-a100");
    lab.apply(&bound)?;
    let pod = lab.await_running("bound", 1)?.concat();
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(""))?;
    let blocked = lab.await_mig(MIG_A100, 0, "7g.80gb:1", "Blocked")?;
    ensure!(
        blocked["reason"] == "CannotEvict" && blocked["message"].to_string().contains(&pod),
        "{blocked}"
    );
    assert_eq!(lab.await_running("bound", 1)?, [pod]);
    await_taint(&lab, false)?;
    lab.await_allocatable(MIG_A100, SMALL, 1)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_that_ignores_sigterm_is_killed_after_the_grace_period_of_the_policy() -> Result<()> {
    let lab = with_small_instance()?;
    // As long as the limit of this test; its first process does not hear SIGTERM.
    let deaf = pods("deaf")
        .replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 600")
        .replace("[sh, -c, 'nvidia-smi; exec sleep 100000']", "[sleep, '100000']");
    lab.apply(&deaf)?;
    let pod = lab.await_running("deaf", 1)?.concat();
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(", gracePeriod: 5s"))?;
    await_whole(&lab)?;
    let left = names(&lab.get(&["pods", "-l", "app=deaf"])?);
    ensure!(!left.contains(&pod), "it is there: {left:?}");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_monitor_with_an_open_handle_goes_where_the_policy_names_it() -> Result<()> {
    let lab = with_small_instance()?;
    lab.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: monitor, labels: {{app: dcgm}}}}
spec:
  nodeName: {MIG_A100}
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: gpunode.test/cuda:1, command: [sleep, '100000']}}]
"
    ))?;
    lab.await_pod("monitor", "Running")?;
    let gpu = lab.driver_gpu(MIG_A100, 0)?;
    let instance = gpu.mig_devices().next().map(|(instance, _)| instance.id);
    let handle = OpenHandle {
        program: "nv-hostengine".to_owned(),
        gpu_instance: instance,
        compute_instance: None,
    };
    let state = lab.driver_state(MIG_A100)?;
    state.set_open_handles(0, vec![handle])?;
    let monitors = ", evict: [{namespace: default, podSelector: {matchLabels: {app: dcgm}}}]";
    lab.put_drained_layout(MIG_A100, &first_gpu("7g.80gb: 1"), &evicting(monitors))?;
    eventually("the monitor is evicted", LIMIT, || {
        let pods = names(&lab.get(&["pods"])?);
        ensure!(!pods.contains(&"monitor".to_owned()), "there are {pods:?}");
        Ok(())
    })?;
    // Its handle ends with it.
    state.set_open_handles(0, Vec::new())?;
    await_whole(&lab)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_change_of_sharing_evicts_the_pods_and_they_come_back_on_shares() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    lab.apply(&samples::sharing(MIG_A100, "{}"))?;
    lab.await_allocatable(MIG_A100, GPU, 3)?;
    lab.apply(&samples::holding("busy", MIG_A100, 3, GPU, 1))?;
    let before = lab.await_running("busy", 3)?;
    let shared = "{resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]}";
    lab.put_drained_layout(MIG_A100, shared, &evicting(""))?;
    await_taint(&lab, true)?;
    lab.await_allocatable(MIG_A100, GPU, 6)?;
    await_taint(&lab, false)?;
    assert_eq!(change(&lab)?, Value::Null);
    let after = lab.await_running("busy", 3)?;
    ensure!(
        after.iter().all(|pod| !before.contains(pod)),
        "{after:?} after {before:?}"
    );
    lab.await_ready("sharing").map(drop)
}
