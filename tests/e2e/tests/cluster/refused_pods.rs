//! Pods that the scheduler, a kubelet or the API server refuses, in the words that `docs/troubleshooting.md` quotes.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, T4, V100, condition, eventually, names, page_commands};
use serde_json::Value;
use std::{fs, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const UNITS: &str = "aliyun.com/gpu-mem";
/// Reason of a pod whose devices a kubelet could not give.
const REJECTED: &str = "UnexpectedAdmissionError";
/// The kubelet's file in the node.
const KUBELET_CONFIGURATION: &str = "/etc/kubernetes/kubelet.yaml";

/// Messages of the events about an object, by the fields of a selector.
fn event_messages(lab: &Lab, namespace: &str, selector: &str) -> Result<Vec<String>> {
    let events = lab.get(&["events", "-n", namespace, "--field-selector", selector])?;
    let messages = events["items"].as_array().context("list events")?.iter();
    Ok(messages
        .filter_map(|event| event["message"].as_str().map(str::to_owned))
        .collect())
}

/// The status of a pod of an app that a kubelet refused, once there is one.
fn await_failed(lab: &Lab, app: &str) -> Result<Value> {
    eventually(&format!("a pod of {app} has failed"), LIMIT, || {
        let pods = lab.get(&["pods", "-l", &format!("app={app}")])?;
        let items = pods["items"].as_array().context("list pods")?;
        let failed = items.iter().find(|pod| pod["status"]["phase"] == "Failed");
        let failed = failed.with_context(|| format!("they are {}", crate::sharing::phases(&pods)))?;
        Ok(failed["status"].clone())
    })
}

fn ensure_refused(status: &Value, reason: &str, words: &str) -> Result<()> {
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        status["reason"] == reason && message.contains(words),
        "not {reason} with {words:?}: {status}"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_pod_for_which_no_gpu_is_left_is_pending_until_one_is() -> Result<()> {
    const WORDS: &str = "1 Insufficient nvidia.com/gpu";
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(&samples::holding("all", "inference", 1, GPU, 4))?;
    lab.await_running("all", 1)?;
    lab.apply(&samples::holding("more", "inference", 1, GPU, 1))?;
    let pod = eventually("the scheduler says what it lacks", LIMIT, || {
        let pods = lab.get(&["pods", "-l", "app=more"])?;
        let scheduled = condition(&pods["items"][0], "PodScheduled");
        ensure!(scheduled["message"].to_string().contains(WORDS), "it is {scheduled}");
        names(&pods).pop().context("find the pod")
    })?;
    let selector = format!("involvedObject.name={pod},reason=FailedScheduling");
    eventually("the event of the pod says so", LIMIT, || {
        let messages = event_messages(&lab, "default", &selector)?;
        let is_quoted = |message: &String| message.starts_with("0/5 nodes are available: ") && message.contains(WORDS);
        ensure!(messages.iter().any(is_quoted), "they are {messages:?}");
        Ok(())
    })?;
    eventually("kubectl gpunode status says who has them", LIMIT, || {
        let status = lab.gpunode(&["status"])?;
        ensure!(status.contains("4/4 (4 held)"), "{status}");
        Ok(())
    })?;
    let table = page_commands("troubleshooting.md")?
        .into_iter()
        .find(|command| command.contains("NODE:.metadata.name,GPUS:"))
        .context("find the command on the page")?;
    let table = lab.shell(lab.cluster().folder(), &table)?;
    let row = table.lines().find(|line| line.starts_with(T4)).unwrap_or_default();
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        [T4, "4", "<none>"],
        "{table}"
    );
    lab.kubectl(&["delete", "deployment", "all", "--timeout=60s"])?;
    lab.await_running("more", 1).map(drop)
}

/// Without a `startupTaint`; `startup_taint.rs` has the same with one.
#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_that_come_before_a_node_has_their_gpus_are_rejected_and_followed_by_one_that_runs() -> Result<()> {
    let lab = Lab::enter()?;
    // The next one is placed by an operator and a scheduler that go on.
    lab.move_operator_off(T4)?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(&samples::deployment("holder", "inference", 1))?;
    lab.await_running("holder", 1)?;
    // As the scheduler would place it before it hears of a GPU that is gone.
    lab.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: late, labels: {{app: late}}}}\nspec: {{nodeName: {T4}, containers: [{{name: main, \
         image: 'gpunode.test/cuda:1', resources: {{limits: {{{GPU}: 5}}}}}}]}}\n"
    ))?;
    ensure_refused(
        &await_failed(&lab, "late")?,
        REJECTED,
        "requested number of devices unavailable for nvidia.com/gpu. Requested: 5, Available: 3",
    )?;
    lab.cluster().node(T4)?.reboot()?;
    let status = await_failed(&lab, "holder")?;
    ensure_refused(
        &status,
        REJECTED,
        "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
    )?;
    lab.await_running("holder", 1)?;
    lab.await_allocatable(T4, GPU, 4)?;
    lab.await_ready("sharing").map(drop)
}

/// The V100 node with a kubelet that gives a container devices of one NUMA node alone, until this is dropped.
struct NumaKubelet<'a> {
    lab: &'a Lab,
    before: String,
}

impl<'a> NumaKubelet<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let path = lab.cluster().node(V100)?.path(KUBELET_CONFIGURATION);
        let before = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut configuration: Value = serde_json::from_str(&before).context("parse the kubelet's configuration")?;
        configuration["topologyManagerPolicy"] = "single-numa-node".into();
        let kubelet = Self { lab, before };
        kubelet.restart(&configuration.to_string())?;
        Ok(kubelet)
    }

    fn restart(&self, configuration: &str) -> Result<()> {
        let node = self.lab.cluster().node(V100)?;
        fs::write(node.path(KUBELET_CONFIGURATION), configuration)?;
        node.restart_kubelet()
    }
}

