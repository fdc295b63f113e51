//! A driver that does not answer every question: no GPU is offered as something that it is not.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, Stopwatch, until};
use gpunode_scenario::{AdditionalBoards, MigGroup, ReturnCode, Scenario, Topology};
use rustix::process::Signal;
use std::{fs, time::Duration};

const GPU: &str = "nvidia.com/gpu";
const PART: &str = "nvidia.com/mig-3g.40gb";
const BY_MEMORY: &str = "resources: [{name: a.b/big, devices: {minMemory: 8Gi}}, {name: a.b/small}]";

/// Two A100 of 80 GB, of which the second is divided.
fn divided() -> Result<Node> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![1],
        instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()],
    }];
    Node::new(scenario)
}

/// Makes the agent probe the hardware, and waits for the result.
async fn probe_again(lab: &Lab, outcome: &str) -> Result<()> {
    let before = lab.agent.logged(outcome);
    lab.agent.signal(Signal::HUP)?;
    until(outcome, || (lab.agent.logged(outcome) > before).then_some(())).await
}

#[tokio::test]
async fn a_gpu_whose_mig_mode_is_not_told_is_offered_once_it_is() -> Result<()> {
    let node = divided()?;
    node.state()?.fail(1, "nvmlDeviceGetMigMode", ReturnCode::Unknown)?;
    let lab = Lab::start(node, "mig: {strategy: Mixed}")?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(endpoint.ids(), lab.node.uuids()?[..1]);
    lab.agent.logs("read the MIG mode of GPU 1: ").await?;
    lab.node.state()?.clear_failure(1, "nvmlDeviceGetMigMode")?;
    let parts = lab.kubelet.has(PART, |_| true).await?;
    assert_eq!(parts.ids(), lab.node.mig_uuids()?.concat());
    assert_eq!(lab.kubelet.endpoint(GPU).ids(), lab.node.uuids()?[..1]);
    Ok(())
}

#[tokio::test]
async fn a_gpu_that_ceases_to_tell_stays_what_it_was() -> Result<()> {
    let lab = Lab::start(divided()?, "mig: {strategy: Mixed}")?;
    lab.kubelet.has(GPU, |_| true).await?;
    lab.kubelet.has(PART, |_| true).await?;
    for function in [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetCudaComputeCapability",
    ] {
        lab.node.state()?.fail(1, function, ReturnCode::Timeout)?;
        probe_again(&lab, "hardware has a problem").await?;
        lab.node.state()?.clear_failure(1, function)?;
        probe_again(&lab, "hardware found").await?;
    }
    let (whole, parts) = (lab.kubelet.endpoint(GPU), lab.kubelet.endpoint(PART));
    assert_eq!((whole.lists, parts.lists), (1, 1), "nothing changed for the kubelet");
    Ok(())
}

#[tokio::test]
async fn memory_that_is_not_told_moves_no_gpu_to_another_resource() -> Result<()> {
    let mut lab = Lab::start(Node::with_t4()?, BY_MEMORY)?;
    let before = lab.kubelet.has("a.b/big", |_| true).await?.ids();
    lab.node
        .state()?
        .fail(0, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown)?;
    lab.replace_agent().await?;
    lab.agent.logs("read the memory of GPU 0: ").await?;
    lab.kubelet
        .has("a.b/big", |endpoint| {
            endpoint.registrations == 2 && endpoint.devices.len() == 3
        })
        .await?;
    lab.node.state()?.clear_failure(0, "nvmlDeviceGetMemoryInfo")?;
    let after = lab
        .kubelet
        .has("a.b/big", |endpoint| endpoint.devices.len() == 4)
        .await?;
    assert_eq!(after.ids(), before);
    assert_eq!(lab.kubelet.connected(), ["a.b/big"]);
    Ok(())
}

#[tokio::test]
async fn mig_devices_that_cannot_be_counted_are_not_said_to_be_none() -> Result<()> {
    for strategy in ["None", "Single", "Mixed"] {
        let node = divided()?;
        node.state()?
            .fail(1, "nvmlDeviceGetMaxMigDeviceCount", ReturnCode::Unknown)?;
        let lab = Lab::start(node, &format!("mig: {{strategy: {strategy}}}"))?;
        lab.agent.logs("count the MIG devices of GPU 1: ").await?;
        let endpoint = lab.kubelet.has(GPU, |_| true).await?;
        assert_eq!(endpoint.ids(), lab.node.uuids()?[..1], "{strategy}");
        assert_eq!(lab.agent.logged("MigWithoutInstances"), 0, "{strategy}");
    }
    Ok(())
}

#[tokio::test]
async fn a_node_that_loses_every_gpu_offers_none_and_waits_for_the_driver() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    lab.kubelet.admit("pod", "main", GPU, 1).await?;
    lab.kubelet.is_listed().await?;
    for gpu in 0..4 {
        lab.node.state()?.lose(gpu)?;
    }
    probe_again(&lab, "hardware has a problem").await?;
    until("nothing is healthy", || {
        lab.kubelet.endpoint(GPU).healthy().is_empty().then_some(())
    })
    .await?;
    for gpu in 0..4 {
        lab.node.state()?.restore(gpu)?;
    }
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    Ok(())
}

