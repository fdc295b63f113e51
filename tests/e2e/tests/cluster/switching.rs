//! A GPU changes its sharing while containers hold it: nothing is given out twice, and nobody has to go.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{HeldRecorder, KubeletLog, Lab, NodeWatch, T4, eventually};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);
const RESOURCE: &str = "nvidia.com/gpu";
const EXCLUSIVE: &str = "{}";
const TURNS: &str = "{resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]}";

/// The devices that the policy's status says are waited for, with the pods that hold them.
fn waiting(lab: &Lab) -> Result<BTreeMap<String, Vec<String>>> {
    let policy = lab.get(&["gpunodepolicy", "sharing"])?;
    let entries = policy["status"]["waiting"].as_array().cloned().unwrap_or_default();
    entries
        .iter()
        .map(|entry| {
            ensure!(entry["node"] == T4, "it waits for {entry}");
            let pods = entry["pods"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|pod| pod.as_str());
            Ok((
                entry["device"].as_str().context("read a device")?.to_owned(),
                pods.map(str::to_owned).collect(),
            ))
        })
        .collect()
}

/// Waits until exactly these pods are waited for, and gives their devices.
fn await_waiting(lab: &Lab, pods: &[String]) -> Result<BTreeSet<String>> {
    let wanted: BTreeSet<String> = pods.iter().map(|pod| format!("default/{pod}")).collect();
    eventually("the policy's status names who it waits for", LIMIT, || {
        let waiting = waiting(lab)?;
        let named: BTreeSet<String> = waiting.values().flatten().cloned().collect();
        // A free GPU that changes is there for a moment, without pods.
        let is_settled = waiting.values().all(|pods| !pods.is_empty());
        ensure!(named == wanted && is_settled, "it names {waiting:?}, not {wanted:?}");
        Ok(waiting.into_keys().collect())
    })
}

fn gpu(lab: &Lab, pod: &str) -> Result<String> {
    lab.visible(pod)?.pop_first().context("find the pod's GPU")
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_held_gpu_becomes_shared_and_whole_again_and_is_never_given_out_twice() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("inference", EXCLUSIVE))?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.await_ready("sharing")?;
    let watch = NodeWatch::start(&lab, T4)?;
    let log = KubeletLog::from_now(&lab, T4)?;
    let recorder = HeldRecorder::start(&lab, T4)?;
    lab.apply(&samples::holding("holder", "inference", 1, RESOURCE, 1))?;
    lab.apply(&samples::holding("others", "inference", 2, RESOURCE, 1))?;
    let holder = lab.await_running("holder", 1)?;
    let others = lab.await_running("others", 2)?;
    let held = gpu(&lab, holder.first().context("find the holder")?)?;

    // Time-slicing: the free GPU at once, those of the three pods when they end.
    lab.apply(&samples::sharing("inference", TURNS))?;
    lab.await_allocatable(T4, RESOURCE, 3 + 4)?;
    await_waiting(&lab, &[&holder[..], &others].concat())?;
    lab.await_ready("sharing")?;
    // No pod waits in the scheduler while others end: it would be given one of their ids before the agent knows that they
    // are free, and the GPU would go on as it was.
    lab.apply(&samples::holding("turns", "inference", 4, RESOURCE, 1))?;
    let turns = lab.await_running("turns", 4)?;
    let gpus: BTreeSet<String> = turns.iter().map(|pod| gpu(&lab, pod)).collect::<Result<_>>()?;
    assert_eq!(gpus.len(), 1, "four take turns on the GPU that was free");
    lab.kubectl(&["delete", "deployment", "others", "--timeout=90s"])?;
    lab.await_allocatable(T4, RESOURCE, 1 + 3 * 4)?;
    lab.apply(&samples::holding("turns", "inference", 5, RESOURCE, 1))?;
    let turns = lab.await_running("turns", 5)?;
    assert_eq!(await_waiting(&lab, &holder)?, BTreeSet::from([held.clone()]));

    // Whole again: the holder's GPU always was, those of the five when they end.
    lab.apply(&samples::sharing("inference", EXCLUSIVE))?;
    lab.await_allocatable(T4, RESOURCE, 1 + 5 + 1)?;
    let busy = await_waiting(&lab, &turns)?;
    ensure!(
        busy.len() == 2 && !busy.contains(&held),
        "it waits for {busy:?}, and {held} is as it is to be"
    );
    lab.await_ready("sharing")?;
    lab.apply(&samples::holding("alone", "inference", 1, RESOURCE, 1))?;
    lab.await_running("alone", 1)?;
    lab.kubectl(&["delete", "deployment", "turns", "--timeout=90s"])?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.apply(&samples::holding("alone", "inference", 3, RESOURCE, 1))?;
    lab.await_running("alone", 3)?;
    await_waiting(&lab, &[])?;
    assert_eq!(lab.await_running("holder", 1)?, holder, "nobody had to go");

    let recording = recorder.finish()?;
    recording.check_never_overcommitted(4)?;
    // Each deployment that came or went above, and the beginning.
    ensure!(
        recording.held.len() >= 8,
        "it saw {} different states in {} looks",
        recording.held.len(),
        recording.looks
    );
    assert_eq!(log.lost_endpoints()?, Vec::<String>::new());
    let offered = watch.allocatable(&lab, RESOURCE)?;
    ensure!(
        offered.iter().all(|number| number.is_some_and(|number| number >= 2)),
        "it offered {offered:?} in turn"
    );
    Ok(())
}
