//! A new configuration goes from node to node, stops at the first that fails with it, and goes on with a better one.

use anyhow::{Result, ensure};
use gpunode_e2e::{A100, Lab, NodeWatch, T4, V100, condition, eventually, names, taints};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);
const UNITS: &str = "nvidia.com/gpu-mem";

/// Three nodes whose GPUs have 80, 15 and 32 GiB, in the order of their names.
fn policy(unit: &str) -> String {
    format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: rollout}}
spec:
  nodeSelector: {{matchExpressions: [{{key: pool, operator: In, values: [a100, inference, training]}}]}}
  rollout: {{maxUnavailable: 1}}
  devicePlugin: {{resources: [{{name: {UNITS}, sharing: {{strategy: Memory, unit: {unit}}}}}]}}
"
    )
}

fn hash(lab: &Lab, node: &str) -> Result<Value> {
    Ok(lab.get(&["gpunode", node])?["spec"]["config"]["hash"].clone())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_rollout_stops_at_the_second_node_and_a_fixed_spec_resumes_it() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&policy("4Gi"))?;
    lab.await_ready("rollout")?;
    for (node, units) in [(A100, 8 * 20), (T4, 4 * 3), (V100, 8 * 8)] {
        lab.await_allocatable(node, UNITS, units)?;
    }
    let before = hash(&lab, V100)?;

    // No T4 has a unit of that size.
    let v100 = NodeWatch::start(&lab, V100)?;
    let change = lab.begin(&policy("24Gi"))?;
    let stopped = eventually("the rollout stops", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "rollout"])?;
        let stalled = condition(&policy, "Stalled");
        ensure!(
            stalled["status"] == "True" && stalled["reason"] == "RolloutStopped",
            "{}",
            policy["status"]
        );
        Ok(policy)
    })?;
    let ready = condition(&stopped, "Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&Value::from("False"), &Value::from("RolloutStopped"))
    );
    let message = ready["message"].as_str().unwrap_or_default();
    for part in [T4, "MemoryBelowUnit", "1 of 3 nodes has the new configuration"] {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert_eq!(
        condition(&stopped, "Reconciling")["status"],
        "False",
        "{}",
        stopped["status"]
    );
    lab.await_allocatable(A100, UNITS, 8 * 3)?;
    change.check_on(&[A100, T4])?;
    assert_eq!(hash(&lab, V100)?, before, "no node after the second is changed");
    assert_eq!(v100.allocatable(&lab, UNITS)?, [Some(64)]);

    lab.apply(&policy("5Gi"))?;
    lab.await_ready("rollout")?;
    for (node, units) in [(A100, 8 * 16), (T4, 4 * 3), (V100, 8 * 6)] {
        lab.await_allocatable(node, UNITS, units)?;
    }
    eventually("every turn is over", LIMIT, || {
        for node in [A100, T4, V100] {
            let node = lab.get(&["gpunode", node])?;
            let (step, finished) = (&node["spec"]["step"], &node["status"]["finishedStep"]);
            let is_over = step.is_null() || (step["failed"].is_null() && step["startedAt"] == *finished);
            ensure!(is_over, "step {step}, finished {finished}");
        }
        Ok(())
    })
}

/// Three nodes that get a taint with the effect NoExecute, in the order of their names.
const EVICTING: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: evicting}
spec:
  nodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a100, inference, training]}]}
  rollout: {maxUnavailable: 1}
  taints: [{key: evicting, effect: NoExecute}]
";

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_taint_that_evicts_reaches_the_next_node_when_the_pods_of_the_one_before_are_gone() -> Result<()> {
    let lab = Lab::enter()?;
    // The first process of a container ignores SIGTERM unless it asks for it.
    lab.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: slow}}
spec:
  nodeName: {A100}
  terminationGracePeriodSeconds: 15
  containers: [{{name: main, image: gpunode.test/cuda:1, command: [sleep, '100000']}}]
"
    ))?;
    lab.await_pod("slow", "Running")?;
    let await_taint = |node: &str| {
        eventually(&format!("{node} has the taint"), LIMIT, || {
            let taints = taints(&lab.node(node)?);
            ensure!(taints.contains(&"evicting=:NoExecute".to_owned()), "it has {taints:?}");
            Ok(())
        })
    };
    let running = "metadata.name=slow,status.phase=Running";
    let slow_pods = || Ok::<_, anyhow::Error>(names(&lab.get(&["pods", "--field-selector", running])?));

    let change = lab.begin(EVICTING)?;
    await_taint(A100)?;
    assert_eq!(slow_pods()?, ["slow"], "it has some seconds to end");
    await_taint(T4)?;
    assert!(
        slow_pods()?.is_empty(),
        "the second node has the taint before the pod has ended"
    );
    await_taint(V100)?;
    lab.await_ready("evicting")?;
    change.check()
}
