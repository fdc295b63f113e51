//! Labels that a team set by hand.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{A100, Lab, MIXED, T4, V100, eventually};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

struct HandSet<'a>(&'a Lab, &'a str);

impl Drop for HandSet<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_kubectl(&["label", "node", self.1, "accelerator-"]);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_label_already_set_to_the_wanted_value_stays_after_the_policy() -> Result<()> {
    let lab = Lab::enter()?;
    let _label = HandSet(&lab, V100);
    lab.kubectl(&["label", "node", V100, "accelerator=nvidia-tesla-v100"])?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    lab.kubectl(&["delete", "gpunodepolicy", "v100-reserved", "--timeout=30s"])?;
    lab.await_nothing_owned()?;
    assert_eq!(
        lab.node(V100)?["metadata"]["labels"]["accelerator"],
        "nvidia-tesla-v100"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_label_with_another_value_is_a_conflict_on_that_node_alone() -> Result<()> {
    let lab = Lab::enter()?;
    let _label = HandSet(&lab, V100);
    lab.kubectl(&["label", "node", V100, "accelerator=mine"])?;
    lab.apply(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: everywhere}
spec:
  nodeSelector: {matchExpressions: [{key: pool, operator: Exists}]}
  labels: {accelerator: gpu}
",
    )?;
    let policy = eventually("the conflict is reported", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "everywhere"])?;
        let nodes = &policy["status"]["nodes"];
        ensure!(
            nodes["conflicted"] == 1 && nodes["ready"] == 3 && nodes["matched"] == 4,
            "status is {}",
            policy["status"]
        );
        Ok(policy)
    })?;
    let failure = &policy["status"]["failures"][0];
    assert_eq!(failure["node"], V100);
    let message = failure["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("accelerator") && message.contains("mine") && message.contains("gpu"),
        "{message}"
    );
    assert_eq!(gpunode_e2e::condition(&policy, "Conflict")["status"], "True");
    assert_eq!(
        lab.node(V100)?["metadata"]["labels"]["accelerator"],
        "mine",
        "a foreign key never changes"
    );
    for node in [T4, A100, MIXED] {
        assert_eq!(lab.node(node)?["metadata"]["labels"]["accelerator"], "gpu");
    }
    lab.kubectl(&["delete", "gpunodepolicy", "everywhere", "--timeout=30s"])?;
    lab.await_nothing_owned()?;
    assert_eq!(lab.node(V100)?["metadata"]["labels"]["accelerator"], "mine");
    Ok(())
}
