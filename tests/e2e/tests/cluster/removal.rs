//! Removal: however a policy's hold on a node ends, the node is as it was before.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{CPU, Lab, NAMESPACE, V100, eventually, is_event_since, names, node_snapshot};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

/// The V100 node with labels, annotations and taints of other people around it; undone when the value is dropped.
struct ForeignKeys<'a>(&'a Lab);

impl<'a> ForeignKeys<'a> {
    fn set(lab: &'a Lab) -> Result<Self> {
        let foreign = Self(lab);
        lab.kubectl(&["label", "node", V100, "team=research", "zone=b"])?;
        lab.kubectl(&["annotate", "node", V100, "example.com/note=keep me"])?;
        lab.kubectl(&["taint", "node", V100, "zz=last:NoSchedule", "aa=first:PreferNoSchedule"])?;
        Ok(foreign)
    }
}

impl Drop for ForeignKeys<'_> {
    fn drop(&mut self) {
        for arguments in [
            &["label", "node", V100, "team-", "zone-", "pool=training", "--overwrite"][..],
            &["annotate", "node", V100, "example.com/note-"],
            &["taint", "node", V100, "zz-", "aa-"],
        ] {
            let _ = self.0.try_kubectl(arguments);
        }
    }
}

fn await_snapshot(lab: &Lab, before: &Value) -> Result<()> {
    eventually("the node is as it was before", LIMIT, || {
        let seen = node_snapshot(&lab.node(V100)?);
        ensure!(seen == *before, "before: {before}\n   now: {seen}");
        Ok(())
    })?;
    eventually("the policy's DaemonSet is gone", LIMIT, || {
        let left = names(&lab.get(&["daemonsets", "-n", NAMESPACE, "-l", "gpunode.dev/policy=v100-reserved"])?);
        let pods = names(&lab.get(&["pods", "-n", NAMESPACE, "-l", "gpunode.dev/policy=v100-reserved"])?);
        ensure!(pods.is_empty(), "pods {pods:?} are left");
        // A policy that only lost the node keeps its DaemonSet, with no pod.
        let lives = lab
            .try_kubectl(&["get", "gpunodepolicy", "v100-reserved"])?
            .status
            .success();
        ensure!(lives || left.is_empty(), "{left:?} are left");
        Ok(())
    })
}

fn in_force(lab: &Lab) -> Result<()> {
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    lab.await_plugin(V100)?;
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_deleted_policy_leaves_the_node_as_it_was() -> Result<()> {
    let lab = Lab::enter()?;
    let _foreign = ForeignKeys::set(&lab)?;
    lab.kubectl(&["cordon", V100])?;
    lab.await_cordon_taint(V100, true)?;
    let before = node_snapshot(&lab.node(V100)?);
    in_force(&lab)?;
    lab.kubectl(&["delete", "gpunodepolicy", "v100-reserved", "--timeout=30s"])?;
    await_snapshot(&lab, &before)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_deleted_while_the_operator_is_down_is_undone_when_it_starts() -> Result<()> {
    let lab = Lab::enter()?;
    let _foreign = ForeignKeys::set(&lab)?;
    let before = node_snapshot(&lab.node(V100)?);
    in_force(&lab)?;
    let start = Timestamp::now();
    lab.scale_operator(0)?;
    lab.kubectl(&["delete", "gpunodepolicy", "v100-reserved", "--timeout=30s"])?;
    lab.scale_operator(2)?;
    // Nobody saw the deletion, so the policy has a minute to come back.
    let selector = "involvedObject.name=v100-reserved,reason=PolicyMissing";
    eventually("an event says that the policy is missing", LIMIT, || {
        let events = lab.get(&["events", "--field-selector", selector])?;
        let mut items = events["items"].as_array().into_iter().flatten();
        ensure!(items.any(|event| is_event_since(event, start)), "there is {events}");
        Ok(())
    })?;
    assert_ne!(
        node_snapshot(&lab.node(V100)?),
        before,
        "the node keeps everything until then"
    );
    let agents = names(&lab.get(&["pods", "-n", NAMESPACE, "-l", "gpunode.dev/policy=v100-reserved"])?);
    assert_eq!(agents.len(), 1, "its agent serves until then");
    await_snapshot(&lab, &before)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_relabelled_out_of_the_pool_gets_its_old_look_back() -> Result<()> {
    let lab = Lab::enter()?;
    let _foreign = ForeignKeys::set(&lab)?;
    let mut before = node_snapshot(&lab.node(V100)?);
    in_force(&lab)?;
    lab.kubectl(&["label", "node", V100, "pool=other", "--overwrite"])?;
    before["labels"]["pool"] = "other".into();
    await_snapshot(&lab, &before)?;
    let counts = eventually("the policy counts no node", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "v100-reserved"])?;
        ensure!(policy["status"]["nodes"]["matched"] == 0, "{}", policy["status"]);
        Ok(gpunode_e2e::condition(&policy, "Ready"))
    })?;
    assert_eq!(
        (&counts["status"], &counts["reason"]),
        (&Value::from("True"), &Value::from("NoMatchingNodes"))
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_without_gpu_has_a_gpunode_as_long_as_it_is_governed() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: everywhere}
spec: {nodeSelector: {}, devicePlugin: {}}
",
    )?;
    let policy = lab.await_ready("everywhere")?;
    assert_eq!(policy["status"]["nodes"]["ready"], 5, "{}", policy["status"]);
    let node = lab.get(&["gpunode", CPU])?;
    assert_eq!(node["spec"]["config"]["policy"], "everywhere");
    assert_eq!(node["status"]["configHash"], node["spec"]["config"]["hash"]);
    assert_eq!(lab.allocatable(CPU, "nvidia.com/gpu")?, 0);
    lab.kubectl(&["delete", "gpunodepolicy", "everywhere", "--timeout=30s"])?;
    eventually("its GpuNode is gone", LIMIT, || {
        ensure!(
            !lab.try_kubectl(&["get", "gpunode", CPU])?.status.success(),
            "it is still there"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_changed_policy_takes_back_what_it_no_longer_says() -> Result<()> {
    let lab = Lab::enter()?;
    let _foreign = ForeignKeys::set(&lab)?;
    let before = node_snapshot(&lab.node(V100)?);
    in_force(&lab)?;
    let changed = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: v100-reserved}
spec:
  nodeSelector: {matchLabels: {pool: training}}
  labels: {tier: gold}
  taints: [{key: dedicated, value: v100, effect: NoExecute}]
";
    lab.apply(changed)?;
    lab.await_ready("v100-reserved")?;
    let node = lab.node(V100)?;
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["tier"], "gold");
    assert_eq!(labels.get("accelerator"), None);
    assert_eq!(
        labels.get("gpunode.dev/governed"),
        None,
        "without a devicePlugin nobody governs the node"
    );
    assert_eq!(
        gpunode_e2e::taints(&node),
        [
            "zz=last:NoSchedule",
            "aa=first:PreferNoSchedule",
            "dedicated=v100:NoExecute"
        ]
    );
    lab.kubectl(&["delete", "gpunodepolicy", "v100-reserved", "--timeout=30s"])?;
    await_snapshot(&lab, &before)
}
