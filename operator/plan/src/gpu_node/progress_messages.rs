//! Messages about an agent that does not put its configuration in force. Each names the next thing to look at.

use crate::input::mig_manager::{MIG_MANAGER_DEPLOYED, MIG_MANAGER_STATE};
use gpunode_crds::{MigPhase, named, plural};
use jiff::{SignedDuration, Timestamp};

/// Maximum number of fields that a message names.
const MAX_FIELDS: usize = 4;
/// Maximum number of pods that a message names.
const MAX_PODS: usize = 5;

/// The node is down.
pub const NODE_NOT_READY: &str = "the node is not Ready; see the kubelet on it";
/// A label asks for the release of the GPUs.
pub const RELEASED: &str = "the agents released the GPUs, as a label of the node requests";
/// The agent has no condition Ready.
pub const NO_READY_CONDITION: &str = "the agent does not report the condition Ready";
/// The agent has another configuration in force.
pub const OTHER_CONFIGURATION: &str = "the agent reports another configuration than it was given; see its log";
/// Only a discovery agent reports, or none.
pub const NO_DEVICE_PLUGIN: &str = "no agent with the device plugin reports; see its pod";
/// The policy's configuration is invalid for a reason nobody recorded.
pub const INVALID_CONFIGURATION: &str = "the configuration is invalid";

/// The agent has not finished a change of MIG, and reports no GPU that it lacks.
const CHANGE_NOT_FINISHED: &str = "the agent has not finished the approved change of MIG; see its log";

/// NVIDIA's mig-manager changes MIG on the node.
pub fn mig_manager_is_there() -> String {
    format!(
        "NVIDIA's mig-manager changes MIG on the node, as label {MIG_MANAGER_STATE} says, and the policy has mig.layout; the node \
         keeps its configuration. Set label {MIG_MANAGER_DEPLOYED}=false with the GPU operator; without it, remove mig-manager, \
         then the label {MIG_MANAGER_STATE}"
    )
}

/// A GPU, and `more` others, cannot get their layout.
pub fn gpus_have_problem(index: u32, problem: &str, more: usize) -> String {
    let more = match more {
        0 => String::new(),
        more => format!("; so with {}", plural(more, "more GPU", "more GPUs")),
    };
    format!("GPU {index}: {problem}{more}")
}

/// GPUs, by index, that a change has not brought to their layout.
pub fn gpus_have_phase(gpus: &[(u32, MigPhase)]) -> String {
    let texts: Vec<String> = gpus
        .iter()
        .map(|(index, phase)| format!("GPU {index} {}", phase.as_str()))
        .collect();
    if texts.is_empty() {
        return CHANGE_NOT_FINISHED.to_owned();
    }
    format!("MIG: {}", named(&texts, MAX_FIELDS))
}

/// The agent does not read configurations of this version.
pub fn unreadable_version(read: &[i32], written: i32) -> String {
    format!(
        "the agent reads configuration versions {read:?}, not {written}; give it the image that came with the operator"
    )
}

/// The agent does not know some fields of the configuration, or values of its enums.
pub fn unknown_fields(fields: &[&str]) -> String {
    format!(
        "the agent does not know {}; the configuration waits until the node has the agent image that came with the operator",
        named(fields, MAX_FIELDS)
    )
}

/// The agent of another policy still serves the node.
pub fn hand_over_pending(serving: &str, policy: &str, node: &str) -> String {
    format!(
        "the agent of policy {serving} still serves the node; the agent of policy {policy} has not taken over; see its pod on \
         {node}"
    )
}

/// The pods on devices that change did not end in time.
pub fn pods_stayed(pods: &[String], timeout: SignedDuration) -> String {
    match pods {
        [] => format!(
            "programs stayed on what has to go for drain.timeout ({timeout:#}); the GPU's message names them: stop them, or name \
             their pods in drain.evict"
        ),
        pods => format!(
            "{} did not end within drain.timeout ({timeout:#}); see event EvictionRefused of the pods, and their grace periods",
            named(pods, MAX_PODS)
        ),
    }
}

/// A drain failed; the next one begins at this moment.
pub fn drain_failed(cause: &str, next: Timestamp) -> String {
    format!("next attempt after {next:.0}; the last one failed: {cause}; pods keep what they hold")
}

/// The agent reports a resource that the scheduler does not see.
pub fn not_allocatable(count: i32, resource: &str, node: &str) -> String {
    format!(
        "the agent reports {count} {resource}, node {node} has 0 allocatable; see the agent's pod on {node} and its log"
    )
}

/// The deadline of the rollout passed.
pub fn deadline_exceeded(allowed: SignedDuration, cause: &str) -> String {
    format!("not in force after {allowed:#}: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_names_what_is_wrong_and_where_to_look() {
        assert_eq!(
            unreadable_version(&[2, 3], 1),
            "the agent reads configuration versions [2, 3], not 1; give it the image that came with the operator"
        );
        assert_eq!(
            unknown_fields(&["health.newer"]),
            "the agent does not know health.newer; the configuration waits until the node has the agent image that came with \
             the operator"
        );
        assert_eq!(
            hand_over_pending("old", "new", "n"),
            "the agent of policy old still serves the node; the agent of policy new has not taken over; see its pod on n"
        );
        assert_eq!(
            not_allocatable(4, "nvidia.com/gpu", "n"),
            "the agent reports 4 nvidia.com/gpu, node n has 0 allocatable; see the agent's pod on n and its log"
        );
        assert_eq!(gpus_have_problem(1, "IN_USE", 0), "GPU 1: IN_USE");
        assert_eq!(gpus_have_problem(1, "IN_USE", 2), "GPU 1: IN_USE; so with 2 more GPUs");
        let phases = [(0, MigPhase::Applying), (3, MigPhase::AwaitingApproval)];
        assert_eq!(gpus_have_phase(&phases), "MIG: GPU 0 Applying, GPU 3 AwaitingApproval");
        assert_eq!(
            gpus_have_phase(&[]),
            "the agent has not finished the approved change of MIG; see its log"
        );
        assert_eq!(
            mig_manager_is_there(),
            "NVIDIA's mig-manager changes MIG on the node, as label nvidia.com/mig.config.state says, and the policy has \
             mig.layout; the node keeps its configuration. Set label nvidia.com/gpu.deploy.mig-manager=false with the GPU \
             operator; without it, remove mig-manager, then the label nvidia.com/mig.config.state"
        );
        assert_eq!(
            deadline_exceeded(SignedDuration::from_mins(10), NO_DEVICE_PLUGIN),
            "not in force after 10m: no agent with the device plugin reports; see its pod"
        );
    }
}
