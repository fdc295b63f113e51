//! Nodes whose container runtime keeps the GPUs from pods.

use crate::input::{context::NodeContext, policies::Policy};
use gpunode_config::load;
use gpunode_gpu::{InjectionWays, injection};

/// Returns the reason why pods get no GPU on a node that a policy governs, with what to do; none if they get
/// them, or if nobody knows: the node is down, or its agent did not report the runtime.
pub fn gpu_refusal(governing: &Policy, context: NodeContext<'_>) -> Option<String> {
    let status = context.status().filter(|_| context.node.ready)?;
    let runtime = status.runtime.as_ref().filter(|_| !status.gpus.is_empty())?;
    let desired = governing.device_plugin.as_ref();
    let desired_hash = desired.and_then(|plugin| Some(&plugin.document.as_ref()?.hash));
    // The node keeps another configuration while it waits for its turn, after a rollout stopped, and while a policy is Paused.
    let kept = context
        .configuration()
        .filter(|config| Some(&config.hash) != desired_hash);
    let kept = kept.and_then(|config| load(&config.document).ok());
    let ways = kept
        .as_ref()
        .map(InjectionWays::of)
        .or(desired.map(|plugin| plugin.ways))?;
    injection(ways, Some(runtime)).refusal(ways, runtime)
}
