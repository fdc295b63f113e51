//! Devices that the agent advertises and allocates.

use anyhow::Result;
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, until};
use gpunode_scenario::{AdditionalBoards, ReturnCode, Scenario, Topology};
use tonic::Code;

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";

#[tokio::test]
async fn whole_gpus_are_offered_by_uuid_with_their_numa_node() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "{}")?;

    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(endpoint.ids(), lab.node.uuids()?);
    let numa: Vec<i64> = endpoint
        .devices
        .iter()
        .flat_map(|device| &device.topology)
        .map(|t| t.nodes[0].id)
        .collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1]);
    assert!(endpoint.devices.iter().all(|device| device.health == "Healthy"));
    assert_eq!(lab.kubelet.connected(), [GPU]);

    lab.agent.logs("registered with the kubelet").await?;
    lab.agent.await_ready().await?;
    Ok(())
}

#[tokio::test]
async fn a_container_sees_the_gpus_it_was_given_in_the_order_of_their_index() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "deviceListStrategy: [Envvar]")?;
    lab.kubelet.has(GPU, |_| true).await?;

    let uuids = lab.node.uuids()?;
    let answer = lab.kubelet.allocate(GPU, &[&uuids[5], &uuids[2]]).await?;
    assert_eq!(
        answer.envs["NVIDIA_VISIBLE_DEVICES"],
        format!("{},{}", uuids[2], uuids[5])
    );
    assert_eq!(answer.envs.len(), 1);
    assert!(answer.devices.is_empty() && answer.mounts.is_empty() && answer.cdi_devices.is_empty());

    assert_eq!(
        lab.kubelet
            .preferred(GPU, &[uuids[7].clone(), uuids[3].clone()], 1)
            .await?,
        [uuids[3].clone()]
    );
    lab.kubelet.pre_start(GPU, &uuids[0]).await?;
    Ok(())
}

#[tokio::test]
async fn another_strategy_applies_to_later_containers_without_another_list() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    let uuids = lab.node.uuids()?;
    let answer = lab.kubelet.allocate(GPU, &[&uuids[0]]).await?;
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], uuids[0]);
    let before = lab.kubelet.endpoint(GPU);

    lab.apply("deviceListStrategy: [VolumeMounts, CdiCri]")?;
    lab.agent
        .logs("VolumeMounts beside CdiCri or CdiAnnotations injects devices twice")
        .await?;
    lab.apply("deviceIdStrategy: Index")?;
    lab.agent
        .logs("deviceIdStrategy: Index can give a container another GPU")
        .await?;
    let answer = lab.kubelet.allocate(GPU, &[&uuids[1]]).await?;
    assert_eq!(
        answer.envs["NVIDIA_VISIBLE_DEVICES"], uuids[1],
        "the first one is in force"
    );

    lab.apply("deviceListStrategy: [VolumeMounts]\ngds: true")?;
    until("the mounts are in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    let answer = lab.kubelet.allocate(GPU, &[&uuids[2]]).await?;
    let mounts: Vec<(&str, &str)> = answer
        .mounts
        .iter()
        .map(|mount| (mount.host_path.as_str(), mount.container_path.as_str()))
        .collect();
    let path = format!("/var/run/nvidia-container-devices/{}", uuids[2]);
    assert_eq!(mounts, [("/dev/null", path.as_str())]);
    assert_eq!(
        answer.envs["NVIDIA_VISIBLE_DEVICES"],
        "/var/run/nvidia-container-devices"
    );
    assert_eq!(answer.envs["NVIDIA_GDS"], "enabled");
    assert!(answer.cdi_devices.is_empty());
    let after = lab.kubelet.endpoint(GPU);
    assert_eq!(
        (after.ids(), after.healthy().len(), after.registrations),
        (before.ids(), 4, before.registrations)
    );
    Ok(())
}

#[tokio::test]
async fn device_nodes_are_passed_where_the_configuration_asks_for_them() -> Result<()> {
    let lab = Lab::start(
        Node::with_t4()?,
        "passDeviceSpecs: true\nresources: [{name: nvidia.com/gpu.shared, sharing: {strategy: TimeSlicing, replicas: 2}}]",
    )?;
    lab.kubelet.has(SHARED, |_| true).await?;

    let uuid = &lab.node.uuids()?[3];
    let answer = lab
        .kubelet
        .allocate(SHARED, &[&format!("{uuid}::0"), &format!("{uuid}::1")])
        .await?;
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], *uuid);
    let nodes: Vec<&str> = answer.devices.iter().map(|device| device.host_path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"]);
    assert!(answer.devices.iter().all(|device| device.permissions == "rw"));
    Ok(())
}

