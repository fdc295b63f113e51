//! In an unchanged world gpunode writes nothing but its Lease.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, V100, eventually};
use serde_json::Value;
use std::time::Duration;

/// A kubelet's 5 minutes, and five tries.
const RETIRED: Duration = Duration::from_mins(12);

/// The names in the records of nodes that the operator is going to come back to by itself.
fn awaited_resources(lab: &Lab) -> Result<Vec<String>> {
    let nodes = lab.get(&["nodes"])?;
    let records = nodes["items"].as_array().into_iter().flatten().filter_map(|node| {
        let record = node["metadata"]["annotations"]["gpunode.dev/owned"].as_str()?;
        serde_json::from_str::<Value>(record).ok()?["resources"]
            .as_object()
            .cloned()
    });
    Ok(records
        .flatten()
        .filter(|(_, of)| !of.is_null())
        .map(|(name, _)| name)
        .collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_restarted_operator_in_an_unchanged_world_writes_nothing_for_a_minute() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_ready("v100-reserved")?;
    lab.await_ready("t4-time-slicing")?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    // The world is not unchanged while the keys of what other tests had served are on their way out.
    eventually("no node has resources that nobody wants", RETIRED, || {
        let names = awaited_resources(&lab)?;
        ensure!(names.is_empty(), "{names:?}");
        Ok(())
    })?;

    // A start reads every object anew and reconciles each of them.
    lab.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment/gpunode-operator"])?;
    lab.kubectl(&[
        "-n",
        NAMESPACE,
        "rollout",
        "status",
        "deployment/gpunode-operator",
        "--timeout=180s",
    ])?;
    let audit = lab.audit()?;
    // Nothing can be awaited: the claim is about a minute in which nothing happens.
    std::thread::sleep(Duration::from_mins(1));
    let writes: Vec<String> = audit.gpunode_writes()?.iter().map(ToString::to_string).collect();
    assert_eq!(writes, Vec::<String>::new());
    let renewals = audit
        .events()?
        .iter()
        .filter(|event| event.is_gpunode() && event.resource() == "leases" && event.is_write())
        .count();
    assert!(renewals > 0, "somebody leads in that minute");
    Ok(())
}