impl Drop for NumaKubelet<'_> {
    fn drop(&mut self) {
        // Where that fails, the next test says so.
        let _ = self.restart(&self.before);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_kubelet_that_keeps_to_one_numa_node_refuses_gpus_of_two_and_gives_units_of_any() -> Result<()> {
    let lab = Lab::enter()?;
    let _kubelet = NumaKubelet::start(&lab)?;
    // GPUs 0 to 3 are on NUMA node 0, the others on node 1.
    lab.apply(&samples::sharing(
        "training",
        "{resources: [{name: aliyun.com/gpu-mem, devices: {indices: [0, 1, 4]}, sharing: {strategy: Memory}}, \
         {name: nvidia.com/gpu}]}",
    ))?;
    lab.await_allocatable(V100, GPU, 5)?;
    lab.await_allocatable(V100, UNITS, 3 * 32)?;

    // Two are on node 0 and three on node 1.
    lab.apply(&samples::holding("spread", "training", 1, GPU, 4))?;
    ensure_refused(
        &await_failed(&lab, "spread")?,
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )?;
    lab.kubectl(&["delete", "deployment", "spread", "--timeout=60s"])?;

    // They leave 10 units on each GPU of node 0. Units have no NUMA node where their GPUs are on several, so a container gets
    // all of its own from one GPU all the same.
    for (app, units, gpu) in [("first", 22, "0"), ("second", 22, "1"), ("third", 20, "4")] {
        lab.apply(&samples::holding(app, "training", 1, UNITS, units))?;
        let pod = lab.await_running(app, 1)?.pop().context("find the pod")?;
        assert_eq!(
            lab.environment(&pod)?.get("ALIYUN_COM_GPU_MEM_IDX").map(String::as_str),
            Some(gpu),
            "{app}"
        );
    }
    Ok(())
}

/// Barrier against more pods in gpunode's namespace.
#[derive(Clone, Copy, Debug)]
enum Barrier {
    PodSecurity,
    Quota,
}

/// A barrier until this is dropped.
struct Barred<'a> {
    lab: &'a Lab,
    barrier: Barrier,
}

impl<'a> Barred<'a> {
    fn set_up(lab: &'a Lab, barrier: Barrier) -> Result<Self> {
        let barred = Self { lab, barrier };
        match barrier {
            Barrier::PodSecurity => barred.enforce("baseline")?,
            Barrier::Quota => {
                let quota = ["-n", NAMESPACE, "create", "quota", "no-more-pods", "--hard=pods=0"];
                lab.kubectl(&quota)?;
            }
        }
        Ok(barred)
    }

    fn enforce(&self, level: &str) -> Result<()> {
        let label = format!("pod-security.kubernetes.io/enforce={level}");
        self.lab
            .kubectl(&["label", "namespace", NAMESPACE, "--overwrite", &label])
            .map(drop)
    }
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        match self.barrier {
            // Where that fails, the next test says so.
            Barrier::PodSecurity => drop(self.enforce("privileged")),
            Barrier::Quota => self
                .lab
                .remove_after_test(&["-n", NAMESPACE, "resourcequota", "no-more-pods"]),
        }
    }
}

/// Waits until discovery, whose pods are kept out too, reports on the node again after an earlier plugin.
fn await_discovery(lab: &Lab) -> Result<()> {
    eventually("discovery reports on the node", LIMIT, || {
        let pod = lab.agent_pod(T4, "discovery")?;
        let agent = lab.get(&["gpunode", T4])?["status"]["agent"].clone();
        ensure!(agent["pod"] == pod, "it is {agent}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn agents_that_the_api_server_refuses_are_named_in_events_and_run_once_it_does_not() -> Result<()> {
    const DAEMONSET: &str = "gpunode-agent-sharing";
    let lab = Lab::enter()?;
    for (barrier, words) in [
        (Barrier::PodSecurity, "violates PodSecurity \"baseline:latest\""),
        (Barrier::Quota, "exceeded quota: no-more-pods, requested: pods=1"),
    ] {
        await_discovery(&lab)?;
        let barred = Barred::set_up(&lab, barrier)?;
        let policy = samples::sharing("inference", "{}") + "  rollout: {progressDeadline: 5s}\n";
        let change = lab.begin(&policy)?;
        eventually("events of the DaemonSet say why there is no pod", LIMIT, || {
            let daemonset = lab.get(&["daemonset", "-n", NAMESPACE, DAEMONSET])?;
            // Those of another DaemonSet of this name stay for an hour.
            let uid = daemonset["metadata"]["uid"].as_str().context("read its UID")?;
            let selector = format!("involvedObject.uid={uid},reason=FailedCreate");
            let messages = event_messages(&lab, NAMESPACE, &selector)?;
            ensure!(
                messages.iter().any(|message| message.contains(words)),
                "they are {messages:?}"
            );
            Ok(())
        })?;
        eventually("the policy names the agent", LIMIT, || {
            let policy = lab.get(&["gpunodepolicy", "sharing"])?;
            let failure = &policy["status"]["failures"][0];
            ensure!(
                failure["reason"] == "AgentNotReporting"
                    && failure["message"]
                        .to_string()
                        .contains("no agent with the device plugin reports; see its pod"),
                "{barrier:?}: its status is {}",
                policy["status"]
            );
            Ok(())
        })?;
        drop(barred);
        lab.await_plugin(T4)?;
        lab.await_allocatable(T4, GPU, 4)?;
        lab.await_ready("sharing")?;
        change.check()?;
        lab.kubectl(&["delete", "gpunodepolicy", "sharing", "--timeout=30s"])?;
        lab.await_nothing_owned()?;
    }
    Ok(())
}
