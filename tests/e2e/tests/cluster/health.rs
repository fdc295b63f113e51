//! Broken GPUs, as people see them, and a driver that is replaced while pods use it.

use crate::{
    faults::{running, steady},
    samples,
};
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, T4, eventually};
use gpunode_node_tests::Stopwatch;
use gpunode_scenario::{RecoveryAction, Scenario, StateFile};
use jiff::Timestamp;
use serde_json::Value;
use std::{fs, io, path::PathBuf, process::Command, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";

/// Health of a GPU of the T4 node.
fn health(lab: &Lab, uuid: &str) -> Result<Value> {
    let object = lab.get(&["gpunode", T4])?;
    let mut gpus = object["status"]["gpus"].as_array().context("find the GPUs")?.iter();
    Ok(gpus.find(|gpu| gpu["uuid"] == uuid).context("find the GPU")?["health"].clone())
}

/// Waits for an event of the T4 node with this reason and all of these parts.
fn find_event(lab: &Lab, reason: &str, parts: &[&str]) -> Result<()> {
    let selector = format!("involvedObject.kind=Node,involvedObject.name={T4},reason={reason}");
    let events = lab.get(&["events", "--all-namespaces", "--field-selector", &selector])?;
    let mut messages = events["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|event| event["message"].as_str());
    let says_all = |message: &str| parts.iter().all(|part| message.contains(part));
    ensure!(
        messages.any(says_all),
        "no event {reason} says {parts:?}; there is {}",
        events["items"]
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_broken_gpu_is_told_with_cause_cure_and_holders_and_takes_no_other_with_it() -> Result<()> {
    let lab = Lab::enter()?;
    let before = steady(&lab)?;
    let pod = lab.await_running("steady", 4)?.pop().context("a pod")?;
    let gpu = lab.visible(&pod)?.pop_first().context("find the pod's GPU")?;
    let broken = lab.break_gpu(T4, &gpu)?;
    // Four of the sixteen shares.
    lab.await_allocatable(T4, GPU, 12)?;
    let seen = health(&lab, &gpu)?;
    ensure!(seen["reason"] == "Xid" && seen["xid"] == 46, "{seen}");
    for (field, part) in [
        ("message", "XID 46: GPU timeout"),
        ("action", "reset the GPU"),
        ("waitsFor", "GPU reset"),
    ] {
        ensure!(
            seen[field].as_str().is_some_and(|text| text.contains(part)),
            "{field} of {seen}"
        );
    }
    let since: Timestamp = seen["since"].as_str().context("since when")?.parse()?;
    for other in lab.gpu_uuids(T4)?.iter().filter(|uuid| **uuid != gpu) {
        ensure!(health(&lab, other)?["state"] == "Healthy", "{other}");
    }
    let parts = [gpu.as_str(), "XID 46", "reset the GPU", &pod];
    eventually("an event of the Node tells it", LIMIT, || {
        find_event(&lab, "GpuUnhealthy", &parts)
    })?;
    let described = lab.kubectl(&["describe", "node", T4])?;
    ensure!(
        described.contains("GpuUnhealthy") && described.contains(&gpu),
        "{described}"
    );
    let status = lab.gpunode(&["status", T4])?;
    ensure!(status.contains("is unhealthy") && status.contains("XID 46"), "{status}");
    ensure!(
        status.starts_with("PROBLEMS\n"),
        "status begins with what is wrong: {status}"
    );
    ensure!(status.contains("XID 46 (GPU"), "the node's FAULT names it: {status}");

    broken.repair()?;
    lab.await_allocatable(T4, GPU, 16)?;
    eventually("an event of the Node tells it", LIMIT, || {
        find_event(&lab, "GpuHealthy", &[&gpu])
    })?;
    let healed: Timestamp = health(&lab, &gpu)?["since"].as_str().context("since when")?.parse()?;
    ensure!(healed > since, "{healed} and {since}");
    assert_eq!(running(&lab)?, before, "pods keep running");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn manual_recovery_waits_for_the_annotation_of_the_node() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("inference", "{health: {recovery: Manual}}"))?;
    lab.await_allocatable(T4, GPU, 4)?;
    let uuids = lab.gpu_uuids(T4)?;
    let broken = lab.break_gpu(T4, &uuids[0])?;
    let waits_for = health(&lab, &uuids[0])?["waitsFor"].to_string();
    ensure!(waits_for.contains("gpunode.dev/recovered"), "{waits_for}");
    // Dropped, it shows nothing wrong any more; what another one shows is found by a later look at both.
    drop(broken);
    let state = StateFile::open(lab.cluster().node(T4)?.driver_dir()?)?;
    state.set_recovery_action(1, RecoveryAction::DrainAndReset)?;
    eventually("the other GPU was looked at", LIMIT, || {
        let seen = health(&lab, &uuids[1])?;
        ensure!(seen["reason"] == "RecoveryPending", "{seen}");
        Ok(())
    })?;
    state.set_recovery_action(1, RecoveryAction::None)?;
    ensure!(health(&lab, &uuids[0])?["state"] == "Unhealthy");
    lab.await_allocatable(T4, GPU, 2)?;

    let recovered = format!("gpunode.dev/recovered={:.0}", Timestamp::now());
    lab.kubectl(&["annotate", "node", T4, &recovered])?;
    lab.await_allocatable(T4, GPU, 4)?;
    for uuid in &uuids {
        eventually("every GPU is healthy", LIMIT, || {
            let seen = health(&lab, uuid)?;
            ensure!(seen["state"] == "Healthy", "{seen}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The driver of the T4 node as it was, once this is dropped.
pub struct Driver {
    folder: PathBuf,
    before: Scenario,
}

impl Driver {
    pub fn of(lab: &Lab) -> Result<Self> {
        let folder = lab.cluster().node(T4)?.driver_dir()?;
        let before = Scenario::load(&folder)?;
        Ok(Self { folder, before })
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.1")
    }

    fn set_aside(&self) -> PathBuf {
        self.folder.join("libnvidia-ml.so.before")
    }

    pub fn uninstall(&self) -> Result<()> {
        Ok(fs::rename(self.library(), self.set_aside())?)
    }

    /// Another file, as an installation makes.
    fn install(&self, scenario: &Scenario) -> Result<()> {
        scenario.save(&self.folder)?;
        // The folder of libraries is usr/lib/ARCHITECTURE below the root.
        let root = self.folder.ancestors().nth(3).context("the driver's root")?;
        scenario.write_driver(root)?;
        let new = self.folder.join("libnvidia-ml.so.new");
        let from = if self.set_aside().exists() {
            self.set_aside()
        } else {
            self.library()
        };
        fs::copy(from, &new)?;
        Ok(fs::rename(new, self.library())?)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // What fails here shows in the next test.
        let _ = self.install(&self.before);
        let _ = fs::remove_file(self.set_aside());
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_driver_that_is_replaced_underneath_is_used_within_10_s_and_no_pod_notices() -> Result<()> {
    const VERSION: &str = "590.10.01";
    let lab = Lab::enter()?;
    let before = steady(&lab)?;
    let agent = lab.await_plugin(T4)?;
    let is_version = |version: &str| {
        eventually(&format!("the driver is {version}"), LIMIT, || {
            let seen = lab.get(&["gpunode", T4])?["status"]["driverVersion"].clone();
            ensure!(seen == version, "it is {seen}");
            Ok(())
        })
    };
    let driver = Driver::of(&lab)?;
    let version = driver.before.driver_version.clone();
    driver.uninstall()?;
    lab.await_allocatable(T4, GPU, 0)?;
    driver.install(&Scenario {
        driver_version: VERSION.to_owned(),
        ..driver.before.clone()
    })?;
    let start = Stopwatch::start();
    lab.await_allocatable(T4, GPU, 16)?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(10), "{took:?}");
    is_version(VERSION)?;
    drop(driver);
    is_version(&version)?;
    lab.await_allocatable(T4, GPU, 16)?;
    assert_eq!(
        (running(&lab)?, lab.await_plugin(T4)?),
        (before, agent),
        "nothing was started anew"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn one_line_breaks_a_gpu_of_the_local_cluster_and_one_mends_it() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    let gpu = |change: &[&str]| -> Result<()> {
        let cluster = lab.cluster().folder();
        let name = cluster.file_name().context("find the name of the cluster")?;
        let program = Command::new(Lab::repository().join("target/release/gpunode-cluster"))
            .args(["gpu", T4, "2"])
            .args(change)
            .arg("--name")
            .arg(name)
            .current_dir(Lab::repository())
            .output()?;
        ensure!(program.status.success(), "{change:?}: {program:?}");
        Ok(())
    };
    gpu(&["xid", "79"])?;
    let broken = eventually("GPU 2 has XID 79", LIMIT, || {
        let health = lab.get(&["gpunode", T4])?["status"]["gpus"][2]["health"].clone();
        ensure!(health["xid"] == 79, "it is {health}");
        lab.await_allocatable(T4, GPU, 3)
    });
    // Mended first, whatever was seen: the next test needs the GPU.
    gpu(&["recover"])?;
    broken?;
    lab.await_allocatable(T4, GPU, 4)
}

/// GPUs that are not on the PCI bus of the T4 node until this is dropped.
struct RemovedGpus {
    devices: PathBuf,
    aside: PathBuf,
}

impl RemovedGpus {
    fn remove(lab: &Lab) -> Result<Self> {
        let bus = lab.cluster().folder().join("nodes").join(T4).join("sys-bus/pci");
        let removed = Self {
            devices: bus.join("devices"),
            aside: bus.join("aside"),
        };
        fs::create_dir_all(&removed.aside)?;
        for device in fs::read_dir(&removed.devices)?.collect::<io::Result<Vec<_>>>()? {
            if fs::read_to_string(device.path().join("vendor"))?.trim() == "0x10de" {
                fs::rename(device.path(), removed.aside.join(device.file_name()))?;
            }
        }
        Ok(removed)
    }
}

impl Drop for RemovedGpus {
    fn drop(&mut self) {
        // What fails here shows in the next test.
        for device in fs::read_dir(&self.aside).into_iter().flatten().flatten() {
            let _ = fs::rename(device.path(), self.devices.join(device.file_name()));
        }
        let _ = fs::remove_dir(&self.aside);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn discovery_that_starts_on_a_node_without_its_gpus_reports_them_missing() -> Result<()> {
    let lab = Lab::enter()?;
    // By another pod than an earlier one.
    let await_report = |earlier: &str, are_missing: bool| {
        eventually(
            &format!("discovery says that GPUs are missing: {are_missing}"),
            LIMIT,
            || {
                let pod = lab.agent_pod(T4, "discovery")?;
                let status = lab.get(&["gpunode", T4])?["status"].clone();
                ensure!(pod != earlier && status["agent"]["pod"] == pod, "{}", status["agent"]);
                let gpus = status["gpus"].as_array().context("find the GPUs")?;
                let is_as_expected = |gpu: &Value| gpu["missingSince"].is_null() != are_missing;
                ensure!(gpus.len() == 4 && gpus.iter().all(is_as_expected), "{gpus:?}");
                Ok(pod)
            },
        )
    };
    let first = await_report("", false)?;
    let driver = Driver::of(&lab)?;
    let gpus = RemovedGpus::remove(&lab)?;
    driver.uninstall()?;
    lab.kubectl(&["delete", "pod", "-n", NAMESPACE, &first, "--timeout=60s"])?;
    await_report(&first, true)?;
    drop((gpus, driver));
    await_report(&first, false).map(drop)
}
