//! GPUs that have not joined their NVLink fabric.

use super::{GPU, broken, lab, probe};
use anyhow::Result;
use gpunode_node_tests::Node;
use gpunode_scenario::{FabricState, MigGroup, Scenario, Topology};
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
        let mut waiting = [&uuids[0], &uuids[1], &uuids[2]];
        waiting.sort();
        broken(&lab, GPU, &waiting).await?;
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
    lab(node(FabricState::InProgress)?, config, GPU, 4).await?;
    Ok(())
}
