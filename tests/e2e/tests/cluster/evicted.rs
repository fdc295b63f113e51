//! Pods that hold a broken GPU are evicted where a policy says so, as far as their budgets allow it.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{AuditEvent, AuditLog, Lab, T4, eventually};
use gpunode_scenario::{RecoveryAction, StateFile};
use serde_json::Value;
use std::time::Duration;

/// Refused evictions are tried again after 10, 20, 40 seconds and so on.
const LIMIT: Duration = Duration::from_mins(3);
const RESOURCE: &str = "nvidia.com/gpu";
/// No pod of `holder` may be disturbed.
const BUDGET: &str = "apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: holder}
spec: {minAvailable: 1, selector: {matchLabels: {app: holder}}}
";

/// The only pod of a Deployment, and its GPU.
fn holder(lab: &Lab, app: &str) -> Result<(String, String)> {
    let pod = lab.await_running(app, 1)?.pop().context("find the pod")?;
    let gpu = lab.visible(&pod)?.pop_first().context("find the pod's GPU")?;
    Ok((pod, gpu))
}

/// Returns the message of a pod's event with this reason.
fn event_message(lab: &Lab, pod: &str, reason: &str) -> Result<String> {
    let selector = format!("involvedObject.name={pod},reason={reason}");
    let events = lab.get(&["events", "--field-selector", &selector])?;
    let message = events["items"][0]["message"].as_str();
    message
        .map(str::to_owned)
        .with_context(|| format!("there is no event {reason} of {pod}"))
}

/// The pods that gpunode evicted.
fn evicted(audit: &AuditLog) -> Result<Vec<String>> {
    let writes = audit.gpunode_writes()?.into_iter();
    let evictions = writes.filter(|event: &AuditEvent| event.resource() == "pods/eviction");
    Ok(evictions.map(|event| event.name().to_owned()).collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_on_a_broken_gpu_is_evicted_once_its_policy_says_so_and_its_budget_lets_it() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(BUDGET)?;
    lab.apply(&samples::holding("holder", "inference", 1, RESOURCE, 1))?;
    lab.apply(&samples::holding("other", "inference", 1, RESOURCE, 1))?;
    let ((pod, gpu), other) = (holder(&lab, "holder")?, holder(&lab, "other")?);
    let is_held = || {
        let status = lab.get(&["gpunode", T4])?["status"].clone();
        let mut holders = status["holders"].as_array().into_iter().flatten();
        ensure!(
            holders.any(|of| of["pod"] == pod.as_str() && of["device"] == gpu.as_str()),
            "its status is {status}"
        );
        Ok(())
    };
    eventually("the agent says who holds the GPU", LIMIT, is_held)?;

    let audit = lab.audit()?;
    // A GPU that only gets no new work: its pod stays whatever the policy says.
    let drained = lab.break_gpu_by(T4, &other.1, |state, index| {
        state.set_recovery_action(index, RecoveryAction::DrainAndReset)
    })?;
    let object = lab.get(&["gpunode", T4])?;
    let mut gpus = object["status"]["gpus"].as_array().into_iter().flatten();
    ensure!(
        gpus.any(|of| of["uuid"] == other.1.as_str() && of["health"]["grade"] == "NoNewWork"),
        "{object}"
    );
    let broken = lab.break_gpu_by(T4, &gpu, StateFile::lose)?;
    lab.await_allocatable(T4, RESOURCE, 2)?;
    is_held()?;
    assert_eq!(evicted(&audit)?, Vec::<String>::new(), "no policy says so");

    lab.patch_policy("sharing", r#"{"spec":{"evictPods":true}}"#)?.check()?;
    let refusal = eventually("the pod says why it is still there", LIMIT, || {
        event_message(&lab, &pod, "EvictionRefused")
    })?;
    ensure!(
        refusal.contains(&gpu) && refusal.contains("disruption budget"),
        "{refusal}"
    );
    assert_eq!(holder(&lab, "holder")?.0, pod);

    lab.kubectl(&["delete", "poddisruptionbudget", "holder"])?;
    let moved = eventually("another pod runs on another GPU", LIMIT, || {
        let moved = holder(&lab, "holder")?;
        ensure!(moved.0 != pod, "{moved:?} is still there");
        Ok(moved)
    })?;
    ensure!(
        moved.1 != gpu && moved.1 != other.1,
        "{moved:?} and {other:?}, and {gpu} is broken"
    );
    let message = eventually("an event says why the pod was evicted", LIMIT, || {
        event_message(&lab, &pod, "PodEvicted")
    })?;
    ensure!(
        message.contains(&gpu) && message.contains("fallen off the bus"),
        "{message}"
    );
    assert_eq!(holder(&lab, "other")?, other, "nobody else has to go");
    assert_eq!(evicted(&audit)?, [pod]);

    broken.repair()?;
    drained.repair()?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    assert_eq!(holder(&lab, "holder")?, moved);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_of_a_released_node_stay_whatever_its_gpus_are_like() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "  evictPods: true\n")?;
    lab.apply(&samples::holding("holder", "inference", 1, RESOURCE, 1))?;
    let (pod, gpu) = holder(&lab, "holder")?;
    // The agent of an ignored node goes on, and nothing else is done there until the node is released.
    lab.kubectl(&["label", "node", T4, "gpunode.dev/ignore="])?;
    let audit = lab.audit()?;
    let broken = lab.break_gpu(T4, &gpu)?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/release=true"])?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/ignore-"])?;
    eventually("the operator has seen that", LIMIT, || {
        let spec = lab.get(&["gpunode", T4])?["spec"].clone();
        ensure!(spec["release"] == true, "{spec}");
        Ok(())
    })?;
    assert_eq!((evicted(&audit)?, holder(&lab, "holder")?.0), (vec![], pod.clone()));

    lab.kubectl(&["label", "node", T4, "gpunode.dev/release-"])?;
    eventually("the pod is evicted", LIMIT, || {
        let evicted = evicted(&audit)?;
        ensure!(evicted.contains(&pod), "only {evicted:?}");
        Ok(())
    })?;
    broken.repair()?;
    let list: Value = lab.get(&[
        "events",
        "--field-selector",
        &format!("involvedObject.name={pod},reason=PodEvicted"),
    ])?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}
