//! A node whose driver is being replaced: agents let go of its GPUs while a label asks for it, and pods run on.

use crate::{faults::allocates_a_gpu, health::Driver, samples};
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, NodeWatch, T4, condition, eventually};
use serde_json::Value;
use std::time::Duration;

const RESOURCE: &str = "nvidia.com/gpu";
const LIMIT: Duration = Duration::from_mins(3);
const PAUSE: &str = "nvidia.com/gpu.deploy.device-plugin";

/// The container of the pod that holds a GPU all the time.
fn steady(lab: &Lab) -> Result<Value> {
    let pod = lab.await_running("steady", 1)?.concat();
    Ok(lab.get(&["pod", &pod])?["status"]["containerStatuses"][0]["containerID"].clone())
}

fn await_released(lab: &Lab) -> Result<()> {
    lab.await_allocatable(T4, RESOURCE, 0)?;
    eventually(
        "the GpuNode and the policy say that the GPUs are released",
        LIMIT,
        || {
            let object = lab.get(&["gpunode", T4])?;
            let ready = condition(&object, "Ready");
            ensure!(
                ready["status"] == "False" && ready["reason"] == "Released",
                "the GpuNode is {ready}"
            );
            let policy = lab.get(&["gpunodepolicy", "sharing"])?["status"].clone();
            let failure = &policy["failures"][0];
            ensure!(
                failure["node"] == T4 && failure["reason"] == "Released",
                "the policy's status is {policy}"
            );
            Ok(())
        },
    )?;
    let gpus = lab.get(&["gpunode", T4])?["status"]["gpus"].clone();
    let known = gpus
        .as_array()
        .into_iter()
        .flatten()
        .filter(|gpu| gpu["missingSince"].is_null())
        .count();
    ensure!(known == 4, "what was known of them stays: {gpus}");
    ensure!(
        lab.node(T4)?["metadata"]["labels"]["nvidia.com/gpu.count"] == "4",
        "and so do the labels"
    );
    Ok(())
}

fn await_back(lab: &Lab) -> Result<()> {
    lab.await_allocatable(T4, RESOURCE, 4)?;
    lab.await_ready("sharing")?;
    let object = lab.get(&["gpunode", T4])?;
    ensure!(
        object["spec"].get("release").is_none_or(|release| release == false),
        "{}",
        object["spec"]
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn agents_let_go_of_gpus_while_a_label_asks_for_it_and_come_back() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(&samples::deployment("steady", "inference", 1))?;
    let before = steady(&lab)?;
    for label in [
        "gpunode.dev/release=true".to_owned(),
        format!("{PAUSE}=paused-for-driver-upgrade"),
    ] {
        let key = label.split_once('=').map_or("", |(key, _)| key);
        lab.kubectl(&["label", "node", T4, &label])?;
        await_released(&lab)?;
        lab.kubectl(&["label", "node", T4, &format!("{key}-")])?;
        await_back(&lab)?;
    }
    assert_eq!(steady(&lab)?, before, "the pod that holds a GPU ran through it");
    allocates_a_gpu(&lab, "after-release")
}

/// As gpu-operator's driver manager does it: it lifts the label before the new driver is installed.
#[test]
#[ignore = "needs the local cluster: make test"]
fn nothing_is_offered_after_a_release_before_the_driver_is_back() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/release=true"])?;
    await_released(&lab)?;
    let (driver, watch) = (Driver::of(&lab)?, NodeWatch::start(&lab, T4)?);
    driver.uninstall()?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/release-"])?;
    eventually("the GpuNode says that there is no driver", LIMIT, || {
        let available = condition(&lab.get(&["gpunode", T4])?, "DriverAvailable");
        ensure!(
            available["status"] == "False" && available["reason"] == "DriverNotFound",
            "{available}"
        );
        Ok(())
    })?;
    // That nothing comes can only be waited for; the kubelet reports every second.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(watch.allocatable(&lab, RESOURCE)?, [Some(0)]);
    drop(driver);
    await_back(&lab)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn who_wants_no_plugin_of_nvidia_releases_nothing() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.kubectl(&["label", "node", T4, &format!("{PAUSE}=false")])?;
    // Written later, and passed on by the same write where there is one.
    lab.kubectl(&["annotate", "node", T4, "gpunode.dev/recovered=2026-01-31T12:00:00Z"])?;
    let spec = eventually("the operator has passed the annotation on", LIMIT, || {
        let spec = lab.get(&["gpunode", T4])?["spec"].clone();
        ensure!(spec["recovered"] == "2026-01-31T12:00:01Z", "the spec is {spec}");
        Ok(spec)
    })?;
    ensure!(spec["release"] != true, "the spec is {spec}");
    lab.await_ready("sharing")?;
    assert_eq!(lab.allocatable(T4, RESOURCE)?, 4);
    Ok(())
}
