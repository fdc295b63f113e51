//! gpunode's taints do not drive away gpunode's pods.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, V100, eventually};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// UID and node of gpunode's pods that are not on their way out, by name.
fn pods(lab: &Lab) -> Result<BTreeMap<String, (String, String)>> {
    let list = lab.get(&["pods", "-n", NAMESPACE])?;
    let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
    let text = |value: &Value| value.as_str().map(str::to_owned).context("read a pod");
    let pods = list["items"].as_array().into_iter().flatten().filter(stays);
    pods.map(|pod| {
        let metadata = &pod["metadata"];
        Ok((
            text(&metadata["name"])?,
            (text(&metadata["uid"])?, text(&pod["spec"]["nodeName"])?),
        ))
    })
    .collect()
}

fn policy(nodes: &BTreeSet<String>, taints: &str) -> String {
    let nodes = nodes.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: evicting}}
spec:
  nodeSelector: {{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{nodes}]}}]}}
  taints: [{taints}]
  devicePlugin: {{}}
"
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_taint_that_evicts_pods_leaves_those_of_gpunode_where_they_are() -> Result<()> {
    let lab = Lab::enter()?;
    let operator = lab.operator_pods()?;
    let nodes: BTreeSet<String> = pods(&lab)?
        .into_iter()
        .filter(|(name, _)| operator.contains(name))
        .map(|(_, (_, node))| node)
        .chain([V100.to_owned()])
        .collect();
    lab.apply(&policy(&nodes, ""))?;
    lab.await_ready("evicting")?;
    lab.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: evicted}}
spec:
  nodeName: {V100}
  terminationGracePeriodSeconds: 0
  containers: [{{name: main, image: gpunode.test/cuda:1, command: [sleep, '100000']}}]
"
    ))?;
    lab.await_pod("evicted", "Running")?;
    let before = pods(&lab)?;

    let tainting = policy(&nodes, "{key: evicting, effect: NoExecute}");
    let plan = lab.plan(&[serde_yaml::from_str(&tainting)?])?;
    let planned = plan["nodes"].as_array().context("find the nodes of a plan")?;
    let evicted = planned
        .iter()
        .flat_map(|node| node["evicted"].as_array().into_iter().flatten());
    let evicted: BTreeSet<(Option<&str>, Option<&str>)> = evicted
        .map(|pod| (pod["namespace"].as_str(), pod["pod"].as_str()))
        .collect();
    ensure!(evicted.contains(&(Some("default"), Some("evicted"))), "{plan}");
    ensure!(
        evicted.iter().all(|(namespace, _)| *namespace != Some(NAMESPACE)),
        "{plan}"
    );

    lab.apply(&tainting)?;
    lab.await_ready("evicting")?;
    eventually(
        "a pod that does not tolerate the taint goes",
        Duration::from_mins(3),
        || {
            let left = lab.kubectl(&["get", "pods", "--field-selector=metadata.name=evicted", "-o", "name"])?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        },
    )?;
    assert_eq!(pods(&lab)?, before, "the pods of gpunode are the same");
    Ok(())
}