/// NVML lists the GPUs that the first of the open sessions found, and the one for events stays open.
#[tokio::test]
async fn a_gpu_that_is_plugged_in_is_offered_and_its_events_are_followed() -> Result<()> {
    let node = Node::with_t4()?;
    node.unplug(3)?;
    let lab = Lab::start(node, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 3).await?;
    lab.agent.logs("following driver events").await?;
    lab.node.plug(3)?;
    let endpoint = lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    assert_eq!((endpoint.ids(), endpoint.registrations), (lab.node.uuids()?, 1));
    until("the events of all GPUs are followed", || {
        (lab.agent.logged("following driver events") >= 2).then_some(())
    })
    .await?;
    lab.node.state()?.inject_xid(3, 79)?;
    let uuids = lab.node.uuids()?;
    lab.kubelet
        .has(GPU, |endpoint| {
            let healthy = endpoint.healthy();
            healthy.len() == 3 && !healthy.contains(&uuids[3])
        })
        .await?;
    Ok(())
}

/// The library with which a process works is one mapping; it goes with the session.
#[tokio::test]
async fn a_driver_that_is_replaced_underneath_is_used_within_10_s_and_no_container_notices() -> Result<()> {
    let mut lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    lab.agent.logs("following driver events").await?;
    let held = lab.kubelet.admit("pod", "main", GPU, 1).await?;
    let registrations = lab.kubelet.endpoint(GPU).registrations;
    lab.node.remove_driver()?;
    lab.agent.logs("hardware has a problem").await?;
    // Longer than anybody takes for a moment.
    until("nothing is given out", || {
        lab.kubelet.endpoint(GPU).healthy().is_empty().then_some(())
    })
    .await?;

    lab.node.upgrade_driver("590.10.01")?;
    let start = Stopwatch::start();
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    lab.agent.logs("following driver events").await?;
    until("the new driver's events are followed", || {
        (lab.agent.logged("following driver events") >= 2).then_some(())
    })
    .await?;
    lab.node.state()?.inject_xid(0, 79)?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 7).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).registrations, registrations);
    assert!(
        !held.ids.is_empty() && lab.kubelet.in_use(GPU).len() == 1,
        "what was held is held"
    );
    Ok(())
}

#[tokio::test]
async fn a_driver_whose_container_is_not_ready_is_left_alone() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("failOnInitError: true")?;
    let folder = node.host_root().join("run/nvidia/validations");
    fs::create_dir_all(&folder)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(&node)?;
    agent.logs("the driver's container is not ready").await?;
    assert!(!agent.has_loaded(&node.library())?);
    fs::write(folder.join(".driver-ctr-ready"), "")?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_starts_while_the_gpus_are_released_leaves_the_driver_alone() -> Result<()> {
    let node = Node::with_v100()?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let mut agent = Agent::run_saved(&node)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    agent.logs("following driver events").await?;
    assert!(agent.has_loaded(&node.library())?);
    agent.stop().await?;
    // As the agent leaves it that was asked to let go.
    fs::write(node.state_dir().join("released"), "")?;
    let agent = Agent::run_saved(&node)?;
    agent.logs("the GPUs are released").await?;
    agent.await_ready().await?;
    assert!(!agent.has_loaded(&node.library())?);
    assert_eq!(agent.logged("hardware found"), 0);
    Ok(())
}

#[tokio::test]
async fn machines_that_gpunode_does_not_support_are_named() -> Result<()> {
    for (file, name) in [
        ("etc/nv_tegra_release", "a Tegra system"),
        ("usr/lib/wsl/lib/libnvidia-ml.so.1", "WSL2"),
    ] {
        let node = Node::without_driver(Scenario::new("none", "Tesla T4", 0, Topology::Pcie))?;
        let file = node.host_root().join(file);
        fs::create_dir_all(file.parent().context("the folder of the file")?)?;
        fs::write(file, "")?;
        let lab = Lab::start(node, "")?;
        lab.agent.logs(name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_driver_before_510_reports_the_memory_of_its_gpus() -> Result<()> {
    let mut scenario = Scenario::new("old", "Tesla T4", 1, Topology::Pcie);
    scenario.driver_version = "470.256.02".to_owned();
    let config = "resources: [{name: a.b/memory, sharing: {strategy: Memory}}]";
    let lab = Lab::start(Node::new(scenario)?, config)?;
    let endpoint = lab.kubelet.has("a.b/memory", |_| true).await?;
    assert_eq!(endpoint.ids().len(), 15);
    Ok(())
}

#[tokio::test]
async fn the_display_board_of_a_dgx_station_is_not_offered() -> Result<()> {
    let mut scenario = Scenario::new("station", "NVIDIA DGX Display", 1, Topology::Pcie);
    scenario.additional = vec![AdditionalBoards {
        board: "NVIDIA A100-SXM4-80GB".to_owned(),
        count: 4,
        topology: Topology::Pcie,
    }];
    let lab = Lab::start(Node::new(scenario)?, "")?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(endpoint.ids(), lab.node.uuids()?[1..]);
    Ok(())
}
