//! The agent notices failures around it, recovers without a restart, and always stops on request.

use anyhow::Result;
use gpunode_node_tests::{Agent, FakeKubelet, Namespace, Node, until};
use rustix::process::Signal;
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";
const STOPPING: Duration = Duration::from_secs(1);

/// Phase of the agent.
enum Phase {
    Binding,
    Registering,
    Serving,
    Lost,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Binding, Self::Registering, Self::Serving, Self::Lost];

    async fn reach(&self, node: &Node) -> Result<(Agent, FakeKubelet)> {
        node.configure("")?;
        let folder = node.device_plugins();
        let mut kubelet = FakeKubelet::start(folder.clone())?;
        let agent = match self {
            Self::Registering => {
                kubelet.refuse(usize::MAX);
                let agent = Agent::run(node)?;
                agent.logs("refused by the test").await?;
                agent
            }
            Self::Binding | Self::Serving | Self::Lost => {
                let agent = Agent::run(node)?;
                agent.logs("registered with the kubelet").await?;
                agent
            }
        };
        match self {
            Self::Binding => {
                node.remove_device_plugins()?;
                agent.logs("bind ").await?;
            }
            Self::Lost => {
                kubelet.stop();
                agent.logs("register with the kubelet; retrying").await?;
            }
            Self::Registering | Self::Serving => {}
        }
        Ok((agent, kubelet))
    }
}

#[tokio::test]
async fn sigterm_ends_the_agent_within_a_second_whatever_it_is_doing() -> Result<()> {
    for phase in Phase::ALL {
        let node = Node::with_v100()?;
        let (mut agent, _kubelet) = phase.reach(&node).await?;
        let (status, took) = agent.stop().await?;
        assert!(status.success() && took < STOPPING, "{status} after {took:?}");
        assert!(!node.device_plugins().exists() || node.sockets()?.is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn sighup_is_taken_in_whatever_the_agent_is_doing() -> Result<()> {
    for phase in Phase::ALL {
        let node = Node::with_v100()?;
        let (agent, kubelet) = phase.reach(&node).await?;
        node.configure(SHARED)?;
        agent.signal(Signal::HUP)?;
        agent.logs("reload").await?;
        drop(kubelet);
        fs::create_dir_all(node.device_plugins())?;
        let kubelet = FakeKubelet::start(node.device_plugins())?;
        kubelet.has(GPU, |endpoint| endpoint.devices.len() == 16).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_kubelet_socket_on_which_nobody_listens_is_tried_until_somebody_does() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let mut kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.stop();
    let agent = Agent::run(&node)?;
    agent.logs("ConnectionRefused").await?;
    kubelet.restart()?;
    kubelet.has(GPU, |_| true).await?;
    Ok(())
}

#[tokio::test]
async fn a_folder_of_device_plugins_that_was_removed_is_used_again_when_it_is_back() -> Result<()> {
    let node = Node::with_v100()?;
    let (agent, kubelet) = Phase::Serving.reach(&node).await?;
    drop(kubelet);
    node.remove_device_plugins()?;
    agent.logs("not registered; registering again").await?;
    fs::create_dir(node.device_plugins())?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.has(GPU, |_| true).await?;
    agent.await_ready().await
}

#[tokio::test]
async fn new_ids_are_not_offered_before_the_disk_has_what_they_stand_for() -> Result<()> {
    let node = Node::with_v100()?;
    let (agent, kubelet) = Phase::Serving.reach(&node).await?;
    // Where the next content would be written first.
    let blocked = node.state_dir().join("assignments.json.new");
    fs::create_dir(&blocked)?;
    node.configure(SHARED)?;
    agent.signal(Signal::HUP)?;
    agent.logs("cannot save the assignments").await?;
    // What is not worth a save by itself brings another try.
    for reloads in 2..4 {
        agent.signal(Signal::HUP)?;
        until("the agent reloads", || {
            (agent.logged("\"reload\"") == reloads).then_some(())
        })
        .await?;
    }
    assert_eq!(kubelet.endpoint(GPU).devices.len(), 8);
    assert_eq!(
        agent.logged("cannot save the assignments"),
        1,
        "an error that stays is said once"
    );
    fs::remove_dir(&blocked)?;
    agent.signal(Signal::HUP)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 16).await?;
    agent.logs("saved the assignments again").await?;
    Ok(())
}

/// Fills a disk to its last byte.
fn fill(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("filler");
    let mut file = fs::File::create(&path)?;
    let page = [0; 4096];
    while let Ok(written) = file.write(&page)
        && written > 0
    {}
    Ok(path)
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn on_a_full_disk_what_is_offered_stays_and_an_agent_can_be_replaced() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    fs::create_dir_all(node.state_dir())?;
    let host = Namespace::with_small_disk(&node.state_dir(), 64 * 1024)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let first = Agent::run_on(&host, &node, "first")?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    let state = host.path(&node.state_dir());
    let filler = fill(&state)?;

    node.configure(SHARED)?;
    first.signal(Signal::HUP)?;
    let line = first.logs("cannot save the assignments").await?;
    assert!(line.contains("os error 28"), "{line}");
    assert_eq!(
        kubelet.endpoint(GPU).devices.len(),
        8,
        "ids that the disk does not have are not offered"
    );
    node.configure("")?;
    first.signal(Signal::HUP)?;
    first.logs("saved the assignments again").await?;

    let second = Agent::run_on(&host, &node, "second")?;
    second.await_ready().await?;
    second.logs("cannot save the hand-over record").await?;
    first.logs("the successor serves the node").await?;
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().len() == 8
        })
        .await?;
    assert!(second.get("/livez").await?.starts_with("HTTP/1.1 200"));

    fs::remove_file(filler)?;
    node.configure(SHARED)?;
    second.signal(Signal::HUP)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 16).await?;
    Ok(())
}
