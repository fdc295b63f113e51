//! Pods get the GPUs that they ask for, alone or in turns.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{A100, Lab, MIXED, T4, V100, eventually};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);

#[test]
#[ignore = "needs the local cluster: make test"]
fn tolerating_pods_run_on_the_v100_node_and_see_the_gpus_they_were_given() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    lab.apply(&samples::pods(&lab, "pods-on-v100")?)?;

    let mut held = Vec::new();
    for (pod, count) in [("gpu-pod", 1), ("gpu-pod-2", 2), ("gpu-pod-4", 4)] {
        let object = lab.await_pod(pod, "Running")?;
        assert_eq!(object["spec"]["nodeName"], V100);
        let seen = lab.visible(pod)?;
        assert_eq!(seen.len(), count, "{pod} sees {seen:?}");
        held.extend(seen);
    }
    lab.kubectl(&["wait", "job/gpu-job", "--for=condition=Complete", "--timeout=180s"])?;
    let printed = lab.kubectl(&["logs", "job/gpu-job"])?;
    let of_node: BTreeSet<String> = lab.gpu_uuids(V100)?.into_iter().collect();
    ensure!(
        printed.contains("/dev/nvidia"),
        "gpu-job printed {printed:?}, and no device node"
    );

    let distinct: BTreeSet<String> = held.iter().cloned().collect();
    assert_eq!(distinct.len(), held.len(), "no GPU is given out twice: {held:?}");
    ensure!(distinct.is_subset(&of_node), "{distinct:?} are not of {of_node:?}");
    eventually("the table of GpuNodes tells what is held and by whom", LIMIT, || {
        let table = lab.kubectl(&["get", "gpunodes", V100, "-o", "wide"])?;
        let told = [
            "nvidia.com/gpu 7/8",
            "default/gpu-pod, default/gpu-pod-2, default/gpu-pod-4",
        ];
        ensure!(told.iter().all(|text| table.contains(text)), "{table}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_without_the_toleration_stays_pending_and_names_the_taint() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    // The scheduler's message counts tainted nodes and leaves the taint to be read from them: it is the only one there.
    assert_eq!(gpunode_e2e::taints(&lab.node(V100)?), ["dedicated=v100:NoSchedule"]);
    lab.kubectl(&["cordon", T4, A100])?;
    lab.apply(&samples::pods(&lab, "pods")?)?;
    eventually("the pod is unschedulable because of the taint", LIMIT, || {
        let pod = lab.get(&["pod", "gpu-pod"])?;
        let message = gpunode_e2e::condition(&pod, "PodScheduled")["message"].to_string();
        ensure!(
            pod["status"]["phase"] == "Pending" && message.contains("untolerated taint(s)"),
            "it is {}: {message}",
            pod["status"]["phase"]
        );
        let events = lab.get(&[
            "events",
            "--field-selector",
            "involvedObject.name=gpu-pod,reason=FailedScheduling",
        ])?;
        let texts: Vec<&str> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|event| event["message"].as_str())
            .collect();
        ensure!(
            texts.iter().any(|text| text.contains("untolerated taint")),
            "events say {texts:?}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn four_t4_with_four_replicas_run_sixteen_pods_four_on_each_gpu() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    lab.apply(&samples::deployment("slices", "inference", 16))?;
    lab.kubectl(&["rollout", "status", "deployment/slices", "--timeout=180s"])?;

    let pods = lab.get(&["pods", "-l", "app=slices"])?;
    let mut per_gpu: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        assert_eq!(pod["spec"]["nodeName"], T4);
        for uuid in lab.visible(name)? {
            *per_gpu.entry(uuid).or_default() += 1;
        }
    }
    assert_eq!(
        per_gpu.values().copied().collect::<Vec<_>>(),
        [4, 4, 4, 4],
        "{per_gpu:?}"
    );
    let of_node: BTreeSet<String> = lab.gpu_uuids(T4)?.into_iter().collect();
    assert_eq!(per_gpu.into_keys().collect::<BTreeSet<_>>(), of_node);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn sample_pods_that_share_gpus_run_as_they_are() -> Result<()> {
    let lab = Lab::enter()?;
    for (policy, label, pool) in [
        ("gpu-mem", "sharing: memory", "pool: inference"),
        ("mps", "sharing: mps", "pool: training"),
        ("a100-mig-mixed", "pool: a100", "pool: mixed"),
    ] {
        // The nodes of the local cluster have other labels.
        lab.apply(&samples::policy(policy)?.replace(label, pool))?;
    }
    lab.apply(&samples::pods(&lab, "pods-shared")?)?;
    lab.await_running("gpu-mem", 2)?;
    for (pod, node) in [("mps", V100), ("mig", MIXED)] {
        assert_eq!(lab.await_pod(pod, "Running")?["spec"]["nodeName"], node, "{pod}");
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn device_nodes_are_passed_where_the_policy_says_so() -> Result<()> {
    let lab = Lab::enter()?;
    let policy = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: device-nodes}
spec:
  nodeSelector: {matchLabels: {pool: a100}}
  devicePlugin: {passDeviceSpecs: true}
";
    lab.apply(policy)?;
    lab.await_allocatable(A100, "nvidia.com/gpu", 8)?;
    lab.apply(&samples::deployment("with-nodes", "a100", 1))?;
    lab.kubectl(&["rollout", "status", "deployment/with-nodes", "--timeout=180s"])?;
    let pods: Value = lab.get(&["pods", "-l", "app=with-nodes"])?;
    let pod = gpunode_e2e::names(&pods).pop().context("find the pod")?;
    let nodes = lab.kubectl(&["exec", &pod, "--", "sh", "-c", "ls /dev | grep nvidia | sort"])?;
    let numbered = nodes
        .lines()
        .filter(|name| name.trim_start_matches("nvidia").parse::<u32>().is_ok())
        .count();
    assert_eq!(numbered, 1, "one GPU's device node: {nodes}");
    assert!(nodes.lines().any(|name| name == "nvidiactl"), "{nodes}");
    Ok(())
}
