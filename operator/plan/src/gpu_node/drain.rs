//! Drains: pods on devices that change are evicted where the policy says so.
//!
//! | `spec.change` | node | what follows |
//! |---|---|---|
//! | none | pods hold devices that switch | at its turn: the taint, then `Prepare` |
//! | `Prepare` | the kubelet still offers the devices | the agent withdraws them |
//! | `Prepare` | nobody has read the pods | the operator reads them |
//! | `Prepare` | a pod cannot be evicted, or would come straight back | `Failed`; nobody is evicted |
//! | `Prepare` | pods hold the devices | they are evicted |
//! | `Prepare` | nothing holds them | `Approved` where a GPU has not its MIG layout; otherwise the drain is over |
//! | `Prepare` | the timeout is over | `Failed` |
//! | `Failed` | the pause is over | as without a change |
//! | `Approved` | an open handle keeps the driver from the change | `Prepare`, if `drain.evict` names pods |

use crate::{
    gpu_node::{
        change::new_change,
        mig_progress::{has_open_layout, has_phase},
        progress_messages::{drain_failed, pods_stayed},
    },
    input::{
        context::NodeContext, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::Policy, selectors::matches_pod,
    },
    node_drain::evicted_after,
    pod_eviction::{EvictionCause, PodEviction},
    pods::{PodName, extended_resources, has_ended, is_mirror},
    reviewed_pods::ReviewedPods,
    taint::{Taint, TaintKey},
    time::whole_second,
};
use gpunode_crds::{
    ChangeState, DisruptiveChange, DrainFailure, DrainRules, EvictablePods, GpuDevice, GpuNodeStatus,
    MAX_DRAIN_MESSAGE, MigPhase, MigReason, MigStatus, RECONFIGURING_TAINT, TaintEffect, WaitingDevice, named,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use std::collections::{BTreeMap, BTreeSet};

/// Pause after the first drain that failed; each further one is twice as long, up to the longest.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(2);
/// Most pods that a message names.
const MAX_PODS: usize = 5;

/// Stage of a node's drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStage {
    /// Pods hold devices that change, and the policy evicts them.
    Due,
    /// The last drain failed; the next one may begin at this moment.
    Postponed(Timestamp),
    /// The pods have until this moment; none once it is over.
    UnderWay(Option<Timestamp>),
}

/// Returns the stage of a node's drain; none if nothing is to be drained. The node has the policy's configuration.
pub fn drain_stage(policy: &Policy, context: NodeContext<'_>) -> Option<DrainStage> {
    let (rules, gpu_node) = (policy.drain.as_ref()?, context.gpu_node?);
    if context.is_down() || context.is_served_by_dra() {
        return None;
    }
    if let Some(prepared) = gpu_node.preparation() {
        let end = Some(end_of(prepared, rules));
        return Some(DrainStage::UnderWay(end.filter(|end| *end > context.now)));
    }
    let need = DrainNeed::of(gpu_node.status()?);
    let is_needed = if gpu_node.unfinished_approval().is_some() {
        need.needs_monitors(rules)
    } else {
        !need.pods.is_empty() || need.needs_monitors(rules)
    };
    if !is_needed {
        return None;
    }
    let failed = gpu_node.last_change().filter(|change| change.attempts > 0);
    let until = failed.map(|failed| later(failed.since.0, pause_after(failed.attempts)));
    // A time far ahead comes from a clock that was wrong.
    let until = until.filter(|until| *until > context.now && until.duration_since(context.now) <= LONGEST_PAUSE);
    Some(until.map_or(DrainStage::Due, DrainStage::Postponed))
}

/// Returns the change that begins a drain.
pub fn begun_drain(gpu_node: &GpuNodeFacts, now: Timestamp) -> Option<DisruptiveChange> {
    with_failed_drains(gpu_node, ChangeState::Prepare, now)
}

/// Returns the change that approves what is free on a node, whose pods may hold other devices that change. It keeps the number of
/// drains that failed, and with it the pause before the next one.
pub fn approved_change(gpu_node: &GpuNodeFacts, now: Timestamp) -> Option<DisruptiveChange> {
    with_failed_drains(gpu_node, ChangeState::Approved, now)
}

fn with_failed_drains(gpu_node: &GpuNodeFacts, state: ChangeState, now: Timestamp) -> Option<DisruptiveChange> {
    Some(DisruptiveChange {
        attempts: gpu_node.last_change().map_or(0, |change| change.attempts),
        ..new_change(gpu_node, state, now)?
    })
}

