//! Several resources with different sharing on one node, and what a change of one means to the others.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{HeldRecorder, KubeletLog, Lab, NodeWatch, T4, condition, device_of, eventually, held};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);

/// Two whole T4, and two on which four containers take turns.
const TWO_RESOURCES: &str = "{resources: [
    {name: nvidia.com/gpu, devices: {indices: [0, 1]}},
    {name: nvidia.com/t4, sharing: {strategy: TimeSlicing, replicas: 4, renameByDefault: true, failRequestsGreaterThanOne: true}}]}";

/// Pods on each of these GPUs, all others being none of them.
fn pods_per_gpu(lab: &Lab, pods: &[String], gpus: &[String]) -> Result<Vec<usize>> {
    let mut counts: BTreeMap<&String, usize> = gpus.iter().map(|gpu| (gpu, 0)).collect();
    for pod in pods {
        for gpu in lab.visible(pod)? {
            *counts
                .get_mut(&gpu)
                .with_context(|| format!("{pod} sees {gpu}, which is none of {gpus:?}"))? += 1;
        }
    }
    Ok(gpus.iter().filter_map(|gpu| counts.get(gpu)).copied().collect())
}

/// (pod, device, number of shares) as the agent reports them.
fn reported_holders(lab: &Lab, node: &str) -> Result<BTreeSet<(String, String, u64)>> {
    let object = lab.get(&["gpunode", node])?;
    let holders = object["status"]["holders"].as_array().cloned().unwrap_or_default();
    holders
        .iter()
        .map(|holder| {
            let text = |field: &str| holder[field].as_str().map(str::to_owned).context("read a holder");
            Ok((
                text("pod")?,
                text("device")?,
                holder["count"].as_u64().context("read a holder's count")?,
            ))
        })
        .collect()
}

/// The same, from the kubelet and the kernel.
fn true_holders(lab: &Lab, node: &str) -> Result<BTreeSet<(String, String, u64)>> {
    let mut holders = BTreeMap::new();
    for (pod, ids) in held(&lab.cluster().node(node)?)? {
        for id in ids {
            *holders.entry((pod.clone(), device_of(&id).to_owned())).or_default() += 1;
        }
    }
    Ok(holders
        .into_iter()
        .map(|((pod, device), count)| (pod, device, count))
        .collect())
}

