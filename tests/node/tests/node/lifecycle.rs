//! Start, stop and hand-over of the agent.

use anyhow::Result;
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, until};
use gpunode_scenario::{ReturnCode, Scenario, Topology};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const GPU: &str = "nvidia.com/gpu";

fn v100() -> Scenario {
    Scenario::new("v100", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta)
}

#[tokio::test]
async fn it_stops_within_a_second_and_leaves_no_socket() -> Result<()> {
    let mut lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |_| true).await?;

    lab.agent.stops_at_once().await?;
    assert!(lab.node.sockets()?.is_empty());
    until("the kubelet sees the stream end", || {
        (!lab.kubelet.endpoint(GPU).connected).then_some(())
    })
    .await
}

#[tokio::test]
async fn it_stops_within_a_second_while_nothing_answers() -> Result<()> {
    let node = Node::without_driver(v100())?;
    node.configure("")?;
    let mut agent = Agent::run(&node)?;
    agent.logs("hardware has a problem").await?;
    agent.stops_at_once().await?;
    Ok(())
}

#[tokio::test]
async fn after_a_kill_the_next_agent_removes_the_stale_socket() -> Result<()> {
    let mut lab = Lab::start(Node::with_v100()?, "")?;
    let stale = lab.kubelet.has(GPU, |_| true).await?.socket;
    lab.agent.kill().await?;
    assert_eq!(lab.node.sockets()?, std::slice::from_ref(&stale));

    let _agent = Agent::run(&lab.node)?;
    let endpoint = lab.kubelet.has(GPU, |endpoint| endpoint.registrations == 2).await?;
    assert_ne!(endpoint.socket, stale);
    assert_eq!(lab.node.sockets()?, [endpoint.socket]);
    Ok(())
}

#[tokio::test]
async fn only_one_agent_of_a_node_is_registered() -> Result<()> {
    let mut lab = Lab::start(Node::with_v100()?, "")?;
    let socket = lab.kubelet.has(GPU, |_| true).await?.socket;

    let second = Agent::run(&lab.node)?;
    second.logs("WaitingForPredecessor").await?;
    assert!(
        second
            .readyz()
            .await?
            .contains("another agent of this node is registered")
    );
    second.logs("hardware found").await?;
    assert_eq!(lab.kubelet.endpoint(GPU).registrations, 1);
    assert_eq!(lab.node.sockets()?, [socket]);

    lab.agent.stop().await?;
    lab.kubelet.has(GPU, |endpoint| endpoint.registrations == 2).await?;
    until("the second is ready", || {
        (second.logged("registered with the kubelet") == 1).then_some(())
    })
    .await?;
    second.await_ready().await?;
    Ok(())
}

#[tokio::test]
async fn a_driver_that_appears_later_is_found() -> Result<()> {
    let lab = Lab::start(Node::without_driver(v100())?, "")?;
    let line = lab.agent.logs("hardware has a problem").await?;
    assert!(
        line.contains("find libnvidia-ml.so.1 below") && line.contains("install the NVIDIA driver"),
        "{line}"
    );
    lab.agent.await_ready().await?;

    lab.node.install_driver()?;
    assert_eq!(lab.kubelet.has(GPU, |_| true).await?.devices.len(), 8);
    Ok(())
}

#[tokio::test]
async fn a_half_written_driver_takes_nothing_away() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |_| true).await?;

    for length in [5000, 0] {
        lab.node.truncate_driver(length)?;
        lab.agent.signal(Signal::HUP)?;
        // The probes of the GPUs find it too, and may come first.
        let problem = format!("the library is incomplete ({length} of ");
        let is_told = |line: &String| line.contains("hardware has a problem") && line.contains(&problem);
        until(&problem, || lab.agent.log().iter().any(is_told).then_some(())).await?;
    }
    lab.node.install_driver()?;
    lab.agent.signal(Signal::HUP)?;
    until("the driver answers again", || {
        (lab.agent.logged("hardware found") == 2).then_some(())
    })
    .await?;
    let endpoint = lab.kubelet.endpoint(GPU);
    assert_eq!(
        (
            endpoint.devices.len(),
            endpoint.registrations,
            endpoint.lists,
            endpoint.connected
        ),
        (8, 1, 1, true)
    );
    Ok(())
}

#[tokio::test]
async fn fail_on_init_error_ends_an_agent_without_driver() -> Result<()> {
    let node = Node::without_driver(v100())?;
    node.configure("failOnInitError: true")?;
    let mut agent = Agent::run(&node)?;
    assert_eq!(agent.end().await?.code(), Some(1));
    agent.logs("failOnInitError is on").await?;
    Ok(())
}

