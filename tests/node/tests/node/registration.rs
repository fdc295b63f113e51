//! The agent stays registered, whatever the kubelet does.

use anyhow::Result;
use gpunode_node_tests::{
    Agent, Endpoint, FakeKubelet, Image, Node, OtherPlugin, PodResourcesAnswer, Stopwatch, until,
};
use rustix::process::Signal;
use std::{fs, time::Duration};
use tokio::time::sleep;

const GPU: &str = "nvidia.com/gpu";

async fn registered(node: &Node) -> Result<(FakeKubelet, Agent, String)> {
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(node)?;
    let socket = kubelet.has(GPU, |_| true).await?.socket;
    agent.logs("registered with the kubelet").await?;
    Ok((kubelet, agent, socket))
}

#[tokio::test]
async fn it_registers_again_when_the_kubelet_restarts() -> Result<()> {
    let node = Node::with_v100()?;
    let (mut kubelet, _agent, socket) = registered(&node).await?;
    for restarts in 1..4 {
        kubelet.restart()?;
        let endpoint = kubelet.has(GPU, |endpoint| endpoint.registrations > restarts).await?;
        assert_ne!(endpoint.socket, socket);
        assert_eq!(endpoint.devices.len(), 8);
    }
    until("only the newest socket is left", || {
        (node.sockets().ok()?.len() == 1).then_some(())
    })
    .await
}

#[tokio::test]
async fn it_registers_again_when_the_kubelet_was_away_for_a_while() -> Result<()> {
    let node = Node::with_v100()?;
    let (mut kubelet, agent, _) = registered(&node).await?;
    kubelet.stop();
    agent.logs("retrying").await?;
    assert!(
        agent
            .readyz()
            .await?
            .contains("the kubelet has not accepted nvidia.com/gpu yet")
    );
    kubelet.restart()?;
    kubelet.has(GPU, |endpoint| endpoint.registrations > 1).await?;
    Ok(())
}

#[tokio::test]
async fn it_registers_again_when_its_socket_is_deleted() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, _agent, socket) = registered(&node).await?;
    fs::remove_file(node.device_plugins().join(&socket))?;
    let endpoint = kubelet.has(GPU, |endpoint| endpoint.registrations > 1).await?;
    assert_ne!(endpoint.socket, socket);
    assert_eq!(node.sockets()?, [endpoint.socket]);
    Ok(())
}

#[tokio::test]
async fn it_registers_again_when_the_kubelet_ends_the_stream() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, _agent, _) = registered(&node).await?;
    for ends in 1..4 {
        kubelet.end_stream(GPU);
        kubelet.has(GPU, |endpoint| endpoint.registrations > ends).await?;
    }
    Ok(())
}

#[tokio::test]
async fn it_registers_again_when_the_kubelet_has_forgotten_the_resource() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, socket) = registered(&node).await?;
    kubelet.forget(GPU);
    // Two checks, the first of them within 10 s.
    let line = agent.logs("the kubelet has forgotten the resource").await?;
    assert!(line.contains(GPU), "{line}");
    let endpoint = kubelet.has(GPU, |endpoint| endpoint.registrations == 2).await?;
    assert_ne!(endpoint.socket, socket);
    Ok(())
}

#[tokio::test]
async fn it_registers_again_when_a_kubelet_with_an_unreadable_checkpoint_has_forgotten_the_resource() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, _) = registered(&node).await?;
    // The kubelet writes it again after the next list.
    fs::write(node.device_plugins().join("kubelet_internal_checkpoint"), "{")?;
    kubelet.forget(GPU);
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().len() == 8
        })
        .await?;
    agent.logs("the kubelet has forgotten the resource").await?;
    agent.logs("parse the kubelet's checkpoint").await.map(drop)
}

/// Up to 1.36 the end of the killed agent's stream would be taken for the end of its successor's.
#[tokio::test]
async fn an_agent_waits_until_a_kubelet_that_answers_late_has_noticed_the_end_of_the_one_before() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, mut killed, _) = registered(&node).await?;
    let lists = kubelet.messages(GPU).len();
    // The next agent asks for the holders first, which takes 3 s.
    kubelet.answer_pod_resources(PodResourcesAnswer::Late(Duration::from_millis(1500)));
    let noticed = Duration::from_secs(6);
    kubelet.notices_after(noticed);
    killed.kill().await?;
    let _next = Agent::run(&node)?;
    let registered_again = |endpoint: &Endpoint| endpoint.lists > lists && endpoint.healthy().len() == 8;
    kubelet.has(GPU, registered_again).await?;
    let after = kubelet.messages(GPU)[lists].at - kubelet.ends(GPU)[0];
    assert!(after >= noticed, "it registered after {after:?}");
    Ok(())
}

/// Up to 1.36 a kubelet takes the end of the old stream for that of the new one if it is slower than the agent.
#[tokio::test]
async fn a_kubelet_that_has_forgotten_the_resource_has_time_for_the_end_of_the_old_stream() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, _agent, _) = registered(&node).await?;
    let (lists, watch) = (kubelet.messages(GPU).len(), Stopwatch::start());
    kubelet.notices_after(Duration::from_millis(100));
    kubelet.forget(GPU);
    let registered_again = |endpoint: &Endpoint| endpoint.lists > lists && endpoint.healthy().len() == 8;
    kubelet.has(GPU, registered_again).await?;
    let after = kubelet.messages(GPU)[lists].at - kubelet.ends(GPU)[0];
    assert!(
        after + watch.stalled() >= Duration::from_millis(200),
        "it registered after {after:?}"
    );
    Ok(())
}

