//! GPUs that NVIDIA's DRA driver serves.
//!
//! `tests/run.sh` runs the first of the two before other tests on its cluster, and the second after them, so that the two minutes
//! between cost no time.

use crate::{faults::running, samples};
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, V100, condition, eventually};
use serde_json::json;
use std::time::Duration;

const GPU: &str = "nvidia.com/gpu";
const GPUS: u64 = 8;
/// GPUs that pods hold.
const HELD: usize = 2;
/// NVIDIA's DRA driver of GPUs.
const DRIVER: &str = "gpu.nvidia.com";
const LIMIT: Duration = Duration::from_mins(3);
/// Time for which a node without ResourceSlices counts as served by that driver.
const GRACE: Duration = Duration::from_mins(2);

/// A ResourceSlice as a driver publishes it for a node.
fn resource_slice(lab: &Lab, driver: &str) -> Result<String> {
    let uid = lab.node(V100)?["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": V100, "uid": uid, "controller": true});
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{V100}-{driver}"), "ownerReferences": [owner]},
        "spec": {"driver": driver, "nodeName": V100, "devices": [{"name": "gpu-0"}],
            "pool": {"name": V100, "generation": 1, "resourceSliceCount": 1}},
    });
    Ok(slice.to_string())
}

/// Puts a policy for the GPUs in force.
fn advertise(lab: &Lab) -> Result<()> {
    lab.apply(&samples::sharing("training", "{}"))?;
    lab.await_allocatable(V100, GPU, GPUS)?;
    lab.await_plugin(V100).map(drop)
}

#[test]
#[ignore = "needs the local cluster, and begins what the next one ends: make test"]
fn gpus_of_a_dra_driver_are_left_to_it_and_pods_keep_what_they_hold() -> Result<()> {
    let lab = Lab::enter()?;
    advertise(&lab)?;
    lab.apply(&samples::deployment("steady", "training", HELD))?;
    lab.kubectl(&["rollout", "status", "deployment/steady", "--timeout=180s"])?;
    let before = running(&lab)?;
    // Its slices name no GPUs.
    lab.apply(&resource_slice(&lab, "compute-domain.nvidia.com")?)?;
    lab.apply(&resource_slice(&lab, DRIVER)?)?;
    eventually("the GpuNode and the policy say who serves the GPUs", LIMIT, || {
        let object = lab.get(&["gpunode", V100])?;
        let served = condition(&object, "ResourceServedByAnother");
        ensure!(
            object["spec"]["servedByDra"] == true && served["status"] == "True",
            "its conditions are {}",
            object["status"]["conditions"]
        );
        let policy = lab.get(&["gpunodepolicy", "sharing"])?;
        let failure = &policy["status"]["failures"][0];
        ensure!(
            failure["node"] == V100 && failure["reason"] == "ServedByAnother",
            "the policy says {failure}"
        );
        Ok(())
    })?;
    lab.await_allocatable(V100, GPU, u64::try_from(HELD)?)?;
    lab.await_plugin(V100)?;
    assert_eq!(running(&lab)?, before);
    lab.kubectl(&["scale", "deployment/steady", "--replicas=0"])?;
    lab.await_allocatable(V100, GPU, 0)?;
    eventually("the resource without holders is withdrawn", LIMIT, || {
        let resources = lab.get(&["gpunode", V100])?["status"]["resources"].clone();
        ensure!(resources.is_null(), "it has {resources}");
        Ok(())
    })?;
    // A kubelet removes slices without a driver some time after its start.
    let slice = format!("{V100}-{DRIVER}");
    lab.kubectl(&["delete", "resourceslice", &slice, "--ignore-not-found"])
        .map(drop)
}

#[test]
#[ignore = "needs the local cluster, and ends what the one before began: make test"]
fn gpus_without_a_dra_driver_are_offered_again() -> Result<()> {
    let lab = Lab::enter()?;
    eventually("the driver counts as gone", LIMIT + GRACE, || {
        let spec = lab.get(&["gpunode", V100])?["spec"].clone();
        ensure!(spec["servedByDra"] != true, "{spec}");
        Ok(())
    })?;
    advertise(&lab)?;
    let object = lab.get(&["gpunode", V100])?;
    let conditions = &object["status"]["conditions"];
    ensure!(
        condition(&object, "ResourceServedByAnother").is_null(),
        "its conditions are {conditions}"
    );
    lab.apply(&samples::deployment("after-dra", "training", 1))?;
    lab.await_running("after-dra", 1).map(drop)
}
