//! Broken GPUs: which they are, that nothing of them is given out, and when they are whole again.

mod events;
mod fabric;
mod probes;
mod recovery;

use anyhow::Result;
use gpunode_node_tests::{Lab, Node, until};
use gpunode_scenario::{MigGroup, Scenario, Topology};
use rustix::process::Signal;

const GPU: &str = "nvidia.com/gpu";
const PART: &str = "nvidia.com/mig-3g.40gb";
/// NVIDIA's number of a GPU timeout, which only a reset cures.
const TIMEOUT: u64 = 46;

/// Two A100 of 80 GB, of which the second is divided.
fn divided() -> Result<Node> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![1],
        instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()],
    }];
    Node::new(scenario)
}

/// A DGX-1 with a driver that tells no recovery action.
fn with_old_driver() -> Result<Node> {
    let mut scenario = Scenario::new("old", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta);
    "550.163.01".clone_into(&mut scenario.driver_version);
    let node = Node::new(scenario)?;
    node.reboot("first")?;
    node.load_module()?;
    Ok(node)
}

/// An agent that follows the events of its driver.
async fn lab(node: Node, config: &str, resource: &str, shares: usize) -> Result<Lab> {
    let lab = Lab::start(node, config)?;
    lab.kubelet
        .has(resource, |endpoint| endpoint.healthy().len() == shares)
        .await?;
    lab.agent.logs("following driver events").await?;
    Ok(lab)
}

/// Waits until exactly these are what the kubelet may not give out.
async fn broken(lab: &Lab, resource: &str, expected: &[&String]) -> Result<()> {
    let broken = |endpoint: &gpunode_node_tests::Endpoint| {
        let healthy = endpoint.healthy();
        endpoint
            .ids()
            .iter()
            .filter(|id| !healthy.contains(*id))
            .eq(expected.iter().copied())
    };
    lab.kubelet.has(resource, broken).await?;
    Ok(())
}

/// Makes the agent probe the GPUs, and waits for the probe.
async fn probe(lab: &Lab) -> Result<()> {
    let before = lab.agent.logged("all GPUs probed");
    lab.agent.signal(Signal::HUP)?;
    until("all GPUs probed", || {
        (lab.agent.logged("all GPUs probed") > before).then_some(())
    })
    .await
}
