//! MIG instances that a boot, a load of the driver or a reset of the GPU takes: the agent makes the same ones at the same places.

use crate::mig_layout::{BEFORE, GPU, LARGE, SMALL, devices, mig, node, node_of, offers_before};
use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, ApiServer, Lab, Node, until};
use gpunode_scenario::{MigUuids, ReturnCode};

const A100: &str = "NVIDIA A100-SXM4-80GB";
const H100: &str = "NVIDIA H100 80GB HBM3";

/// Id, profile and first slice of each instance of the first GPU.
fn places(node: &Node) -> Result<Vec<(u32, u32, u32)>> {
    let instances = mig(node).context("the first GPU has MIG")?.instances.into_iter();
    Ok(instances
        .map(|instance| (instance.id, instance.profile, instance.start))
        .collect())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn instances_are_back_before_the_first_list_after_a_reboot() -> Result<()> {
    for (board, uuids) in [(A100, MigUuids::Returning), (H100, MigUuids::New)] {
        let mut lab = Lab::start(node_of(board, 2, uuids)?, BEFORE)?;
        lab.kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 6).await?;
        lab.kubelet.has(LARGE, |endpoint| endpoint.healthy().len() == 2).await?;
        let before = places(&lab.node)?;
        lab.kubelet.admit("pod", "main", LARGE, 1).await?;
        lab.kubelet.is_listed().await?;
        lab.agent.kill().await?;
        lab.kubelet.release("pod");
        lab.kubelet.stop();
        lab.node.power_cycle("second")?;
        // Boards that nobody has opened since the boot take their time.
        lab.node.state()?.delay(0, "nvmlDeviceGetName", 500)?;
        let lists = lab.kubelet.messages(SMALL).len();
        lab.kubelet.restart()?;
        lab.agent = Agent::run(&lab.node)?;
        until("the first list", || {
            (lab.kubelet.messages(SMALL).len() > lists).then_some(())
        })
        .await?;
        assert_eq!(places(&lab.node)?, before, "{board}");
        lab.kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 6).await?;
        lab.kubelet.has(LARGE, |endpoint| endpoint.healthy().len() == 2).await?;
        let first = &lab.kubelet.messages(SMALL)[lists];
        let healthy = first.devices.iter().filter(|device| device.health == "Healthy");
        assert_eq!(healthy.count(), 6, "{board}: {first:?}");
    }
    Ok(())
}

/// The kubelet goes on, and has a pod on a device that is gone: it holds nothing up.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn instances_are_back_after_the_driver_was_loaded_anew() -> Result<()> {
    let mut lab = Lab::start(node_of(H100, 1, MigUuids::New)?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let (before, lost) = (places(&lab.node)?, devices(&lab.node));
    lab.kubelet.admit("pod", "main", LARGE, 1).await?;
    lab.kubelet.is_listed().await?;
    lab.agent.kill().await?;
    lab.node.reload_driver()?;
    lab.agent = Agent::run(&lab.node)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(places(&lab.node)?, before);
    let now = devices(&lab.node);
    ensure!(
        now.values().all(|uuid| !lost.values().any(|other| other == uuid)),
        "{now:?}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn instances_are_back_after_a_reset_of_their_gpu() -> Result<()> {
    let lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let before = places(&lab.node)?;
    lab.node.state()?.reset_gpu(0)?;
    assert_eq!(places(&lab.node)?, []);
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(places(&lab.node)?, before);
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}

/// A node with the layout, governed by the operator, right after a reboot. Returns its places from before, too.
async fn rebooted(api_server: &ApiServer, board: &str) -> Result<(Lab, Vec<(u32, u32, u32)>)> {
    let mut lab = Lab::start_beside(api_server, node_of(board, 1, MigUuids::Returning)?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let before = places(&lab.node)?;
    lab.agent.kill().await?;
    lab.kubelet.stop();
    lab.node.power_cycle("second")?;
    Ok((lab, before))
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn gpu_whose_instances_cannot_be_made_again_offers_nothing_and_says_so() -> Result<()> {
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    let api_server = ApiServer::start().await?;
    let (mut lab, before) = rebooted(&api_server, A100).await?;
    lab.node.state()?.fail(0, create, ReturnCode::Unknown)?;
    lab.kubelet.restart()?;
    lab.agent = Agent::run_beside(&api_server, &lab.node)?;
    let says_so = || {
        let mig = api_server.status("/gpus/0/mig")?;
        (mig["phase"] == "Failed" && mig["message"].to_string().contains(create)).then_some(())
    };
    until("the GpuNode says so", says_so).await?;
    for resource in [SMALL, LARGE, GPU] {
        let endpoint = lab.kubelet.endpoint(resource);
        ensure!(endpoint.healthy().is_empty(), "{resource} is offered: {endpoint:?}");
    }
    lab.node.state()?.clear_failure(0, create)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(places(&lab.node)?, before);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn instances_are_back_after_a_reboot_while_no_api_server_answers() -> Result<()> {
    let api_server = ApiServer::start().await?;
    let (mut lab, before) = rebooted(&api_server, H100).await?;
    drop(api_server);
    lab.kubelet.restart()?;
    lab.agent = Agent::run_without_api_server(&lab.node)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(places(&lab.node)?, before);
    Ok(())
}
