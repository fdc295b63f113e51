//! A node with too few healthy GPUs gets a taint after a while, one that has enough of them does not.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{AuditEvent, Lab, NodeWatch, T4, eventually, is_event_since, taints};
use gpunode_scenario::RecoveryAction;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::time::Duration;

const RESOURCE: &str = "nvidia.com/gpu";
const KEY: &str = "gpunode.dev/unhealthy";
const LIMIT: Duration = Duration::from_mins(3);
const AFTER: SignedDuration = SignedDuration::from_secs(15);

/// Since when the GPUs of the node are broken, in the order in which they broke.
fn broken_since(lab: &Lab) -> Result<Vec<Timestamp>> {
    let object = lab.get(&["gpunode", T4])?;
    let gpus = object["status"]["gpus"]
        .as_array()
        .context("find the GPUs of a GpuNode")?;
    let broken = gpus
        .iter()
        .map(|gpu| &gpu["health"])
        .filter(|health| health["state"] == "Unhealthy");
    let since = broken.map(|health| {
        health["since"]
            .as_str()
            .unwrap_or_default()
            .parse()
            .context("read since when")
    });
    let mut since = since.collect::<Result<Vec<Timestamp>>>()?;
    since.sort();
    Ok(since)
}

fn has_taint(node: &Value) -> bool {
    taints(node).contains(&format!("{KEY}=:NoSchedule"))
}