/// Returns what follows a drain under way: another change, or none. `Err` while it goes on.
pub fn next_change(
    gpu_node: &GpuNodeFacts,
    policy: &Policy,
    context: NodeContext<'_>,
) -> Result<Option<DisruptiveChange>, DrainGoesOn> {
    let now = context.now;
    let (Some(prepared), Some(rules)) = (gpu_node.preparation(), policy.drain.as_ref()) else {
        // A handle may show only when the driver refuses what was approved. The drain takes the place of the approval in the
        // rollout; the agent finishes what it has begun without one.
        let is_due = drain_stage(policy, context) == Some(DrainStage::Due);
        let is_refused = is_due && gpu_node.unfinished_approval().is_some();
        return is_refused.then(|| begun_drain(gpu_node, now)).ok_or(DrainGoesOn);
    };
    let need = DrainNeed::of(gpu_node.status().unwrap_or(&GpuNodeStatus::default()));
    // An agent that starts knows no holder yet.
    if !need.is_open && !gpu_node.is_silent() {
        let approved = || new_change(gpu_node, ChangeState::Approved, now);
        // What the agent has begun goes on, and counts as approved whatever becomes of it.
        let is_mig = gpu_node.status().is_some_and(has_open_layout);
        return Ok(is_mig.then(approved).flatten());
    }
    let failed = |reason, message: String| {
        let attempts = prepared.attempts.saturating_add(1);
        let next = later(now, pause_after(attempts));
        let message = drain_failed(&message, next);
        Some(DisruptiveChange {
            reason: Some(reason),
            message: Some(message.chars().take(MAX_DRAIN_MESSAGE).collect()),
            attempts,
            ..new_change(gpu_node, ChangeState::Failed, now)?
        })
    };
    let obstacles = review_of(prepared, rules, context).map(|review| review.obstacles(need.has_handles));
    if let Some(obstacles) = obstacles.filter(|obstacles| !obstacles.is_empty()) {
        return Ok(failed(DrainFailure::CannotEvict, named(&obstacles, MAX_PODS)));
    }
    if end_of(prepared, rules) <= now {
        let pods: Vec<String> = need.pods.into_iter().collect();
        return Ok(failed(DrainFailure::DrainTimedOut, pods_stayed(&pods, rules.timeout())));
    }
    Err(DrainGoesOn)
}

/// The drain of a node is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainGoesOn;

/// Work of a drain under way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DrainWork {
    /// Pods that somebody has to read first.
    pub review: Option<PodReview>,
    /// Pods to evict, at most as many as the kubelet has on devices that switch, and the monitors.
    pub evictions: BTreeMap<PodName, PodEviction>,
}

/// Returns the work of a drain under way. There is none before the node has the taint, and the kubelet shows that the devices are
/// withdrawn.
pub fn drain_work(policy: &Policy, context: NodeContext<'_>) -> DrainWork {
    let mut work = DrainWork::default();
    let Some(DrainStage::UnderWay(Some(_))) = drain_stage(policy, context) else {
        return work;
    };
    let (Some(rules), Some(gpu_node), Some(status)) = (&policy.drain, context.gpu_node, context.status()) else {
        return work;
    };
    let Some(prepared) = gpu_node.preparation() else {
        return work;
    };
    let is_tainted = context
        .node
        .taints
        .iter()
        .any(|taint| taint.id == reconfiguring_taint());
    if !is_tainted || !is_withdrawn(status, context.node) {
        return work;
    }
    let need = DrainNeed::of(status);
    let pods: BTreeSet<PodName> = need.pods.iter().filter_map(|pod| PodName::parse(pod)).collect();
    let since = whole_second(prepared.since.0);
    let resources: BTreeSet<String> = status.resources.iter().map(|resource| resource.name.clone()).collect();
    let review = review_of(prepared, rules, context);
    let Some(review) = review.filter(|review| pods.is_subset(&review.pods)) else {
        work.review = Some(PodReview {
            since,
            pods,
            resources,
            rules: rules.evict.clone(),
        });
        return work;
    };
    if !review.obstacles(need.has_handles).is_empty() {
        return work;
    }
    let grace_seconds = rules.grace_seconds();
    let holders = pods.into_iter().map(|pod| {
        let resources = resources.clone();
        (pod, EvictionCause::Change { resources, since })
    });
    let monitors = need.has_handles.then_some(&review.monitors).into_iter().flatten();
    let monitors = monitors.map(|pod| (pod.clone(), EvictionCause::OpenHandle { since }));
    let evictions = monitors.chain(holders).map(|(pod, cause)| {
        let policy = policy.name.clone();
        (
            pod,
            PodEviction {
                policy,
                cause,
                grace_seconds,
            },
        )
    });
    work.evictions = evictions.collect();
    work
}

