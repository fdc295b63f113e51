//! Effects of a changed configuration file; a bad one has none.

use anyhow::Result;
use gpunode_node_tests::{Agent, Lab, Node, until};

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";

fn shared(indices: &str, replicas: u32) -> String {
    format!(
        "resources:\n- {{name: nvidia.com/gpu, devices: {{indices: [0]}}}}\n- {{name: nvidia.com/gpu.shared, devices: {{indices: {indices}}}, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}\n"
    )
}

#[tokio::test]
async fn a_new_configuration_changes_the_lists_and_keeps_every_registration() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, &shared("[1, 2]", 2))?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 1).await?;
    lab.kubelet.has(SHARED, |endpoint| endpoint.devices.len() == 4).await?;

    lab.apply(&shared("[1, 2, 3]", 3))?;
    // GPUs 1 and 2 have their old ids withdrawn before they have new ones; GPU 3 has them at once.
    let after = lab.kubelet.has(SHARED, |endpoint| endpoint.devices.len() == 9).await?;
    assert_eq!(after.registrations, 1);
    let untouched = lab.kubelet.endpoint(GPU);
    assert_eq!((untouched.registrations, untouched.lists), (1, 1));
    Ok(())
}

#[tokio::test]
async fn resources_come_and_go_with_the_configuration() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, &shared("[1]", 2))?;
    lab.kubelet.has(GPU, |_| true).await?;
    lab.kubelet.has(SHARED, |_| true).await?;

    lab.apply("")?;
    let whole = lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 4).await?;
    assert_eq!(whole.registrations, 1);
    until("the shared resource is gone", || {
        (lab.kubelet.connected() == [GPU]).then_some(())
    })
    .await?;
    until("its socket is gone", || {
        (lab.node.sockets().ok()? == [whole.socket.clone()]).then_some(())
    })
    .await?;

    lab.apply(&shared("[1]", 2))?;
    lab.kubelet.has(SHARED, |endpoint| endpoint.registrations == 2).await?;
    Ok(())
}

#[tokio::test]
async fn a_bad_configuration_leaves_the_old_one_in_force() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    let before = lab.kubelet.has(GPU, |_| true).await?;

    lab.apply("resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replica: 4}}]")?;
    let line = lab.agent.logs("configuration rejected").await?;
    assert!(
        line.contains("resources[0].sharing.replica: unknown field; did you mean `replicas`?"),
        "{line}"
    );
    lab.apply("resources: [{name: nvidia.com/gpu, devices: {indices: [99]}}]")?;
    lab.agent.logs("99 is not between 0 and 63").await?;
    let after = lab.kubelet.endpoint(GPU);
    assert_eq!(
        (after.lists, after.ids(), after.connected),
        (before.lists, before.ids(), true)
    );

    lab.apply("passDeviceSpecs: true")?;
    until("the good one is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    let answer = lab.kubelet.allocate(GPU, &[&lab.node.uuids()?[0]]).await?;
    assert!(!answer.devices.is_empty());
    assert_eq!(lab.kubelet.endpoint(GPU).registrations, 1);
    Ok(())
}

#[tokio::test]
async fn an_agent_does_not_start_with_a_bad_configuration_file() -> Result<()> {
    let node = Node::with_t4()?;
    node.configure("colour: red")?;
    let mut agent = Agent::run(&node)?;
    assert_eq!(agent.end().await?.code(), Some(1));
    agent
        .logs("config.yaml: read configuration: colour: unknown field")
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_file_of_nvidias_plugin_is_taken_as_it_is_and_followed() -> Result<()> {
    let file = |replicas: u32| {
        format!(
            "version: v1\nflags: {{failOnInitError: true}}\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: \
             {replicas}}}]}}}}\n"
        )
    };
    let lab = Lab::start(Node::with_t4()?, &file(2))?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    let uuid = lab.node.uuids()?.remove(0);
    assert!(lab.kubelet.endpoint(GPU).healthy().contains(&format!("{uuid}::1")));
    let line = lab.agent.logs("not as NVIDIA's device plugin has it").await?;
    assert!(line.contains("flags.failOnInitError"), "{line}");
    lab.apply(&file(3))?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 12).await?;
    Ok(())
}
