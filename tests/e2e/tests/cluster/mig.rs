//! MIG devices that exist are offered as NVIDIA's plugin offers them.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, MIXED, eventually};
use std::{collections::BTreeSet, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// UUIDs of the MIG devices of a profile on a GPU.
fn mig_uuids(lab: &Lab, gpu: usize, profile: &str) -> Result<BTreeSet<String>> {
    let object = lab.get(&["gpunode", MIXED])?;
    let devices = object["status"]["gpus"][gpu]["migDevices"]
        .as_array()
        .context("find the MIG devices")?;
    let of_profile = devices.iter().filter(|device| device["profile"] == profile);
    Ok(of_profile
        .filter_map(|device| device["uuid"].as_str())
        .map(str::to_owned)
        .collect())
}

/// Returns the devices that the pods of an app see.
fn visible(lab: &Lab, pods: &[String]) -> Result<BTreeSet<String>> {
    let of_pods: Vec<BTreeSet<String>> = pods.iter().map(|pod| lab.visible(pod)).collect::<Result<_>>()?;
    Ok(of_pods.into_iter().flatten().collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn mig_devices_are_offered_by_profile_beside_whole_gpus() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("mixed", "{mig: {strategy: Mixed}}"))?;
    lab.await_allocatable(MIXED, "nvidia.com/gpu", 2)?;
    lab.await_allocatable(MIXED, "nvidia.com/mig-3g.40gb", 3)?;
    lab.await_allocatable(MIXED, "nvidia.com/mig-1g.10gb", 2)?;
    lab.apply(&samples::holding("small", "mixed", 2, "nvidia.com/mig-1g.10gb", 1))?;
    let small = lab.await_running("small", 2)?;
    assert_eq!(visible(&lab, &small)?, mig_uuids(&lab, 3, "1g.10gb")?);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn equal_mig_devices_stand_in_the_place_of_their_gpu() -> Result<()> {
    let lab = Lab::enter()?;
    let single = "{mig: {strategy: Single}, resources: [{name: nvidia.com/gpu, devices: {indices: [2]}}]}";
    lab.apply(&samples::sharing("mixed", single))?;
    lab.await_allocatable(MIXED, "nvidia.com/gpu", 2)?;
    lab.apply(&samples::holding("halves", "mixed", 2, "nvidia.com/gpu", 1))?;
    let halves = lab.await_running("halves", 2)?;
    assert_eq!(visible(&lab, &halves)?, mig_uuids(&lab, 2, "3g.40gb")?);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn unequal_mig_devices_are_not_offered_as_gpus_and_status_says_why() -> Result<()> {
    let lab = Lab::enter()?;
    let single = "{mig: {strategy: Single}, resources: [
        {name: nvidia.com/gpu, devices: {indices: [3]}}, {name: example.com/whole, devices: {indices: [0, 1], kind: FullGpu}}]}";
    lab.apply(&samples::sharing("mixed", single))?;
    eventually("the GpuNode says why", LIMIT, || {
        let node = lab.get(&["gpunode", MIXED])?;
        let offered = gpunode_e2e::condition(&node, "DevicesOffered");
        ensure!(
            offered["status"] == "False" && offered["reason"] == "MigInstancesUnequal",
            "its status is {}",
            node["status"]
        );
        ensure!(offered["message"].to_string().contains("nvidia.com/gpu"), "{offered}");
        Ok(())
    })?;
    lab.await_allocatable(MIXED, "example.com/whole", 2)?;
    assert_eq!(lab.allocatable(MIXED, "nvidia.com/gpu")?, 0);
    eventually("the policy names the node and the reason", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "sharing"])?;
        let failure = &policy["status"]["failures"][0];
        ensure!(
            failure["node"] == MIXED && failure["reason"] == "MigInstancesUnequal",
            "its status is {}",
            policy["status"]
        );
        Ok(())
    })
}