/// Waits until `GpuNode.status` names so many holders, and those that kubelet and kernel know.
pub fn await_holders(lab: &Lab, node: &str, count: usize) -> Result<()> {
    eventually("GpuNode.status names the holders", LIMIT, || {
        let (reported, truth) = (reported_holders(lab, node)?, true_holders(lab, node)?);
        ensure!(
            reported == truth && truth.len() == count,
            "it says {reported:?}, true are {truth:?}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn two_resources_of_one_node_are_shared_in_their_own_ways() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("inference", TWO_RESOURCES))?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 2)?;
    lab.await_allocatable(T4, "nvidia.com/t4.shared", 8)?;
    let gpus = lab.gpu_uuids(T4)?;
    let (whole, shared) = gpus.split_at_checked(2).context("find four GPUs")?;

    lab.apply(&samples::holding("whole", "inference", 2, "nvidia.com/gpu", 1))?;
    lab.apply(&samples::holding("turns", "inference", 6, "nvidia.com/t4.shared", 1))?;
    assert_eq!(pods_per_gpu(&lab, &lab.await_running("whole", 2)?, whole)?, [1, 1]);
    assert_eq!(
        pods_per_gpu(&lab, &lab.await_running("turns", 6)?, shared)?,
        [3, 3],
        "each goes to the emptier GPU"
    );
    await_holders(&lab, T4, 8)?;

    // Two replicas are free, and two are not twice the GPU.
    lab.apply(&samples::holding("greedy", "inference", 1, "nvidia.com/t4.shared", 2))?;
    let message = refusal(&lab, "greedy")?;
    ensure!(
        message.contains("nvidia.com/t4.shared") && message.contains('2'),
        "{message}"
    );
    lab.kubectl(&["delete", "deployment", "greedy", "turns", "--timeout=90s"])?;
    await_holders(&lab, T4, 2)
}

/// Returns the message of a pod of the app that the kubelet refused.
fn refusal(lab: &Lab, app: &str) -> Result<String> {
    eventually(&format!("a pod of {app} is refused"), LIMIT, || {
        let pods = lab.get(&["pods", "-l", &format!("app={app}")])?;
        pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|pod| pod["status"]["reason"] == "UnexpectedAdmissionError")
            .and_then(|pod| pod["status"]["message"].as_str())
            .map(str::to_owned)
            .with_context(|| format!("none of {} was", crate::sharing::phases(&pods)))
    })
}

/// The phases of pods, for a message.
pub fn phases(pods: &Value) -> String {
    let items = pods["items"].as_array().into_iter().flatten();
    items
        .map(|pod| pod["status"]["phase"].as_str().unwrap_or("?"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the rejections of pods by the kubelet: event, pod and message.
fn rejections(lab: &Lab) -> Result<Vec<(String, String, String)>> {
    let list = lab.get(&["events", "--field-selector", "reason=UnexpectedAdmissionError"])?;
    let items = list["items"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(items
        .map(|event| {
            let name = text(&event["metadata"]["name"]);
            (name, text(&event["involvedObject"]["name"]), text(&event["message"]))
        })
        .collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_replicas_of_one_request_are_turns_on_different_gpus() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    lab.apply(&samples::holding("four", "inference", 1, "nvidia.com/gpu", 4))?;
    let pods = lab.await_running("four", 1)?;
    assert_eq!(pods_per_gpu(&lab, &pods, &lab.gpu_uuids(T4)?)?, [1, 1, 1, 1]);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_change_of_one_resource_leaves_the_others_as_they_are() -> Result<()> {
    let lab = Lab::enter()?;
    let shared = |replicas: usize, more: &str| {
        samples::sharing(
            "inference",
            &format!(
                "{{resources: [{{name: nvidia.com/gpu, devices: {{indices: [0, 1]}}}},
                {{name: example.com/turns, devices: {{indices: [2]}}, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}{more}]}}"
            ),
        )
    };
    let more = ", {name: example.com/memory, sharing: {strategy: Memory}}";
    lab.apply(&shared(4, ""))?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 2)?;
    lab.await_allocatable(T4, "example.com/turns", 4)?;
    lab.await_ready("sharing")?;
    lab.apply(&samples::holding("whole", "inference", 1, "nvidia.com/gpu", 1))?;
    lab.apply(&samples::holding("turns", "inference", 2, "example.com/turns", 1))?;
    lab.await_running("whole", 1)?;
    let turns = lab.await_running("turns", 2)?;
    let agent = lab.await_plugin(T4)?;

    let log = KubeletLog::from_now(&lab, T4)?;
    let watch = NodeWatch::start(&lab, T4)?;
    let recorder = HeldRecorder::start(&lab, T4)?;

    // Another resource comes.
    lab.apply(&shared(4, more))?;
    lab.await_allocatable(T4, "example.com/memory", 15)?;
    // One gets more replicas while it is held: they come at once.
    lab.apply(&shared(8, more))?;
    lab.await_allocatable(T4, "example.com/turns", 8)?;
    lab.await_ready("sharing")?;
    assert_eq!(lab.await_running("turns", 2)?, turns);
    lab.kubectl(&["delete", "deployment", "turns", "--timeout=90s"])?;
    assert_eq!(watch.allocatable(&lab, "nvidia.com/gpu")?, [Some(2)]);
    assert_eq!(watch.allocatable(&lab, "example.com/turns")?, [Some(4), Some(8)]);
    assert_eq!(log.lost_endpoints()?, Vec::<String>::new());
    // A resource goes.
    lab.apply(&shared(8, ""))?;
    lab.await_allocatable(T4, "example.com/memory", 0)?;
    lab.await_ready("sharing")?;

    assert_eq!(watch.allocatable(&lab, "nvidia.com/gpu")?, [Some(2)]);
    let lost: Vec<String> = log
        .lost_endpoints()?
        .into_iter()
        .filter(|line| !line.contains("example.com/memory"))
        .collect();
    assert_eq!(lost, Vec::<String>::new());
    assert_eq!(lab.await_plugin(T4)?, agent, "the same pod goes on");
    recorder.finish()?.check_never_overcommitted(8)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_deployment_that_fits_fewer_time_slices_gets_there_with_a_few_restarts() -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    let lab = Lab::enter()?;
    let turns = |replicas: usize| {
        let sharing = format!("{{strategy: TimeSlicing, replicas: {replicas}}}");
        samples::sharing(
            "inference",
            &format!("{{resources: [{{name: {GPU}, sharing: {sharing}}}]}}"),
        )
    };
    lab.apply(&turns(4))?;
    lab.await_allocatable(T4, GPU, 16)?;
    lab.await_ready("sharing")?;
    // With a grace period, as pods have it: without one the next pod gets a slice before anybody can see that it is free.
    let deployment = samples::deployment("turns", "inference", 14)
        .replace("terminationGracePeriodSeconds: 0", "terminationGracePeriodSeconds: 30")
        .replace("exec sleep 100000", r#"trap "exit 0" TERM; sleep 100000 & wait"#);
    lab.apply(&deployment)?;
    lab.await_running("turns", 14)?;
    // Those of earlier tests stay for an hour.
    let earlier: BTreeSet<String> = rejections(&lab)?.into_iter().map(|(event, ..)| event).collect();
    let log = KubeletLog::from_now(&lab, T4)?;
    let recorder = HeldRecorder::start(&lab, T4)?;

    let change = lab.begin(&turns(2))?;
    eventually("the policy waits for pods", LIMIT, || {
        let waiting = condition(&lab.get(&["gpunodepolicy", "sharing"])?, "Waiting");
        ensure!(
            waiting["status"] == "True" && waiting["reason"] == "PodsHoldDevices",
            "{waiting}"
        );
        Ok(())
    })?;
    lab.await_ready("sharing")?;
    lab.kubectl(&["scale", "deployment/turns", "--replicas=8"])?;
    lab.await_running("turns", 8)?;
    // Until then pods that come beside their predecessors get slices that the configuration has no longer.
    lab.await_allocatable(T4, GPU, 8)?;
    let mut restarts = 0;
    let waits = |limit: &str| {
        let waits = ["wait", "gpunodepolicy/sharing", "--for=condition=Waiting=false"];
        Ok::<_, anyhow::Error>(!lab.try_kubectl(&[&waits[..], &[limit]].concat())?.status.success())
    };
    // A pod may get a slice before the agent has seen that it is free, the more often the faster the kubelet is; the next restart
    // frees it again.
    while restarts < 2 || waits("--timeout=20s")? {
        ensure!(
            restarts < 12,
            "{restarts} restarts leave a GPU with more slices than it should have"
        );
        restarts += 1;
        lab.kubectl(&["rollout", "restart", "deployment/turns"])?;
        lab.kubectl(&["rollout", "status", "deployment/turns", "--timeout=180s"])?;
    }
    let waiting = &lab.get(&["gpunodepolicy", "sharing"])?["status"]["waiting"];
    ensure!(waiting.as_array().is_none_or(Vec::is_empty), "it waits for {waiting}");
    lab.await_allocatable(T4, GPU, 8)?;
    change.check()?;

    let mut rejected = rejections(&lab)?;
    rejected.retain(|(event, ..)| !earlier.contains(event));
    // A kubelet that lists holders, and finds a pod gone, while it allocates forgets what it is about to record, and gives that slice
    // to the next pod too (`UpdateAllocatedDevices` in `pkg/kubelet/cm/devicemanager/manager.go`). The agent must refuse it.
    let (given_twice, others): (Vec<_>, Vec<_>) = rejected
        .into_iter()
        .partition(|(_, _, message)| message.contains("so another container cannot get it"));
    assert_eq!(others, Vec::new(), "no pod was rejected for the change");
    ensure!(given_twice.len() <= 1, "a race of the kubelet is rare: {given_twice:?}");
    let mut pods = lab.get(&["pods", "-l", "app=turns"])?;
    if let Some(items) = pods["items"].as_array_mut() {
        items.retain(|pod| !given_twice.iter().any(|(_, name, _)| pod["metadata"]["name"] == **name));
    }
    let phases = phases(&pods);
    ensure!(!phases.contains("Failed"), "{phases}");
    assert_eq!(log.lost_endpoints()?, Vec::<String>::new());
    recorder.finish()?.check_never_overcommitted(4)
}
