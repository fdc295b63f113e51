//! The labels by which a node has the agents of two policies while one takes over from the other.

use crate::{
    faults::{allocates_a_gpu, running},
    samples,
    staying_up::tag,
};
use anyhow::{Result, ensure};
use gpunode_e2e::{HandOvers, Lab, T4, condition, eventually};
use serde_json::Value;
use std::time::Duration;

const RESOURCE: &str = "nvidia.com/gpu";
const LIMIT: Duration = Duration::from_mins(3);
const OF_POLICY: &str = "gpunode.dev/policy.";

fn policy(name: &str, priority: u32, pool: &str, more: &str) -> String {
    format!(
        "---
apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: {name}}}
spec: {{priority: {priority}, nodeSelector: {{matchLabels: {{pool: {pool}}}}}, devicePlugin: {{}}{more}}}
"
    )
}

/// The policies whose agents a node has.
fn placed(node: &Value) -> Vec<String> {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    labels
        .filter_map(|(key, _)| key.strip_prefix(OF_POLICY))
        .map(str::to_owned)
        .collect()
}

fn await_serving(lab: &Lab, policy: &str) -> Result<()> {
    eventually(&format!("the agent of {policy} alone serves the node"), LIMIT, || {
        let agent = lab.get(&["gpunode", T4])?["status"]["agent"].clone();
        ensure!(agent["policy"] == policy, "the agent is {agent}");
        let placed = placed(&lab.node(T4)?);
        ensure!(placed == [policy], "the node has agents of {placed:?}");
        let pod = lab.agent_pod(T4, "device-plugin")?;
        ensure!(agent["pod"] == pod, "the agent is {agent}, the pod {pod}");
        Ok(())
    })
}

fn steady(lab: &Lab) -> Result<Vec<(String, Value)>> {
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.apply(&samples::deployment("steady", "inference", 2))?;
    lab.kubectl(&["rollout", "status", "deployment/steady", "--timeout=180s"])?;
    running(lab)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_that_leaves_a_policy_keeps_its_agent_until_that_of_the_next_has_taken_over() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&policy("first", 10, "inference", ""))?;
    lab.await_ready("first")?;
    lab.apply(&policy("second", 0, "inference", ""))?;
    lab.await_ready("second")?;
    let before = steady(&lab)?;
    await_serving(&lab, "first")?;
    let hand_overs = HandOvers::record(&lab, T4, RESOURCE)?;

    lab.apply(&policy("first", 10, "nowhere", ""))?;
    await_serving(&lab, "second")?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    let mut placements: Vec<_> = hand_overs.watch().states(&lab)?.iter().map(placed).collect();
    placements.dedup();
    assert_eq!(placements, [vec!["first"], vec!["first", "second"], vec!["second"]]);
    hand_overs.ensure_seamless(&lab, 1, 4)?;
    assert_eq!(running(&lab)?, before);
    allocates_a_gpu(&lab, "after-hand-over")
}

/// A label of the node; gone when the value is dropped.
struct Label<'a>(&'a Lab, &'static str);

impl<'a> Label<'a> {
    fn set(lab: &'a Lab, key: &'static str) -> Result<Self> {
        let label = Self(lab, key);
        lab.kubectl(&["label", "node", T4, &format!("{key}=yes")])?;
        Ok(label)
    }
}

impl Drop for Label<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_kubectl(&["label", "node", T4, &format!("{}-", self.1)]);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_that_comes_back_before_its_agent_was_removed_gets_that_agent_back() -> Result<()> {
    let lab = Lab::enter()?;
    let _ = lab
        .cluster()
        .node(T4)?
        .ctr(["images", "rm", "--sync", "gpunode.dev/agent:flipped"]);
    lab.apply(&policy("first", 0, "inference", ""))?;
    lab.await_ready("first")?;
    let flipped = ", image: 'gpunode.dev/agent:flipped'";
    lab.apply(&policy("second", 10, "inference", flipped).replace("{pool: inference}", "{flipped: 'yes'}"))?;
    let before = steady(&lab)?;
    await_serving(&lab, "first")?;
    let agent = lab.agent_pod(T4, "device-plugin")?;
    let hand_overs = HandOvers::record(&lab, T4, RESOURCE)?;

    let label = Label::set(&lab, "flipped")?;
    eventually("the node has the agents of both", LIMIT, || {
        let placed = placed(&lab.node(T4)?);
        ensure!(placed == ["first", "second"], "the node has agents of {placed:?}");
        Ok(())
    })?;
    // Nobody takes the first one's agent away.
    lab.scale_operator(0)?;
    tag(&lab, "flipped")?;
    eventually("the agent of the second policy serves", LIMIT, || {
        let agent = lab.get(&["gpunode", T4])?["status"]["agent"].clone();
        ensure!(agent["policy"] == "second", "the agent is {agent}");
        Ok(())
    })?;
    drop(label);
    lab.scale_operator(2)?;
    await_serving(&lab, "first")?;
    assert_eq!(lab.agent_pod(T4, "device-plugin")?, agent);
    lab.await_allocatable(T4, RESOURCE, 4)?;
    // To the second policy's agent and back.
    hand_overs.ensure_seamless(&lab, 2, 4)?;
    assert_eq!(running(&lab)?, before);
    allocates_a_gpu(&lab, "after-coming-back")
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_whose_agent_does_not_run_takes_no_node_over_before_it_does_and_says_so() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&policy("first", 0, "inference", ""))?;
    lab.await_ready("first")?;
    let before = steady(&lab)?;
    let hand_overs = HandOvers::record(&lab, T4, RESOURCE)?;
    // An earlier run may have left it.
    let _ = lab
        .cluster()
        .node(T4)?
        .ctr(["images", "rm", "--sync", "gpunode.dev/agent:late"]);

    let late = ", image: 'gpunode.dev/agent:late', rollout: {progressDeadline: 20s}";
    let change = lab.begin(&policy("second", 10, "inference", late))?;
    eventually("the second policy says who still serves the node", LIMIT, || {
        let status = lab.get(&["gpunodepolicy", "second"])?["status"].clone();
        let failure = &status["failures"][0];
        let message = failure["message"].as_str().unwrap_or_default();
        ensure!(
            failure["node"] == T4 && message.contains("the agent of policy first still serves"),
            "{status}"
        );
        let object = lab.get(&["gpunodepolicy", "second"])?;
        ensure!(condition(&object, "Ready")["status"] == "False", "{status}");
        Ok(())
    })?;
    assert_eq!(placed(&lab.node(T4)?), ["first", "second"]);
    allocates_a_gpu(&lab, "meanwhile")?;
    hand_overs.ensure_none(&lab, 4)?;
    assert_eq!(running(&lab)?, before);

    tag(&lab, "late")?;
    await_serving(&lab, "second")?;
    change.check()?;
    lab.await_allocatable(T4, RESOURCE, 4)?;
    hand_overs.ensure_seamless(&lab, 1, 4)?;
    assert_eq!(running(&lab)?, before);
    Ok(())
}
