//! A node with its kubelet and its agent.

use crate::{Agent, ApiServer, FakeKubelet, Node};
use anyhow::Result;
use gpunode_scenario::{AdditionalBoards, Scenario, Topology};
use rustix::process::Signal;

/// An agent at work on a node.
#[derive(Debug)]
pub struct Lab {
    /// First, so that it ends first.
    pub agent: Agent,
    /// The kubelet's double.
    pub kubelet: FakeKubelet,
    /// The node.
    pub node: Node,
}

impl Lab {
    /// Starts kubelet and agent on a node.
    pub fn start(node: Node, config: &str) -> Result<Self> {
        node.configure(config)?;
        let kubelet = FakeKubelet::start(node.device_plugins())?;
        let agent = Agent::run(&node)?;
        Ok(Self { agent, kubelet, node })
    }

    /// The same with an agent that gets its configuration from the operator.
    pub fn start_beside(api_server: &ApiServer, node: Node, config: &str) -> Result<Self> {
        api_server.configure(config);
        let kubelet = FakeKubelet::start(node.device_plugins())?;
        let agent = Agent::run_beside(api_server, &node)?;
        Ok(Self { agent, kubelet, node })
    }

    /// Puts another configuration in force.
    pub fn apply(&self, config: &str) -> Result<()> {
        self.node.configure(config)?;
        self.agent.signal(Signal::HUP)
    }

    /// Runs a pod with one device of a resource, on which a process with this id works. Returns the UUID of the device.
    pub async fn run_pod(&self, pod: &str, resource: &str, pid: u32) -> Result<String> {
        let id = self.kubelet.admit(pod, "main", resource, 1).await?.ids.remove(0);
        let uuid = id.split_once("::").map_or(id.as_str(), |(uuid, _)| uuid).to_owned();
        self.node.state()?.start_process(&uuid, pid)?;
        Ok(uuid)
    }

    /// Ends the process of a pod and the pod.
    pub fn end_pod(&self, pod: &str, pid: u32) -> Result<()> {
        self.node.state()?.end_process(pid)?;
        self.kubelet.release(pod);
        Ok(())
    }

    /// Kills the agent so that it can tidy nothing up, and starts another.
    pub async fn replace_agent(&mut self) -> Result<()> {
        self.agent.kill().await?;
        self.agent = Agent::run(&self.node)?;
        Ok(())
    }
}

/// A node with a board of each product, by index.
pub fn node_of(boards: &[&str]) -> Result<Node> {
    let (first, others) = boards.split_first().unwrap_or((&"Tesla T4", &[]));
    let mut scenario = Scenario::new("boards", *first, u32::from(!boards.is_empty()), Topology::Pcie);
    scenario.additional = others
        .iter()
        .map(|board| AdditionalBoards {
            board: (*board).to_owned(),
            count: 1,
            topology: Topology::Pcie,
        })
        .collect();
    Node::new(scenario)
}
