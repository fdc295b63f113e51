//! GPUs that have not joined their NVLink fabric.

use super::{GPU, broken, lab, probe};
use anyhow::Result;
use gpunode_node_tests::Node;
use gpunode_scenario::{FabricState, MigGroup, ReturnCode, Scenario, Topology};
use rustix::process::Signal;

/// Four H200 on NVSwitches whose registration is in this state. The last one is divided.
fn node(state: FabricState) -> Result<Node> {
    let mut scenario = Scenario::new("fabric", "NVIDIA H200", 4, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![3],
        instances: vec!["1g.18gb".to_owned()],
    }];
    let node = Node::new(scenario)?;
    set(&node, state)?;
    Ok(node)
}

fn set(node: &Node, state: FabricState) -> Result<()> {
    for gpu in 0..4 {
        node.state()?.update_gpu(gpu, |gpu| gpu.fabric = state)?;
    }
    Ok(())
}

#[tokio::test]
async fn gpus_are_given_out_once_they_have_joined_their_fabric() -> Result<()> {
    for state in [FabricState::NotStarted, FabricState::InProgress, FabricState::Failed] {
        let lab = lab(node(state)?, "", GPU, 1).await?;
        let uuids = lab.node.uuids()?;
        broken(&lab, GPU, &[&uuids[0], &uuids[1], &uuids[2]]).await?;
        let line = lab.agent.logs("FabricNotReady").await?;
        assert!(line.contains("NoNewWork") && line.contains("error 802"), "{line}");
        // Links that are down before are no fault, and count once they are up.
        set(&lab.node, FabricState::Completed)?;
        lab.agent.signal(Signal::HUP)?;
        broken(&lab, GPU, &[]).await?;
        for _ in 0..2 {
            probe(&lab).await?;
        }
        assert_eq!(lab.agent.logged("an NVLink is down"), 0);
        lab.node.state()?.update_gpu(0, |gpu| gpu.links_down = vec![0])?;
        lab.agent.signal(Signal::HUP)?;
        broken(&lab, GPU, &[&uuids[0]]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_fabric_that_the_policy_ignores_withholds_nothing() -> Result<()> {
    let config = "health: {ignore: [FabricNotReady]}";
    let lab = lab(node(FabricState::InProgress)?, config, GPU, 4).await?;
    for _ in 0..2 {
        probe(&lab).await?;
    }
    broken(&lab, GPU, &[]).await?;
    assert_eq!(lab.agent.logged("FabricNotReady"), 0);
    Ok(())
}

/// Nobody but a probe sees it: the kernel does not, and the driver reports no event.
#[tokio::test]
async fn gpus_that_leave_their_fabric_are_not_given_out_until_they_have_joined_again() -> Result<()> {
    let lab = lab(node(FabricState::Completed)?, "", GPU, 4).await?;
    let uuids = lab.node.uuids()?;
    set(&lab.node, FabricState::NotStarted)?;
    broken(&lab, GPU, &[&uuids[0], &uuids[1], &uuids[2]]).await?;
    set(&lab.node, FabricState::Completed)?;
    broken(&lab, GPU, &[]).await?;
    assert_eq!(lab.agent.logged("an NVLink is down"), 0);
    Ok(())
}

/// The answer of a GPU whose Fabric Manager starts again, for example.
#[tokio::test]
async fn a_fabric_that_cannot_be_asked_for_changes_nothing() -> Result<()> {
    const CALL: &str = "nvmlDeviceGetGpuFabricInfo";
    let lab = lab(node(FabricState::InProgress)?, "", GPU, 1).await?;
    let state = lab.node.state()?;
    state.fail(0, CALL, ReturnCode::Unknown)?;
    state.update_gpu(1, |gpu| gpu.fabric = FabricState::Completed)?;
    // What comes with the same reading of the hardware.
    let uuids = lab.node.uuids()?;
    let waiting = [&uuids[0], &uuids[2]];
    broken(&lab, GPU, &waiting).await?;
    for _ in 0..2 {
        probe(&lab).await?;
    }
    broken(&lab, GPU, &waiting).await?;
    assert_eq!(lab.agent.logged("NotAnswering"), 0);
    state.clear_failure(0, CALL)?;
    set(&lab.node, FabricState::Completed)?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[]).await
}