/// Without healthy devices nothing shows the agent that the kubelet has not noticed the end of the one before.
#[tokio::test]
async fn a_kubelet_that_notices_the_end_of_an_agent_without_healthy_devices_late_has_all_gpus_soon() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, mut killed, _) = registered(&node).await?;
    killed.kill().await?;
    let mut killed = Agent::run_in_pod(&node, "", Image::WithoutDriver)?;
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().is_empty()
        })
        .await?;
    let noticed = Duration::from_secs(2);
    kubelet.notices_after(noticed);
    killed.kill().await?;
    let watch = Stopwatch::start();
    let _next = Agent::run(&node)?;
    sleep(noticed + Duration::from_secs(1)).await;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    let took = watch.elapsed();
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    Ok(())
}

#[tokio::test]
async fn a_resource_of_another_plugin_is_left_to_it_until_that_ends() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let other = OtherPlugin::register(&node.device_plugins(), GPU).await?;
    kubelet.has(GPU, |endpoint| endpoint.devices.len() == 1).await?;
    let agent = Agent::run(&node)?;
    agent.logs("ServedByAnother").await?;
    agent.await_ready().await?;
    assert_eq!(kubelet.endpoint(GPU).registrations, 1);
    drop(other);
    offers_all_again(&kubelet, 2).await?;
    agent.logs("no other plugin serves the resource any more").await?;
    assert_eq!(agent.logged("ServedByAnother"), 1);
    Ok(())
}

/// Up to 1.36 a kubelet can lose track of a plugin, and then misses its end.
#[tokio::test]
async fn devices_that_the_kubelet_has_kept_of_an_agent_that_is_gone_are_registered_again() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, mut killed, _) = registered(&node).await?;
    kubelet.lose_client(GPU);
    killed.kill().await?;
    let next = Agent::run(&node)?;
    next.logs("ServedByAnother").await?;
    next.logs("the kubelet has kept the devices of a plugin that is gone")
        .await?;
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().len() == 8
        })
        .await?;
    next.await_ready().await?;
    kubelet.admit("pod", "main", GPU, 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_plugin_that_takes_the_resource_over_is_not_fought() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, socket) = registered(&node).await?;
    let other = OtherPlugin::register(&node.device_plugins(), GPU).await?;
    agent.logs("ServedByAnother").await?;
    let endpoint = kubelet.endpoint(GPU);
    assert_eq!(
        (endpoint.registrations, endpoint.ids()),
        (2, vec!["another".to_owned()])
    );
    assert!(
        kubelet.ends(GPU).is_empty() && node.sockets()?.contains(&socket),
        "the end of its stream would end the other plugin's"
    );
    agent.await_ready().await?;
    drop(other);
    offers_all_again(&kubelet, 3).await?;
    agent.logs("no other plugin serves the resource any more").await?;
    assert_eq!(agent.logged("ServedByAnother"), 1);
    Ok(())
}

/// Waits until the agent has made the registration of this number, right after the end of another plugin.
async fn offers_all_again(kubelet: &FakeKubelet, registrations: usize) -> Result<()> {
    let watch = Stopwatch::start();
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == registrations && endpoint.devices.len() == 8
        })
        .await?;
    assert!(
        watch.elapsed() < Duration::from_secs(2),
        "it took {:?}",
        watch.elapsed()
    );
    Ok(())
}

/// Ids of whole GPUs are the same in NVIDIA's plugin.
#[tokio::test]
async fn a_plugin_with_the_same_ids_is_noticed_by_a_pod_that_it_serves() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, _) = registered(&node).await?;
    kubelet.admit("ours", "main", GPU, 1).await?;
    // Holders of the first 2 s count as those of an earlier agent.
    sleep(Duration::from_secs(3)).await;
    let ids = kubelet.endpoint(GPU).ids();
    let other = OtherPlugin::register_ids(&node.device_plugins(), GPU, &ids).await?;
    kubelet.admit("theirs", "main", GPU, 1).await?;
    let line = agent.logs("ServedByAnother").await?;
    assert!(line.contains("pod default/theirs holds"), "{line}");
    drop(other);
    offers_all_again(&kubelet, 3).await
}

#[tokio::test]
async fn a_plugin_that_nothing_has_shown_leaves_the_resource_to_gpunode_at_its_end() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, _) = registered(&node).await?;
    let ids = kubelet.endpoint(GPU).ids();
    let other = OtherPlugin::register_ids(&node.device_plugins(), GPU, &ids).await?;
    // The agent looks for it, and finds its own ids.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(agent.logged("ServedByAnother"), 0);
    drop(other);
    offers_all_again(&kubelet, 3).await
}

/// Up to 1.36 a list replaces the devices of the other plugin in the kubelet.
#[tokio::test]
async fn a_plugin_that_takes_the_resource_over_is_noticed_though_a_gpu_fails_at_that_moment() -> Result<()> {
    let node = Node::with_v100()?;
    let (kubelet, agent, _) = registered(&node).await?;
    let other = OtherPlugin::register(&node.device_plugins(), GPU).await?;
    node.state()?.lose(0)?;
    agent.signal(Signal::HUP)?;
    agent.logs("device is faulty").await?;
    agent.logs("ServedByAnother").await?;
    assert_eq!(kubelet.endpoint(GPU).ids(), ["another"]);
    drop(other);
    kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 3 && endpoint.healthy().len() == 7
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_registration_is_tried_again() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.refuse(3);
    let agent = Agent::run(&node)?;
    agent.logs("refused by the test").await?;
    kubelet.has(GPU, |_| true).await?;
    assert_eq!(
        agent.logged("refused by the test"),
        1,
        "a repeated error is logged once"
    );
    Ok(())
}

#[tokio::test]
async fn it_waits_for_a_kubelet_that_is_not_there_yet() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let agent = Agent::run(&node)?;
    agent.logs("kubelet.sock does not exist").await?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.has(GPU, |_| true).await?;
    Ok(())
}
