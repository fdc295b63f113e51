//! Faults on the node: what breaks recovers without human help, and running pods keep running.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Signal;
use gpunode_e2e::{KubeletLog, Lab, NAMESPACE, T4, V100, eventually};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

/// Names and restart counts of the pods of the Deployment that runs through the fault.
pub fn running(lab: &Lab) -> Result<Vec<(String, Value)>> {
    let pods = lab.get(&["pods", "-l", "app=steady"])?;
    let items = pods["items"].as_array().context("list pods")?;
    items
        .iter()
        .map(|pod| {
            ensure!(
                pod["status"]["phase"] == "Running",
                "{} is {}",
                pod["metadata"]["name"],
                pod["status"]["phase"]
            );
            Ok((
                pod["metadata"]["uid"].to_string(),
                pod["status"]["containerStatuses"][0]["containerID"].clone(),
            ))
        })
        .collect()
}

/// A cluster with the policy for T4 in force and four pods that hold GPUs.
pub fn steady(lab: &Lab) -> Result<Vec<(String, Value)>> {
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    // An agent whose pod is not Ready yet would be replaced without waiting for the next one.
    lab.await_plugin(T4)?;
    lab.apply(&samples::deployment("steady", "inference", 4))?;
    lab.kubectl(&["rollout", "status", "deployment/steady", "--timeout=180s"])?;
    running(lab)
}

/// A pod that asks for a GPU gets one: the plugin is registered with the kubelet that runs now.
pub fn allocates_a_gpu(lab: &Lab, name: &str) -> Result<()> {
    lab.apply(&samples::deployment(name, "inference", 1))?;
    lab.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=180s"])?;
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_restarted_kubelet_gets_its_devices_again() -> Result<()> {
    let lab = Lab::enter()?;
    let before = steady(&lab)?;
    lab.cluster().node(T4)?.restart_kubelet()?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    allocates_a_gpu(&lab, "after-restart")?;
    assert_eq!(running(&lab)?, before, "pods that held GPUs keep running");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_deleted_plugin_socket_is_served_again() -> Result<()> {
    let lab = Lab::enter()?;
    let before = steady(&lab)?;
    let script = "cd /var/lib/kubelet/device-plugins && ls -i gpunode-*.sock && rm gpunode-*.sock";
    let node = lab.cluster().node(T4)?;
    let output = node
        .command("/bin/sh")?
        .args(["-c", script])
        .output()
        .context("delete the plugin's socket")?;
    ensure!(
        output.status.success(),
        "delete the socket: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    eventually("the plugin serves a new socket", LIMIT, || {
        let list = node
            .command("/bin/sh")?
            .args(["-c", "ls -i /var/lib/kubelet/device-plugins/gpunode-*.sock"])
            .output()?;
        ensure!(
            list.status.success() && list.stdout != output.stdout,
            "there is {}",
            String::from_utf8_lossy(&list.stdout)
        );
        Ok(())
    })?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    allocates_a_gpu(&lab, "after-deletion")?;
    assert_eq!(running(&lab)?, before);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_killed_agent_comes_back_and_pods_keep_running() -> Result<()> {
    let lab = Lab::enter()?;
    let before = steady(&lab)?;
    let pod = lab.await_plugin(T4)?;
    let restarts = |lab: &Lab| -> Result<u64> {
        let pod = lab.get(&["pod", "-n", NAMESPACE, &pod])?;
        pod["status"]["containerStatuses"][0]["restartCount"]
            .as_u64()
            .context("read the restart count")
    };
    let earlier = restarts(&lab)?;
    lab.cluster()
        .node(T4)?
        .container_process(NAMESPACE, &pod, "agent")?
        .signal(Signal::KILL)?;
    eventually("the agent was started again", LIMIT, || {
        ensure!(restarts(&lab)? > earlier, "it was not yet");
        Ok(())
    })?;
    lab.await_plugin(T4)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    allocates_a_gpu(&lab, "after-kill")?;
    assert_eq!(running(&lab)?, before);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_agent_that_gets_a_bad_configuration_keeps_the_old_one_and_says_so() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    lab.await_ready("v100-reserved")?;
    let in_force = lab.get(&["gpunode", V100])?["status"]["configHash"].clone();

    // 8 GPUs x 8192 replicas pass every rule of the API, and make a list that no kubelet can receive.
    let too_many = samples::policy("v100-reserved")?.replace(
        "devicePlugin: {}",
        "devicePlugin: {resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 8192}}]}",
    );
    lab.apply(&too_many)?;
    let node = eventually("the agent refuses the configuration", LIMIT, || {
        let node = lab.get(&["gpunode", V100])?;
        ensure!(
            node["status"]["rejectedConfig"]["hash"] == node["spec"]["config"]["hash"],
            "its status is {}",
            node["status"]
        );
        Ok(node)
    })?;
    assert_eq!(
        node["status"]["configHash"], in_force,
        "the old configuration stays in force"
    );
    let accepted = gpunode_e2e::condition(&node, "ConfigurationAccepted");
    assert_eq!(accepted["status"], "False", "{accepted}");
    assert_eq!(accepted["reason"], "ConfigurationRejected");
    assert_eq!(lab.allocatable(V100, "nvidia.com/gpu")?, 8, "the old devices stay");
    eventually("the policy names the node and the reason", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "v100-reserved"])?;
        let failure = &policy["status"]["failures"][0];
        ensure!(
            failure["node"] == V100 && failure["reason"] == "ConfigurationRejected",
            "its status is {}",
            policy["status"]
        );
        ensure!(
            gpunode_e2e::condition(&policy, "Degraded")["status"] == "True",
            "its status is {}",
            policy["status"]
        );
        Ok(())
    })?;

    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    eventually("the agent rejects nothing any more", LIMIT, || {
        let rejected = lab.get(&["gpunode", V100])?["status"]["rejectedConfig"].clone();
        ensure!(rejected.is_null(), "it rejects {rejected}");
        Ok(())
    })
}

/// The log of the node's kubelet names no unhealthy endpoint while a policy's labels change.
#[test]
#[ignore = "needs the local cluster: make test"]
fn a_change_of_labels_does_not_touch_the_plugin() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 16)?;
    lab.await_ready("t4-time-slicing")?;
    let pod = lab.await_plugin(T4)?;
    let log = KubeletLog::from_now(&lab, T4)?;
    lab.apply(&samples::policy("t4-time-slicing")?.replace("nvidia-tesla-t4", "t4"))?;
    lab.await_ready("t4-time-slicing")?;
    assert_eq!(lab.node(T4)?["metadata"]["labels"]["accelerator"], "t4");
    assert_eq!(lab.await_plugin(T4)?, pod, "the same pod goes on");
    assert_eq!(log.lost_endpoints()?, Vec::<String>::new());
    Ok(())
}