#[tokio::test]
async fn fail_on_init_error_does_not_end_an_agent_with_one_bad_gpu() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("failOnInitError: true")?;
    node.state()?.fail(2, "nvmlDeviceGetUUID", ReturnCode::Unknown)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(&node)?;
    assert_eq!(kubelet.has(GPU, |_| true).await?.devices.len(), 7);
    agent.logs("read GPU 2: ").await?;
    Ok(())
}

#[tokio::test]
async fn a_driver_that_takes_seconds_for_each_gpu_has_not_failed() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("failOnInitError: true")?;
    for gpu in 0..8 {
        // More than 30 s for all of them.
        node.state()?.update_gpu(gpu, |state| state.init_ms = 4500)?;
    }
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(&node)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    assert_eq!(agent.logged("hardware has a problem"), 0);
    Ok(())
}

#[tokio::test]
async fn an_agent_that_starts_again_has_held_devices_healthy_before_the_driver_answers() -> Result<()> {
    let mut lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    let held = lab.kubelet.admit("pod", "main", GPU, 1).await?.ids;
    lab.kubelet.is_listed().await?;
    for gpu in 0..8 {
        lab.node.state()?.update_gpu(gpu, |state| state.init_ms = 1000)?;
    }
    lab.agent.kill().await?;
    let before = lab.kubelet.messages(GPU).len();
    lab.agent = Agent::run(&lab.node)?;
    lab.kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().len() == 8
        })
        .await?;
    let messages = lab.kubelet.messages(GPU);
    let devices = &messages[before].devices;
    let healthy = devices.iter().filter(|device| device.health == "Healthy");
    let healthy: Vec<_> = healthy.map(|device| device.id.clone()).collect();
    assert_eq!((healthy, devices.len()), (held.into_iter().collect(), 8));
    Ok(())
}

#[tokio::test]
async fn a_node_without_gpu_needs_no_driver() -> Result<()> {
    let node = Node::without_driver(Scenario::new("cpu", "Tesla T4", 0, Topology::Pcie))?;
    node.configure("failOnInitError: true")?;
    let agent = Agent::run(&node)?;
    agent.logs("hardware found").await?;
    until("it is ready", || {
        (agent.logged("configuration in force") == 1).then_some(())
    })
    .await?;
    agent.await_ready().await?;
    Ok(())
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_is_logged_once() -> Result<()> {
    let node = Node::with_v100()?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run_saved(&node)?;
    kubelet.has(GPU, |_| true).await?;
    agent.logs("starting with the saved one").await?;
    assert_eq!(
        agent.logged("client error (Connect)"),
        1,
        "though it is tried again and again"
    );
    Ok(())
}

#[tokio::test]
async fn discovery_on_a_node_without_gpu_needs_no_api_server() -> Result<()> {
    let node = Node::without_driver(Scenario::new("cpu", "Tesla T4", 0, Topology::Pcie))?;
    let mut agent = Agent::discover(&node)?;
    agent.logs("hardware found").await?;
    agent.await_ready().await?;
    agent.stops_at_once().await?;
    Ok(())
}

#[tokio::test]
async fn without_a_node_name_or_a_file_the_agent_says_what_it_needs() -> Result<()> {
    let node = Node::with_t4()?;
    let mut agent = Agent::run_without_name(&node)?;
    assert_eq!(agent.end().await?.code(), Some(2));
    agent.logs("--node-name (or NODE_NAME) is required").await?;
    Ok(())
}

/// An agent with a saved configuration; what NVML itself takes is in the time of the start.
#[tokio::test]
#[ignore = "a measurement: make bench"]
async fn measure_start_and_an_idle_minute() -> Result<()> {
    let node = Node::with_v100()?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let mut starts = Vec::new();
    for round in 1..=10 {
        let start = Instant::now();
        let mut agent = Agent::run_saved(&node)?;
        kubelet.has(GPU, |endpoint| endpoint.registrations == round).await?;
        starts.push(start.elapsed());
        if round == 10 {
            agent.logs("registered with the kubelet").await?;
            let before = agent.processor_time()?;
            tokio::time::sleep(Duration::from_mins(1)).await;
            let share = agent.processor_time()?.saturating_sub(before).as_secs_f64() / 60.0;
            println!("figure: idle-cpu | {:.3} | %", share * 100.0);
            let kib = u32::try_from(agent.resident_kib()?)?;
            println!("figure: agent-rss-no-api | {:.1} | MiB", f64::from(kib) / 1024.0);
        }
        agent.stop().await?;
    }
    starts.sort();
    println!("starts: {starts:?}");
    println!(
        "figure: agent-start | {:.1} | ms",
        starts[starts.len() / 2].as_secs_f64() * 1000.0
    );
    Ok(())
}