/// Returns true if the node has, or is to get, the taint of nodes that are drained. It stays for the change that follows.
pub fn wants_taint(policy: &Policy, has_taint: bool, begins: bool, context: NodeContext<'_>) -> bool {
    let stage = drain_stage(policy, context);
    // Neither a reboot nor a repair needs the taint.
    let is_changing = || {
        let phases = [MigPhase::AwaitingApproval, MigPhase::Applying];
        let in_phase = |status| phases.into_iter().any(|phase| has_phase(status, phase));
        let is_approved = context.gpu_node.is_some_and(|it| it.unfinished_approval().is_some());
        is_approved && context.status().is_some_and(in_phase)
    };
    match stage {
        Some(DrainStage::UnderWay(_)) => true,
        Some(DrainStage::Due) => begins,
        Some(DrainStage::Postponed(_)) => false,
        None => has_taint && policy.drain.is_some() && !context.is_down() && is_changing(),
    }
}

/// The taint of nodes that are drained for a change of their GPUs.
pub fn reconfiguring_taint() -> TaintKey {
    TaintKey {
        key: RECONFIGURING_TAINT.to_owned(),
        effect: TaintEffect::NoSchedule.as_str().to_owned(),
    }
}

/// Pods of a node to read before one of them is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReview {
    /// Start of the drain.
    pub since: Timestamp,
    /// Pods on devices that switch.
    pods: BTreeSet<PodName>,
    /// Resources of the node's agent.
    resources: BTreeSet<String>,
    /// Selects pods without devices that may be evicted as well.
    rules: Vec<EvictablePods>,
}

impl PodReview {
    /// Judges the pods of the node. One that is gone, or ends, is no obstacle.
    pub fn judge(&self, all: &[Pod]) -> ReviewedPods {
        let all = all
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !has_ended(pod));
        let named = |pod: &Pod| PodName {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        };
        let mut review = ReviewedPods {
            since: self.since,
            pods: self.pods.clone(),
            rules: self.rules.clone(),
            obstacles: Vec::new(),
            monitors: BTreeSet::new(),
            monitor_obstacles: Vec::new(),
        };
        for pod in all {
            let name = named(pod);
            let described = |why| format!("{name} ({why})");
            if self.pods.contains(&name) {
                let why = obstacle(pod).or_else(|| self.foreign(pod));
                review.obstacles.extend(why.map(described));
            } else if self.rules.iter().any(|rule| matches_pod(rule, pod)) {
                match obstacle(pod) {
                    Some(why) => review.monitor_obstacles.push(described(why)),
                    None => drop(review.monitors.insert(name)),
                }
            }
        }
        review
    }

    /// Returns why a pod is none of the agent's; none if it requests one of its resources.
    fn foreign(&self, pod: &Pod) -> Option<&'static str> {
        let spec = pod.spec.as_ref();
        let is_own = spec.is_some_and(|spec| extended_resources(spec).any(|name| self.resources.contains(name)));
        (!is_own).then_some("it has the GPU through a claim or another plugin, and gpunode evicts no such pod")
    }
}

/// Returns why a pod cannot be evicted, or would hold its devices again at once; none if neither is so.
fn obstacle(pod: &Pod) -> Option<&'static str> {
    if is_mirror(pod) {
        return Some("a static pod, which only its node can stop");
    }
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    let taint = Taint {
        id: reconfiguring_taint(),
        value: String::new(),
    };
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    if controller.kind == "DaemonSet" && evicted_after(tolerations.unwrap_or_default(), &taint).is_none() {
        return Some("its DaemonSet tolerates the taint and would replace it at once");
    }
    is_bound_by_its_controller(pod).then_some("its controller binds its pods to the node and would replace it at once")
}

/// Returns true if a pod named its node when it was created. The scheduler's binding is no field of its managers
/// (`setPodNodeAndMetadata` in `pkg/registry/core/pod/storage/storage.go` of Kubernetes).
fn is_bound_by_its_controller(pod: &Pod) -> bool {
    let managers = pod.metadata.managed_fields.iter().flatten();
    let mut fields = managers.filter_map(|entry| entry.fields_v1.as_ref());
    fields.any(|fields| fields.0.pointer("/f:spec/f:nodeName").is_some())
}

