//! The startup taint keeps pods off a node from its start on until its GPUs are allocatable.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{CPU, Lab, NodeWatch, T4, condition, eventually, taints};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::time::Duration;

const RESOURCE: &str = "nvidia.com/gpu";
const DEFAULT_KEY: &str = "gpunode.dev/not-ready";
/// By which cluster-autoscaler knows that a node is about to become usable.
const AUTOSCALER_KEY: &str = "startup-taint.cluster-autoscaler.kubernetes.io/gpu";
/// A boot of a node and of all its pods.
const BOOT: Duration = Duration::from_mins(3);
/// Of a node that is Ready and about which no agent has reported.
const UNREPORTED: SignedDuration = SignedDuration::from_mins(2);
/// Time that the operator and a busy machine may add.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

fn policy(startup_taint: &str) -> String {
    samples::sharing("inference", "{}") + &format!("  startupTaint: {startup_taint}\n")
}

fn has(node: &Value, key: &str) -> bool {
    taints(node).contains(&format!("{key}=:NoSchedule"))
}

fn await_without(lab: &Lab, node: &str, key: &str, limit: Duration) -> Result<Value> {
    eventually(&format!("taint {key} goes from {node}"), limit, || {
        let node = lab.node(node)?;
        ensure!(!has(&node, key), "it has {:?}", taints(&node));
        Ok(node)
    })
}

/// Removes the Node and lets its kubelet register it anew with taints. Returns when the Node is there, with its UID.
fn join(lab: &Lab, node: &str, with: &[&str]) -> Result<Value> {
    let machine = lab.cluster().node(node)?.registering_with(with);
    machine.stop_kubelet()?;
    let before = lab.node(node)?["metadata"]["uid"].clone();
    lab.kubectl(&["delete", "node", node, "--timeout=90s"])?;
    machine.start_kubelet()?;
    eventually(&format!("{node} has joined"), BOOT, || {
        let uid = lab.node(node)?["metadata"]["uid"].clone();
        ensure!(uid != before, "it is the one from before");
        Ok(uid)
    })
}

/// Returns the states of a taint on the Node with this UID, in order and each once, and the allocatable GPUs at its last removal.
fn history(lab: &Lab, watch: &NodeWatch, uid: &Value, key: &str) -> Result<(Vec<bool>, Option<u64>)> {
    let states = watch.states(lab)?;
    let states: Vec<_> = states.iter().filter(|state| state["metadata"]["uid"] == *uid).collect();
    let with_it = states
        .iter()
        .rposition(|state| has(state, key))
        .context("the node never had the taint")?;
    let lost = states.get(with_it + 1).context("the node still has the taint")?;
    let allocatable = lost["status"]["allocatable"][RESOURCE]
        .as_str()
        .and_then(|count| count.parse().ok());
    let mut had: Vec<bool> = states.iter().map(|state| has(state, key)).collect();
    had.dedup();
    Ok((had, allocatable))
}

