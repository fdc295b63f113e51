//! The progress of a node's GPUs towards their MIG layouts, as its agent reports it.
//!
//! | phase of a GPU | policy's status | rollout |
//! |---|---|---|
//! | `Applied`, `Unsupported` | in force | done |
//! | `Waiting` | in force; `waiting` names the pods | done |
//! | `Blocked`, until a pod, a process or a fault goes | in force; `waiting` has the message | done |
//! | `Blocked`, until a person acts | failed | done |
//! | `AwaitingApproval` | updating | pending, and changing once it is approved |
//! | `Applying` | updating | changing |
//! | `RebootRequired` | failed | changing if it was approved, without a deadline |
//! | `Failed`, or `Blocked` after the driver's errors | failed | stopped if it was approved, and once a GPU went back |

use crate::{
    gpu_node::progress_messages::{gpus_have_phase, gpus_have_problem},
    input::context::NodeContext,
};
use gpunode_crds::{GpuDevice, GpuNodeStatus, MigPhase, MigReason, MigStatus, NodeWaiting, Reason};

fn gpus(status: &GpuNodeStatus) -> impl Iterator<Item = (&GpuDevice, &MigStatus)> {
    status.gpus.iter().filter_map(|gpu| Some((gpu, gpu.mig.as_ref()?)))
}

/// Returns true if a GPU is in this phase.
pub fn has_phase(status: &GpuNodeStatus, phase: MigPhase) -> bool {
    gpus(status).any(|(_, mig)| mig.phase == phase)
}

/// Returns true if a GPU of the node is free for its change, and waits for the node's turn.
pub fn awaits_approval(context: NodeContext<'_>) -> bool {
    let status = context.status();
    status.is_some_and(|status| has_phase(status, MigPhase::AwaitingApproval))
}

/// Describes the first GPU whose change failed; none if no change did.
pub fn failed_change(status: &GpuNodeStatus) -> Option<String> {
    problem(status, is_failed)
}

/// Describes the first GPU that went back to its layout from before; none if no GPU did.
pub fn rolled_back(status: &GpuNodeStatus) -> Option<String> {
    problem(status, |mig| mig.reason == Some(MigReason::RolledBack))
}

/// A change that is not tried again is as much a failure as one that is.
fn is_failed(mig: &MigStatus) -> bool {
    let has_ended = matches!(mig.reason, Some(MigReason::RolledBack | MigReason::DriverError));
    mig.phase == MigPhase::Failed || (mig.phase == MigPhase::Blocked && has_ended)
}

fn is_open(mig: &MigStatus) -> bool {
    !matches!(mig.phase, MigPhase::Applied | MigPhase::Unsupported | MigPhase::Unknown)
}

/// Returns true if a GPU has not its layout.
pub fn has_open_layout(status: &GpuNodeStatus) -> bool {
    gpus(status).any(|(_, mig)| is_open(mig))
}

/// Describes the GPUs that an approval has not brought to their layout.
pub fn unfinished_change(status: Option<&GpuNodeStatus>) -> String {
    let open: Vec<_> = status
        .into_iter()
        .flat_map(gpus)
        .filter(|(_, mig)| is_open(mig))
        .collect();
    gpus_have_phase(&open.iter().map(|(gpu, mig)| (gpu.index, mig.phase)).collect::<Vec<_>>())
}

/// Returns the reason why somebody has to act before each GPU has its layout, if so.
pub fn mig_failure(status: &GpuNodeStatus) -> Option<(Reason, String)> {
    let reboot = || problem(status, |mig| mig.phase == MigPhase::RebootRequired);
    let blocked = || problem(status, |mig| mig.phase == MigPhase::Blocked && !may_pass(mig));
    failed_change(status)
        .map(|message| (Reason::MigFailed, message))
        .or_else(|| Some((Reason::MigRebootRequired, reboot()?)))
        .or_else(|| Some((Reason::MigBlocked, blocked()?)))
}

/// Returns the GPUs of a node that something other than pods keeps from their layout for a while; none of a node that is down.
pub fn blocked_gpus(context: NodeContext<'_>) -> impl Iterator<Item = NodeWaiting> {
    let status = context.status().filter(|_| context.node.ready);
    let blocked = |(_, mig): &(&GpuDevice, &MigStatus)| {
        // The devices of a drain that failed wait with the message of it.
        let is_of_drain = matches!(mig.reason, Some(MigReason::CannotEvict | MigReason::DrainTimedOut));
        mig.phase == MigPhase::Blocked && may_pass(mig) && !is_of_drain
    };
    let blocked = status.into_iter().flat_map(gpus).filter(blocked);
    blocked.map(move |(gpu, mig)| NodeWaiting {
        node: context.node.name.clone(),
        device: gpu.uuid.clone(),
        pods: Vec::new(),
        message: Some(text(mig).to_owned()),
    })
}

/// A cause that this version does not know may pass as well.
fn may_pass(mig: &MigStatus) -> bool {
    mig.reason.is_none_or(MigReason::may_pass)
}

fn problem(status: &GpuNodeStatus, is_of: impl Fn(&MigStatus) -> bool) -> Option<String> {
    let of: Vec<_> = gpus(status).filter(|(_, mig)| is_of(mig)).collect();
    let (gpu, mig) = of.first()?;
    Some(gpus_have_problem(gpu.index, text(mig), of.len() - 1))
}

fn text(mig: &MigStatus) -> &str {
    let name = || mig.reason.map_or(mig.phase.as_str(), MigReason::as_str);
    mig.message.as_deref().unwrap_or_else(name)
}
