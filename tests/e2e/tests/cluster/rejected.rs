//! Pods that a node rejected are deleted where a policy says so and a controller answers for them.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, T4, eventually, names};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);
const RESOURCE: &str = "nvidia.com/gpu";

/// A pod that no scheduler has seen, and that asks for one GPU more than there are.
fn pod() -> String {
    format!(
        "restartPolicy: Never, nodeName: {T4}, terminationGracePeriodSeconds: 0,
      containers: [{{name: main, image: 'gpunode.test/cuda:1', command: ['true'], resources: {{limits: {{{RESOURCE}: 5}}}}}}]"
    )
}

/// A Job that makes one such pod and no other, and such a pod of its own.
fn rejected() -> String {
    format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: rejected}}
spec:
  backoffLimit: 0
  template: {{spec: {{{pod}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: alone}}
spec: {{{pod}}}
",
        pod = pod()
    )
}

/// A Job whose only pod fails by itself, with a GPU.
const FAILING: &str = "apiVersion: batch/v1
kind: Job
metadata: {name: failing}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {pool: inference}
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: 'gpunode.test/cuda:1', command: ['false'], resources: {limits: {nvidia.com/gpu: 1}}}]
";

fn await_rejected(lab: &Lab, pod: &str) -> Result<()> {
    let status = lab.await_pod(pod, "Failed")?["status"].clone();
    ensure!(status["reason"] == "UnexpectedAdmissionError", "its status is {status}");
    Ok(())
}

/// The only pod of a Job, when there is one.
fn pod_of(lab: &Lab, job: &str) -> Result<String> {
    eventually(&format!("job {job} has a pod"), LIMIT, || {
        let pods = lab.get(&["pods", "-l", &format!("batch.kubernetes.io/job-name={job}")])?;
        names(&pods).pop().context("there is none")
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_rejected_pod_of_a_controller_goes_where_a_policy_says_so_and_no_other() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(&(rejected() + "---\n" + FAILING))?;
    let (rejected, failing) = (pod_of(&lab, "rejected")?, pod_of(&lab, "failing")?);
    await_rejected(&lab, &rejected)?;
    await_rejected(&lab, "alone")?;
    lab.await_pod(&failing, "Failed")?;

    let audit = lab.audit()?;
    lab.patch_policy("sharing", r#"{"spec":{"deleteRejectedPods":true}}"#)?
        .check()?;
    eventually("the rejected pod of the Job is gone", LIMIT, || {
        let pods = names(&lab.get(&["pods"])?);
        ensure!(!pods.contains(&rejected), "there are {pods:?}");
        Ok(())
    })?;
    let deleted: Vec<String> = audit
        .gpunode_writes()?
        .iter()
        .filter(|event| event.resource() == "pods" && event.verb() == "delete")
        .map(|event| event.name().to_owned())
        .collect();
    assert_eq!(deleted, std::slice::from_ref(&rejected));
    let left = names(&lab.get(&["pods"])?);
    assert!(
        left.contains(&"alone".to_owned()) && left.contains(&failing),
        "{left:?}"
    );
    eventually("an event says why", LIMIT, || {
        let selector = format!("involvedObject.name={rejected},reason=RejectedPodDeleted");
        let events: Value = lab.get(&["events", "--field-selector", &selector])?;
        ensure!(
            events["items"].as_array().is_some_and(|events| events.len() == 1),
            "there are {events}"
        );
        Ok(())
    })
}