fn ready_since(node: &Value) -> Result<Timestamp> {
    let ready = condition(node, "Ready");
    ensure!(ready["status"] == "True", "it is {ready}");
    ready["lastTransitionTime"]
        .as_str()
        .unwrap_or_default()
        .parse()
        .context("read since when the node is Ready")
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_that_boots_gets_no_pod_before_its_gpus_are_allocatable_again() -> Result<()> {
    let lab = Lab::enter()?;
    // An operator that goes down with the node would see it when all is well again.
    lab.move_operator_off(T4)?;
    lab.apply(&policy("{}"))?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.await_ready("sharing")?;
    let before = await_without(&lab, T4, DEFAULT_KEY, BOOT)?;
    let watch = NodeWatch::start(&lab, T4)?;

    lab.cluster().node(T4)?.reboot()?;
    let booted = eventually("the node has the taint in its new boot", BOOT, || {
        let states = watch.states(&lab)?;
        states
            .into_iter()
            .find(|state| has(state, DEFAULT_KEY))
            .context("it has not had it yet")
    })?;
    let boot = |node: &Value| node["status"]["nodeInfo"]["bootID"].clone();
    assert_ne!(boot(&booted), boot(&before));
    // It tolerates no taint, so it comes when the GPUs have.
    lab.apply(&samples::deployment("late", "inference", 1).replace("[{operator: Exists}]", "[]"))?;
    let after = await_without(&lab, T4, DEFAULT_KEY, BOOT)?;
    let (had, allocatable) = history(&lab, &watch, &after["metadata"]["uid"], DEFAULT_KEY)?;
    assert_eq!((had, allocatable), (vec![false, true, false], Some(4)));
    lab.kubectl(&["rollout", "status", "deployment/late", "--timeout=180s"])?;
    let pods = lab.get(&["pods", "-l", "app=late"])?;
    assert_eq!(
        pods["items"].as_array().map(Vec::len),
        Some(1),
        "none was rejected: {pods}"
    );
    lab.await_ready("sharing")?;
    let told = lab.node(T4)?["metadata"]["annotations"]["gpunode.dev/owned"].clone();
    let started = boot(&after);
    ensure!(
        told.as_str()
            .is_some_and(|told| told.contains(started.as_str().unwrap_or("?"))),
        "{told}, not {started}"
    );
    Ok(())
}

/// As nodes of a pool do that is made with `--register-with-taints`.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_that_joins_with_the_startup_taint_keeps_it_until_its_gpus_are_allocatable() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&policy(&format!("{{key: {AUTOSCALER_KEY}}}")))?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.await_ready("sharing")?;
    let watch = NodeWatch::start(&lab, T4)?;
    let uid = join(&lab, T4, &[&format!("{AUTOSCALER_KEY}=:NoSchedule")])?;
    await_without(&lab, T4, AUTOSCALER_KEY, BOOT)?;
    assert_eq!(
        history(&lab, &watch, &uid, AUTOSCALER_KEY)?,
        (vec![true, false], Some(4))
    );
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.await_ready("sharing")?;
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_startup_taint_that_no_policy_wants_goes_when_the_agent_has_reported() -> Result<()> {
    let lab = Lab::enter()?;
    join(&lab, T4, &[&format!("{DEFAULT_KEY}=:NoSchedule")])?;
    let node = await_without(&lab, T4, DEFAULT_KEY, BOOT)?;
    let waited = Timestamp::now().duration_since(ready_since(&node)?);
    assert!(waited < UNREPORTED, "{waited:?}");
    Ok(())
}

/// Checks that a startup taint that no policy wants stays for two minutes where no agent reports. Takes as long.
pub fn ensure_startup_taint_stays_without_a_report(lab: &Lab) -> Result<()> {
    let (audit, watch) = (lab.audit()?, NodeWatch::start(lab, CPU)?);
    // The first is what this node always joins with.
    let uid = join(
        lab,
        CPU,
        &[
            "gpunode.dev/joining=:PreferNoSchedule",
            &format!("{DEFAULT_KEY}=:NoSchedule"),
        ],
    )?;
    let node = await_without(lab, CPU, DEFAULT_KEY, BOOT + Duration::from_mins(2))?;
    let (had, _) = history(lab, &watch, &uid, DEFAULT_KEY)?;
    ensure!(had == [true, false], "it had the taint: {had:?}");
    let writes = audit.gpunode_writes()?;
    let of_taints = |sent: &Value| sent.to_string().contains("/spec/taints");
    let written = writes
        .iter()
        .rfind(|event| event.name() == CPU && event.request().is_some_and(of_taints));
    let waited = written
        .context("nobody wrote the node")?
        .time()?
        .duration_since(ready_since(&node)?);
    ensure!((UNREPORTED..UNREPORTED + PATIENCE).contains(&waited), "{waited:?}");
    let left = taints(&node);
    ensure!(
        left == ["gpunode.dev/joining=:PreferNoSchedule"],
        "the other is nobody's: {left:?}"
    );
    Ok(())
}
