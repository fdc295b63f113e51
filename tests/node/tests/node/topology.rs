//! GPUs that the agent prefers, by their links.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Admitted, Agent, FakeKubelet, Lab, Node, until};
use gpunode_scenario::{ReturnCode, Scenario, Topology};
use std::fs;

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]";

/// Indices of the GPUs that ids are of, ordered.
fn gpus(node: &Node, ids: &[String]) -> Result<Vec<usize>> {
    let uuids = node.uuids()?;
    let index = |id: &String| {
        uuids
            .iter()
            .position(|uuid| id.starts_with(uuid.as_str()))
            .context("a GPU of the node")
    };
    let mut gpus: Vec<usize> = ids.iter().map(index).collect::<Result<_>>()?;
    gpus.sort_unstable();
    Ok(gpus)
}

async fn admit(lab: &Lab, pod: &str, count: usize) -> Result<Vec<usize>> {
    let admitted: Admitted = lab.kubelet.admit(pod, "main", GPU, count).await?;
    gpus(&lab.node, &admitted.ids)
}

#[tokio::test]
async fn containers_get_gpus_that_are_linked_and_leave_such_to_others() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 8).await?;
    assert_eq!(admit(&lab, "a", 2).await?, [2, 3], "two NVLinks and one PCIe switch");
    assert_eq!(
        admit(&lab, "b", 4).await?,
        [4, 5, 6, 7],
        "the other half of the cube mesh"
    );
    assert_eq!(admit(&lab, "c", 2).await?, [0, 1]);

    let switched = Node::new(Scenario::new(
        "switched",
        "NVIDIA A100-SXM4-40GB",
        8,
        Topology::NvSwitch,
    ))?;
    let lab = Lab::start(switched, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 8).await?;
    assert_eq!(admit(&lab, "a", 1).await?, [0]);
    assert_eq!(admit(&lab, "b", 4).await?, [4, 5, 6, 7], "one socket");
    assert_eq!(admit(&lab, "c", 1).await?, [1], "its switch has no pair any more");
    assert_eq!(admit(&lab, "d", 2).await?, [2, 3]);
    Ok(())
}

#[tokio::test]
async fn links_that_cannot_be_read_lower_a_score_and_fail_nobody() -> Result<()> {
    let node = Node::with_v100()?;
    node.state()?
        .fail(2, "nvmlDeviceGetTopologyCommonAncestor", ReturnCode::Unknown)?;
    // What health does not ask for.
    node.state()?
        .fail(2, "nvmlDeviceGetNvLinkRemotePciInfo", ReturnCode::Unknown)?;
    let lab = Lab::start(node, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 8).await?;
    assert_eq!(admit(&lab, "a", 2).await?, [6, 7]);
    assert_eq!(admit(&lab, "b", 3).await?, [0, 1, 3]);
    assert_eq!(admit(&lab, "c", 3).await?, [2, 4, 5]);
    Ok(())
}

#[tokio::test]
async fn links_are_read_once_and_not_for_each_container() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 8).await?;
    for gpu in 0..8 {
        lab.node
            .state()?
            .fail(gpu, "nvmlDeviceGetTopologyCommonAncestor", ReturnCode::Unknown)?;
        lab.node
            .state()?
            .fail(gpu, "nvmlDeviceGetNvLinkRemotePciInfo", ReturnCode::Unknown)?;
    }
    assert_eq!(admit(&lab, "a", 2).await?, [2, 3]);
    fs::remove_file(lab.node.library())?;
    assert_eq!(admit(&lab, "b", 2).await?, [6, 7], "without any driver");
    Ok(())
}

#[tokio::test]
async fn another_allocation_holds_for_the_next_container_and_needs_no_new_list() -> Result<()> {
    let packed = SHARED.replace("gpu,", "gpu, allocation: Packed,");
    let lab = Lab::start(Node::with_t4()?, &packed)?;
    let before = lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 16).await?;
    assert_eq!(admit(&lab, "a", 2).await?, [0, 0], "one GPU");
    assert_eq!(admit(&lab, "b", 1).await?, [0], "the fullest");
    lab.apply(SHARED)?;
    until("the change is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    assert_eq!(
        admit(&lab, "c", 2).await?,
        [2, 3],
        "different GPUs of one NUMA node, of which least is held"
    );
    assert_eq!(admit(&lab, "d", 1).await?, [1], "the least loaded");
    let after = lab.kubelet.endpoint(GPU);
    assert_eq!(
        (after.lists, after.registrations, after.ids()),
        (before.lists, 1, before.ids())
    );
    Ok(())
}

#[tokio::test]
async fn a_slot_of_which_the_machine_does_not_say_the_numa_node_has_none() -> Result<()> {
    let node = Node::with_t4()?;
    node.configure("")?;
    let functions = node.host_root().join("sys/bus/pci/devices");
    let mut slots: Vec<_> = fs::read_dir(functions)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    slots.sort();
    fs::write(slots.first().context("a slot")?.join("numa_node"), "-1\n")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let _agent = Agent::run(&node)?;
    let endpoint = kubelet.has(GPU, |_| true).await?;
    let nodes = |at: usize| {
        endpoint
            .devices
            .get(at)
            .and_then(|device| device.topology.as_ref())
            .map(|of| of.nodes[0].id)
    };
    assert_eq!(
        [nodes(0), nodes(1), nodes(2), nodes(3)],
        [None, Some(0), Some(1), Some(1)]
    );
    Ok(())
}