fn await_taint(lab: &Lab, is_there: bool) -> Result<()> {
    eventually(&format!("taint there: {is_there}"), LIMIT, || {
        let node = lab.node(T4)?;
        ensure!(has_taint(&node) == is_there, "it has {:?}", taints(&node));
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_is_tainted_while_it_has_had_too_few_healthy_gpus_for_a_while() -> Result<()> {
    let lab = Lab::enter()?;
    let start = Timestamp::now();
    samples::advertise_four_t4(&lab, "  unhealthyTaint: {after: 15s, minHealthy: 3}\n")?;
    let (audit, watch) = (lab.audit()?, NodeWatch::start(&lab, T4)?);
    let gpus = lab.gpu_uuids(T4)?;
    let [first, second, ..] = gpus.as_slice() else {
        anyhow::bail!("the node has {gpus:?}")
    };

    let broken = lab.break_gpu(T4, first)?;
    let also_broken = lab.break_gpu(T4, second)?;
    lab.await_allocatable(T4, RESOURCE, 2)?;
    let too_few_since = *broken_since(&lab)?.get(1).context("two GPUs are broken")?;
    await_taint(&lab, true)?;
    let writes = audit.gpunode_writes()?;
    let with_taint = |event: &&AuditEvent| event.request().is_some_and(|sent| sent.to_string().contains(KEY));
    let first_write = writes
        .iter()
        .find(with_taint)
        .context("nobody wrote the taint")?
        .time()?;
    assert!(
        first_write.duration_since(too_few_since) >= AFTER,
        "{first_write}, and too few since {too_few_since}"
    );
    let status = lab.gpunode(&["status", T4])?;
    ensure!(status.contains("are unhealthy since"), "{status}");
    let why = lab.gpunode(&["explain", T4])?;
    ensure!(why.contains("spec.unhealthyTaint"), "{why}");

    also_broken.repair()?;
    await_taint(&lab, false)?;
    lab.await_allocatable(T4, RESOURCE, 3)?;
    let mut had: Vec<bool> = watch.states(&lab)?.iter().map(has_taint).collect();
    had.dedup();
    assert_eq!(had, [false, true, false]);
    broken.repair()?;
    lab.await_allocatable(T4, RESOURCE, 4)?;

    // The same fault of the same GPU once more.
    let broken_again = lab.break_gpu(T4, second)?;
    eventually("the events of each GPU are a series", LIMIT, || {
        let counts = (
            unhealthy_events(&lab, first, start)?,
            unhealthy_events(&lab, second, start)?,
        );
        // An XID, and the reset that the driver asks for.
        ensure!(counts == (vec![1, 1], vec![2, 2]), "they were sent {counts:?} times");
        Ok(())
    })?;
    broken_again.repair()
}

/// Returns how often each event of a broken GPU of the node was sent.
fn unhealthy_events(lab: &Lab, gpu: &str, start: Timestamp) -> Result<Vec<u64>> {
    let selector = format!("involvedObject.kind=Node,involvedObject.name={T4},reason=GpuUnhealthy");
    let events = lab.get(&["events", "--field-selector", &selector])?;
    let is_of_gpu = |event: &Value| event["message"].as_str().is_some_and(|message| message.contains(gpu));
    let events = events["items"].as_array().into_iter().flatten();
    Ok(events
        .filter(|event| is_event_since(event, start) && is_of_gpu(event))
        .map(|event| event["series"]["count"].as_u64().unwrap_or(1))
        .collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_with_one_broken_gpu_stays_in_service_where_one_healthy_gpu_is_enough() -> Result<()> {
    let lab = Lab::enter()?;
    let policy = |least: u32| {
        samples::sharing("inference", "{}") + &format!("  unhealthyTaint: {{after: 0s, minHealthy: {least}}}\n")
    };
    lab.apply(&policy(1))?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    let gpu = lab.gpu_uuids(T4)?.into_iter().next().context("find a GPU")?;
    let drained = lab.break_gpu_by(T4, &gpu, |state, index| {
        state.set_recovery_action(index, RecoveryAction::DrainP2p)
    })?;
    lab.await_allocatable(T4, RESOURCE, 3)?;
    // A new label shows what the operator does after it has seen that.
    let evicting = "  unhealthyTaint: {effect: NoExecute, after: 0s, minHealthy: 4}\n  labels: {drained: 'yes'}\n";
    lab.apply(&(samples::sharing("inference", "{}") + evicting))?;
    lab.await_ready("sharing")?;
    let found = taints(&lab.node(T4)?);
    ensure!(
        !found.iter().any(|taint| taint.starts_with(KEY)),
        "no pod has to go: {found:?}"
    );
    drained.repair()?;
    lab.apply(&policy(1))?;
    lab.await_allocatable(T4, RESOURCE, 4)?;

    let broken = lab.break_gpu(T4, &gpu)?;
    lab.await_allocatable(T4, RESOURCE, 3)?;
    // What the operator does after it has seen the broken GPU: it counts the nodes of the policy again.
    lab.apply(&(policy(1) + "  labels: {seen: 'yes'}\n"))?;
    lab.await_ready("sharing")?;
    ensure!(!has_taint(&lab.node(T4)?), "one bad GPU takes no node away");
    lab.apply(&samples::deployment("steady", "inference", 3).replace("[{operator: Exists}]", "[]"))?;
    lab.kubectl(&["rollout", "status", "deployment/steady", "--timeout=180s"])?;

    lab.apply(&policy(4))?;
    await_taint(&lab, true)?;
    lab.kubectl(&["rollout", "status", "deployment/steady", "--timeout=180s"])?;
    lab.apply(&samples::sharing("inference", "{}"))?;
    await_taint(&lab, false)?;
    broken.repair()
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_preview_that_would_taint_an_unhealthy_node_says_so_in_its_status() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&format!(
        "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: previewed}}\nspec:\n  mode: Preview\n  \
         nodeSelector: {{matchLabels: {{kubernetes.io/hostname: {T4}}}}}\n  unhealthyTaint: {{minHealthy: 64, after: 0s}}\n"
    ))?;
    eventually("the status lists the taint", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "previewed"])?;
        let status = &policy["status"];
        ensure!(
            status["observedGeneration"] == policy["metadata"]["generation"]
                && status["preview"][0]["setTaints"][0]["key"] == KEY,
            "status is {status}"
        );
        Ok(())
    })
}
