//! A change of MIG in whose midst another agent takes over.

use crate::mig_layout::{
    BEFORE, GPU, LARGE, MEDIUM, PROFILE_2G, PROFILE_4G, mig, node, offers, offers_before, reaches,
};
use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, Image, Node, until};
use gpunode_scenario::{GpuInstanceRecord, MigState};
use rustix::process::Signal;

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
