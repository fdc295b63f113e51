//! A change of MIG in whose midst another agent takes over, or the GPUs are released.

use crate::mig_layout::{
    AFTER, BEFORE, GPU, LARGE, MEDIUM, PROFILE_2G, PROFILE_4G, SMALL, mig, node, node_of, offers, offers_after,
    offers_before, reaches,
};
use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, ApiServer, FakeKubelet, Image, Node, until};
use gpunode_scenario::{GpuInstanceRecord, MigState, MigUuids};
use rustix::process::Signal;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

/// Calls that create an instance.
const CREATE: [&str; 2] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
];
/// Time of each of these calls, in milliseconds; shorter than a hand-over waits for one.
const CALL_MS: u64 = 2000;

fn set_call_time(node: &Node, ms: [u64; 2]) -> Result<()> {
    let state = node.state()?;
    for gpu in 0..u32::try_from(node.uuids()?.len())? {
        for (call, ms) in CREATE.into_iter().zip(ms) {
            state.delay(gpu, call, ms)?;
        }
    }
    Ok(())
}

/// MIG of all GPUs by index, once programs have changed it.
fn all_mig(node: &Node) -> Result<BTreeMap<u32, MigState>> {
    Ok(node.state()?.driver()?.mig)
}

/// The instance of 4g.40gb, on which a pod runs.
fn large(mig: &MigState) -> Option<&GpuInstanceRecord> {
    mig.instances.iter().find(|instance| instance.profile == PROFILE_4G)
}

/// Waits until something was created on the first GPU.
async fn has_begun(node: &Node, before: &MigState) -> Result<()> {
    let is_begun = || (mig(node)?.created > before.created).then_some(());
    until("an instance is created", is_begun).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_that_takes_over_in_the_midst_of_a_change_goes_on_with_it() -> Result<()> {
    let node = node()?;
    node.configure("mig: {strategy: Mixed, layout: [{instances: {2g.20gb: 1, 4g.40gb: 1}}]}")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let first = Agent::run_in_pod(&node, "first", Image::Good)?;
    offers(&kubelet, &node, (MEDIUM, PROFILE_2G, 1)).await?;
    offers(&kubelet, &node, (LARGE, PROFILE_4G, 1)).await?;
    let held = kubelet.admit("large", "main", LARGE, 1).await?.ids;
    kubelet.is_listed().await?;
    let before = mig(&node).context("MIG")?;
    set_call_time(&node, [CALL_MS; 2])?;
    node.configure(BEFORE)?;
    first.signal(Signal::HUP)?;
    has_begun(&node, &before).await?;

    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    first.logs("handing over to a successor").await?;
    let created = |mig: &MigState| mig.created - before.created;
    let half = mig(&node).context("MIG")?;
    ensure!(created(&half) < 5, "it was nearly over before: {half:?}");
    first.logs("the successor serves the node").await?;
    second.await_ready().await?;
    set_call_time(&node, [0; 2])?;
    offers_before(&kubelet, &node).await?;
    let after = mig(&node).context("MIG")?;
    assert_eq!(
        created(&after),
        6,
        "three instances and what fills each of them, all of them once"
    );
    assert_eq!(large(&after), large(&before), "the instance of the pod is the same");
    assert_eq!(kubelet.in_use(LARGE), held.into_iter().collect());
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

/// The simulated driver resets no GPU that another process follows, as an agent does that may have to take the node back.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn mode_changes_once_the_agent_before_has_ended() -> Result<()> {
    let node = node()?;
    node.configure("mig: {strategy: Mixed}")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let mut first = Agent::run_in_pod(&node, "first", Image::Good)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 1).await?;
    first.logs("following driver events").await?;
    let second = Agent::run_in_pod(&node, "second", Image::Good)?;
    first.logs("the successor serves the node").await?;
    node.configure(BEFORE)?;
    second.signal(Signal::HUP)?;
    let line = reaches(&second, "Blocked").await?;
    ensure!(line.contains("IN_USE"), "{line}");
    assert!(!mig(&node).is_some_and(|mig| mig.enabled || mig.pending.is_some()));
    first.stop().await?;
    offers_before(&kubelet, &node).await
}