#[tokio::test]
async fn time_slicing_offers_each_gpu_several_times_and_spreads_containers() -> Result<()> {
    let lab = Lab::start(
        Node::with_t4()?,
        "resources: [{name: nvidia.com/gpu.shared, sharing: {strategy: TimeSlicing, replicas: 4, failRequestsGreaterThanOne: true}}]",
    )?;

    let endpoint = lab.kubelet.has(SHARED, |_| true).await?;
    let mut free = endpoint.ids();
    assert_eq!(free.len(), 16);
    let mut given = Vec::new();
    for _ in 0..16 {
        let chosen = lab.kubelet.preferred(SHARED, &free, 1).await?.remove(0);
        let answer = lab.kubelet.allocate(SHARED, &[&chosen]).await?;
        given.push(answer.envs["NVIDIA_VISIBLE_DEVICES"].clone());
        free.retain(|id| *id != chosen);
    }
    for (round, four) in given.chunks(4).enumerate() {
        assert_eq!(four, lab.node.uuids()?, "round {round}");
    }

    let two = lab
        .kubelet
        .allocate(SHARED, &[&endpoint.ids()[0], &endpoint.ids()[1]])
        .await
        .unwrap_err();
    assert_eq!(two.code(), Code::InvalidArgument);
    assert!(two.message().contains("requests 2 replicas"), "{}", two.message());
    Ok(())
}

#[tokio::test]
async fn an_unknown_device_is_refused_by_name() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    lab.kubelet.has(GPU, |_| true).await?;

    let uuids = lab.node.uuids()?;
    let refused = lab
        .kubelet
        .allocate(GPU, &[&uuids[0], "GPU-unknown"])
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused
            .message()
            .contains("the current device list does not have GPU-unknown"),
        "{}",
        refused.message()
    );
    assert_eq!(
        lab.kubelet.allocate(GPU, &[]).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    // Advice never fails.
    assert_eq!(
        lab.kubelet.preferred(GPU, &["GPU-unknown".to_owned()], 3).await?,
        ["GPU-unknown"]
    );
    Ok(())
}

#[tokio::test]
async fn each_resource_has_a_server_of_its_own() -> Result<()> {
    let mut scenario = Scenario::new("mixed", "Tesla V100-SXM2-32GB", 2, Topology::Pcie);
    scenario.additional = vec![AdditionalBoards {
        board: "Tesla T4".to_owned(),
        count: 2,
        topology: Topology::Pcie,
    }];
    let node = Node::new(scenario)?;
    node.configure(
        "resources:\n- {name: nvidia.com/gpu.shared, devices: {products: ['Tesla-T4']}, sharing: {strategy: TimeSlicing, replicas: 2}}\n- {name: nvidia.com/gpu}\n",
    )?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let _agent = Agent::run(&node)?;

    let whole = kubelet.has(GPU, |_| true).await?;
    let shared = kubelet.has(SHARED, |_| true).await?;
    let uuids = node.uuids()?;
    assert_eq!(whole.ids(), uuids[..2]);
    assert_eq!(shared.ids().len(), 4);
    assert_ne!(whole.socket, shared.socket);
    let foreign = kubelet.allocate(GPU, &[&uuids[2]]).await.unwrap_err();
    assert_eq!(foreign.code(), Code::InvalidArgument);
    Ok(())
}

#[tokio::test]
async fn a_gpu_that_fails_does_not_keep_the_others_back() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    node.state()?.lose(1)?;
    node.state()?.fail(2, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(&node)?;

    let endpoint = kubelet.has(GPU, |_| true).await?;
    let uuids = node.uuids()?;
    assert_eq!(endpoint.ids(), [&uuids[..1], &uuids[3..]].concat());
    agent.logs("read GPU 1: ").await?;
    agent.logs("read the memory of GPU 2: ").await?;

    // They come back, and the others keep their stream.
    node.state()?.restore(1)?;
    node.state()?.clear_failure(2, "nvmlDeviceGetMemoryInfo")?;
    let endpoint = kubelet.has(GPU, |endpoint| endpoint.devices.len() == 8).await?;
    assert_eq!(endpoint.ids(), uuids);
    assert_eq!(endpoint.registrations, 1);
    Ok(())
}