/// Obstacles to the change of a node's devices that go with pods and processes.
#[derive(Debug, Default)]
struct DrainNeed {
    /// Pods on devices that switch, as `NAMESPACE/NAME`.
    pods: BTreeSet<String>,
    /// True if a process or an open handle is on an instance that has to go.
    has_handles: bool,
    /// True until every device that switches is free.
    is_open: bool,
}

impl DrainNeed {
    /// Returns true if the end of a monitor may free a device.
    fn needs_monitors(&self, rules: &DrainRules) -> bool {
        self.has_handles && !rules.evict.is_empty()
    }

    fn of(status: &GpuNodeStatus) -> Self {
        Self {
            pods: switching_devices(status)
                .flat_map(|waiting| waiting.pods.iter().cloned())
                .collect(),
            has_handles: gpu_with_handles(status).is_some(),
            is_open: switching_devices(status).next().is_some()
                || has_phase(status, MigPhase::Waiting)
                || blocked_gpu(status, waits_for_programs).is_some(),
        }
    }
}

/// Returns a GPU that a process or an open handle keeps from its layout.
pub fn gpu_with_handles(status: &GpuNodeStatus) -> Option<&GpuDevice> {
    blocked_gpu(status, |reason| reason == MigReason::InUse)
}

fn blocked_gpu(status: &GpuNodeStatus, by: impl Fn(MigReason) -> bool) -> Option<&GpuDevice> {
    let is_blocked = |mig: &MigStatus| mig.phase == MigPhase::Blocked && mig.reason.is_some_and(&by);
    let mut gpus = status.gpus.iter();
    gpus.find(|gpu| gpu.mig.as_ref().is_some_and(is_blocked))
}

/// Returns the devices that change once the pods on them are gone. Something else keeps those of other GPUs from their layout.
pub fn switching_devices(status: &GpuNodeStatus) -> impl Iterator<Item = &WaitingDevice> {
    let is_hopeless = |gpu: &&GpuDevice| {
        gpu.mig.as_ref().is_some_and(|mig| match mig.phase {
            MigPhase::Blocked => mig.reason.is_some_and(|reason| !waits_for_programs(reason)),
            MigPhase::Failed | MigPhase::RebootRequired | MigPhase::Unsupported => true,
            _ => false,
        })
    };
    let hopeless = status.gpus.iter().filter(is_hopeless);
    let hopeless: BTreeSet<&str> = hopeless
        .flat_map(|gpu| {
            let parts = gpu.mig_devices.iter().map(|device| device.uuid.as_str());
            parts.chain([gpu.uuid.as_str()])
        })
        .collect();
    let switching = status.waiting.iter().filter(|waiting| waiting.switches);
    switching.filter(move |waiting| !hopeless.contains(waiting.device.as_str()))
}

fn waits_for_programs(reason: MigReason) -> bool {
    reason.may_pass() && reason != MigReason::Unhealthy
}

/// Returns true if no container can get a share of the devices that switch: the agent has withdrawn all of them, and the
/// kubelet shows it to the scheduler.
fn is_withdrawn(status: &GpuNodeStatus, node: &NodeFacts) -> bool {
    let switching: BTreeSet<&str> = status
        .waiting
        .iter()
        .filter(|waiting| waiting.switches)
        .map(|waiting| waiting.device.as_str())
        .collect();
    status.resources.iter().all(|resource| {
        let mut of_resource = resource
            .devices
            .iter()
            .filter(|device| switching.contains(device.device.as_str()))
            .peekable();
        let shown = node.allocatable.get(&resource.name).copied().unwrap_or_default();
        let healthy = u64::try_from(resource.allocatable).unwrap_or_default();
        of_resource.peek().is_none() || (of_resource.all(|device| device.healthy == 0) && shown <= healthy)
    })
}

/// Returns what was read of the node's pods since a drain with these rules began.
fn review_of<'a>(
    prepared: &DisruptiveChange,
    rules: &DrainRules,
    context: NodeContext<'a>,
) -> Option<&'a ReviewedPods> {
    let review = context.reviewed_pods?;
    (review.since == whole_second(prepared.since.0) && review.rules == rules.evict).then_some(review)
}

fn end_of(prepared: &DisruptiveChange, rules: &DrainRules) -> Timestamp {
    later(prepared.since.0, rules.timeout())
}

fn later(start: Timestamp, by: SignedDuration) -> Timestamp {
    start.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns the pause after this many drains that failed.
fn pause_after(attempts: u32) -> SignedDuration {
    let doubled = 2_i32.saturating_pow(attempts.saturating_sub(1).min(8));
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