/// Two GPUs with the first layout, pods on their largest instances, and an agent that gets its configuration from the operator.
async fn governed(api_server: &ApiServer) -> Result<(Node, FakeKubelet, Agent)> {
    // Boards that change the mode without a reset.
    let node = node_of("NVIDIA H100 80GB HBM3", 2, MigUuids::Returning)?;
    api_server.configure(BEFORE);
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run_beside(api_server, &node)?;
    kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 6).await?;
    kubelet.has(LARGE, |endpoint| endpoint.healthy().len() == 2).await?;
    kubelet.admit("large", "main", LARGE, 2).await?;
    kubelet.is_listed().await?;
    Ok((node, kubelet, agent))
}

async fn is_released(api_server: &ApiServer, agent: &Agent) -> Result<()> {
    agent.logs("the GPUs are released").await?;
    let is_told = || (api_server.reason("Ready")? == "Released").then_some(());
    until("the GpuNode says so", is_told).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn release_lets_the_gpu_that_is_changed_get_its_layout_and_no_other_begin() -> Result<()> {
    let api_server = ApiServer::start().await?;
    let (node, kubelet, agent) = governed(&api_server).await?;
    let before = all_mig(&node)?;
    set_call_time(&node, [CALL_MS; 2])?;
    api_server.configure(AFTER);
    let changed = || {
        let mut now = all_mig(&node).ok()?.into_iter();
        now.find(|(gpu, mig)| before.get(gpu) != Some(mig)).map(|(gpu, _)| gpu)
    };
    let first = until("the change of a GPU begins", changed).await?;
    api_server.set_spec(&json!({"release": true}));
    is_released(&api_server, &agent).await?;
    let released = all_mig(&node)?;
    let instances = &released[&first].instances;
    let is_new =
        |instance: &GpuInstanceRecord| instance.profile == PROFILE_2G && !instance.compute_instances.is_empty();
    ensure!(
        instances.len() == 3 && instances.iter().any(is_new),
        "it has not got its layout: {instances:?}"
    );
    let changed: Vec<&u32> = released.keys().filter(|gpu| released[gpu] != before[gpu]).collect();
    assert_eq!(changed, [&first]);
    for resource in [SMALL, MEDIUM, LARGE] {
        ensure!(kubelet.endpoint(resource).healthy().is_empty(), "{resource} is offered");
    }
    set_call_time(&node, [0; 2])?;
    // That nothing begins can only be waited for: longer than the agent pauses before another attempt.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(all_mig(&node)?, released, "the driver is left alone");

    api_server.set_spec(&json!({"release": false}));
    for resource in [SMALL, MEDIUM, LARGE] {
        kubelet.has(resource, |endpoint| endpoint.healthy().len() == 2).await?;
    }
    for (gpu, after) in &all_mig(&node)? {
        assert_eq!(large(after), large(&before[gpu]), "the instance of the pod is the same");
        assert_eq!(after.created - before[gpu].created, 2, "one instance and what fills it");
    }
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_that_starts_during_a_release_goes_on_with_a_change_after_it() -> Result<()> {
    let api_server = ApiServer::start().await?;
    let node = node_of("NVIDIA H100 80GB HBM3", 1, MigUuids::Returning)?;
    api_server.configure(BEFORE);
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let mut agent = Agent::run_beside(&api_server, &node)?;
    offers_before(&kubelet, &node).await?;
    let before = mig(&node).context("MIG")?;
    // The second call lasts until the agent is killed.
    set_call_time(&node, [0, 30_000])?;
    api_server.configure(AFTER);
    has_begun(&node, &before).await?;
    api_server.set_spec(&json!({"release": true}));
    until("the release is saved", || {
        node.state_dir().join("released").exists().then_some(())
    })
    .await?;
    agent.kill().await?;
    let half = mig(&node).context("MIG")?;
    ensure!(half.created - before.created == 1, "it was over before: {half:?}");
    set_call_time(&node, [0; 2])?;
    let agent = Agent::run_beside(&api_server, &node)?;
    is_released(&api_server, &agent).await?;
    assert_eq!(mig(&node), Some(half), "the driver is left alone");
    api_server.set_spec(&json!({"release": false}));
    offers_after(&kubelet, &node).await?;
    assert_eq!(large(&mig(&node).context("MIG")?), large(&before));
    Ok(())
}
