//! Drains of nodes whose policy evicts the pods on devices that change.

use crate::{
    governed::{configuration, down, plan_at, world as governed, written},
    world::{World, now, policy},
};
use gpunode_crds::{
    ChangeState, DisruptiveChange, DrainFailure, GpuNodePolicy, MigPhase, MigReason, RECONFIGURING_TAINT, WaitingDevice,
};
use gpunode_plan::{
    EvictionCause, GpuNodeChange, NodeContext, NodePlan, PolicyOutcome, PolicySet, ReviewedPods, RolloutPermit,
    RolloutStage, evictions, plan_node_with_permit,
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

fn evicting(more: &str) -> GpuNodePolicy {
    let monitors = "evict: [{namespace: ops, podSelector: {matchLabels: {app: dcgm}}}]";
    policy(
        "p",
        &format!(
            "{{nodeSelector: {{}}, devicePlugin: {{mig: {{strategy: Mixed, layout: [{{preset: all-balanced}}]}}}}, \
             drain: {{policy: Evict, gracePeriod: 45s, timeout: 5m, {monitors}}}{more}}}"
        ),
    )
}

fn waiting_for_pods(more: &str) -> GpuNodePolicy {
    let mut policy = evicting(more);
    policy.spec.drain = None;
    policy
}

/// A node with the layout in force, whose GPU is held by these pods; the agent offers this many shares of it.
struct Drained {
    world: World,
    reviewed: Option<ReviewedPods>,
}

impl Drained {
    fn new(pods: &[&str]) -> Self {
        let mut drained = Self {
            world: governed(&evicting(""), None, &evicting(""), true),
            reviewed: None,
        };
        drained.report("Waiting", pods, 1);
        drained.allocatable("1");
        drained
    }

    fn status(&mut self) -> &mut gpunode_crds::GpuNodeStatus {
        self.world.gpu_node.as_mut().unwrap().status.as_mut().unwrap()
    }

    fn report(&mut self, phase: &str, pods: &[&str], healthy: i32) {
        let (phase, reason) = phase
            .split_once('/')
            .map_or((phase, None), |(phase, reason)| (phase, Some(reason)));
        let gpu = json!({
            "index": 0, "uuid": "GPU-0", "product": "A100", "memoryMiB": 1,
            "mig": {"wanted": "1g.5gb:7", "observed": "off", "phase": phase, "reason": reason, "message": "m"},
        });
        let waiting = waiting("GPU-0", pods);
        let resource = json!({"name": "nvidia.com/gpu", "capacity": 1, "allocatable": healthy, "registered": true,
            "devices": [{"device": "GPU-0", "shares": 1, "healthy": healthy}]});
        let status = self.status();
        status.gpus = vec![serde_json::from_value(gpu).unwrap()];
        status.waiting = if pods.is_empty() { vec![] } else { vec![waiting] };
        status.resources = vec![serde_json::from_value(resource).unwrap()];
    }

    fn allocatable(&mut self, count: &str) {
        self.world.node["status"]["allocatable"] = json!({"nvidia.com/gpu": count});
    }

    fn plan(&self, permit: RolloutPermit, policy: &GpuNodePolicy, minutes: i64) -> NodePlan {
        self.plan_all(permit, std::slice::from_ref(policy), minutes)
    }

    fn plan_all(&self, permit: RolloutPermit, policies: &[GpuNodePolicy], minutes: i64) -> NodePlan {
        let (facts, gpu_facts) = (self.world.facts(), self.world.gpu_facts());
        let context = NodeContext::new(&facts, gpu_facts.as_ref(), now() + SignedDuration::from_mins(minutes));
        let set = PolicySet::new(policies);
        plan_node_with_permit(permit, &set, context.reviewed(self.reviewed.as_ref()))
    }

    /// Carries out a plan without a new permit.
    fn step(&mut self, minutes: i64) -> NodePlan {
        self.carry_out(RolloutPermit::Withheld, minutes)
    }

    fn patch_node(&mut self, plan: &NodePlan) {
        if let Some(patch) = &plan.patch {
            json_patch::patch(&mut self.world.node, patch).unwrap();
        }
    }

    fn carry_out(&mut self, permit: RolloutPermit, minutes: i64) -> NodePlan {
        let plan = self.plan(permit, &evicting(""), minutes);
        self.patch_node(&plan);
        match &plan.gpu_node {
            GpuNodeChange::None => {}
            // The next plan brings all other writes.
            GpuNodeChange::Requests { release, .. } => {
                self.world.gpu_node.as_mut().unwrap().spec.release = *release;
                return self.carry_out(permit, minutes);
            }
            _ => self.world = written(self.world.clone(), &plan),
        }
        plan
    }

    fn read_pods(&mut self, plan: &NodePlan, pods: &[Value]) {
        let pods: Vec<Pod> = pods
            .iter()
            .map(|pod| serde_json::from_value(pod.clone()).unwrap())
            .collect();
        self.reviewed = plan.drain_work.review.as_ref().map(|review| review.judge(&pods));
    }

    fn change(&self) -> Option<&DisruptiveChange> {
        self.world.gpu_node.as_ref().unwrap().spec.change.as_ref()
    }

    /// Asserts that pods cannot be evicted. Returns the message about them.
    fn obstacles(&self) -> &str {
        let failed = self.change().unwrap();
        assert_eq!(
            (failed.state, failed.reason),
            (ChangeState::Failed, Some(DrainFailure::CannotEvict))
        );
        failed.message.as_deref().unwrap()
    }

    fn state(&self) -> Option<ChangeState> {
        self.change().map(|change| change.state)
    }

    fn has_taint(&self) -> bool {
        let taints = self.world.node["spec"]["taints"].as_array();
        taints
            .into_iter()
            .flatten()
            .any(|taint| taint["key"] == RECONFIGURING_TAINT)
    }

    fn evicted(&self, plan: &NodePlan) -> Vec<String> {
        let (facts, gpu_facts) = (self.world.facts(), self.world.gpu_facts());
        let set = PolicySet::new(&[evicting("")]);
        let pods = evictions(&set, plan, &facts, gpu_facts.as_ref());
        assert!(
            pods.values().all(|eviction| eviction.grace_seconds == Some(45)),
            "{pods:?}"
        );
        pods.keys().map(ToString::to_string).collect()
    }
}

fn waiting(device: &str, pods: &[&str]) -> WaitingDevice {
    let waiting = json!({"device": device, "message": "m", "pods": pods, "switches": true});
    serde_json::from_value(waiting).unwrap()
}

fn monitor() -> Value {
    json!({"metadata": {"name": "dcgm-1", "namespace": "ops", "labels": {"app": "dcgm"}}, "spec": {"containers": []}})
}

fn pod(name: &str) -> Value {
    let containers = json!([{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {"containers": containers}})
}

/// A node whose drain has begun, with the devices withdrawn and the pods read.
fn begun(pods: &[&str]) -> Drained {
    let mut node = Drained::new(pods);
    node.carry_out(RolloutPermit::Granted, 0);
    node.report("Waiting", pods, 0);
    node.allocatable("0");
    let plan = node.step(1);
    node.read_pods(&plan, &[pod("a"), pod("b")]);
    node
}

#[test]
fn drain_takes_its_steps_in_order_and_leaves_nothing_behind() {
    let mut node = Drained::new(&["ml/a"]);
    let waits = node.step(0);
    assert_eq!(
        (
            &waits.stage,
            waits.waits,
            &waits.outcomes["p"],
            node.state(),
            node.has_taint()
        ),
        (
            &Some(RolloutStage::Pending),
            true,
            &PolicyOutcome::Updating,
            None,
            false
        )
    );

    let begins = node.carry_out(RolloutPermit::Granted, 0);
    assert!(begins.patch.is_some(), "the taint comes with the drain");
    assert_eq!((node.state(), node.has_taint()), (Some(ChangeState::Prepare), true));

    let offered = node.step(1);
    assert_eq!(
        (&offered.stage, &offered.outcomes["p"]),
        (&Some(RolloutStage::Stepping), &PolicyOutcome::Updating)
    );
    assert!(
        offered.drain_work.review.is_none() && node.evicted(&offered).is_empty(),
        "the device is offered"
    );
    node.report("Waiting", &["ml/a"], 0);
    assert!(node.step(1).drain_work.review.is_none(), "the kubelet still offers it");
    node.allocatable("0");
    let unread = node.step(1);
    assert!(node.evicted(&unread).is_empty(), "nobody has read the pods");
    node.read_pods(&unread, &[pod("a")]);
    let tainted = node.world.node.clone();
    node.world.node["spec"]["taints"] = json!([]);
    let bare = node.plan(RolloutPermit::Withheld, &evicting(""), 1);
    assert!(
        node.evicted(&bare).is_empty() && bare.patch.is_some(),
        "new pods would come"
    );
    node.world.node = tainted;
    let evicts = node.step(1);
    assert_eq!(node.evicted(&evicts), ["ml/a"]);
    assert!(!evicts.has_work(), "{evicts:?}");

    node.report("Waiting", &[], 0);
    assert!(
        node.evicted(&node.plan(RolloutPermit::Withheld, &evicting(""), 2))
            .is_empty()
    );
    node.step(2);
    assert_eq!(
        node.state(),
        Some(ChangeState::Prepare),
        "the agent looks for processes"
    );
    node.report("AwaitingApproval", &[], 0);
    node.step(2);
    assert_eq!(
        (node.state(), node.has_taint()),
        (Some(ChangeState::Approved), true),
        "it needs no second permit"
    );
    node.report("Applied", &[], 1);
    node.allocatable("1");
    let since = node.change().map(|change| change.since.clone());
    node.status().finished_change = since;
    let over = node.step(3);
    assert!(!node.has_taint());
    assert_eq!(over.gpu_node, GpuNodeChange::None);
    let settled = node.step(9);
    assert_eq!((&settled.stage, settled.has_work()), (&Some(RolloutStage::Done), false));
}

#[test]
fn operator_that_takes_over_a_drain_reads_the_pods_again_and_goes_on() {
    let mut node = begun(&["ml/a"]);
    let evicts = node.step(1);
    assert_eq!(node.evicted(&evicts), ["ml/a"]);
    // All that the operator before knew beside the cluster.
    node.reviewed = None;
    let plan = node.step(1);
    assert!(
        node.evicted(&plan).is_empty() && plan.drain_work.review.is_some(),
        "{plan:?}"
    );
    assert_eq!(
        (node.state(), node.has_taint(), plan.stage.clone()),
        (Some(ChangeState::Prepare), true, Some(RolloutStage::Stepping))
    );
    node.read_pods(&plan, &[pod("a")]);
    let evicts = node.step(1);
    assert_eq!(node.evicted(&evicts), ["ml/a"]);

    node.report("AwaitingApproval", &[], 0);
    node.reviewed = None;
    node.step(2);
    assert_eq!((node.state(), node.has_taint()), (Some(ChangeState::Approved), true));
    node.report("Applied", &[], 1);
    node.allocatable("1");
    let since = node.change().map(|change| change.since.clone());
    node.status().finished_change = since;
    node.step(3);
    assert!(!node.has_taint());
}

/// The first step alone writes both the Node and the GpuNode, and an operator may die between the two.
#[test]
fn operator_that_finds_half_a_begin_ends_the_drain_or_goes_on_with_it() {
    for permit in [RolloutPermit::Granted, RolloutPermit::Withheld] {
        for is_node_written in [true, false] {
            let case = format!("{permit:?}, Node written: {is_node_written}");
            let mut node = Drained::new(&["ml/a"]);
            let begins = node.plan(RolloutPermit::Granted, &evicting(""), 0);
            if is_node_written {
                node.patch_node(&begins);
            } else {
                node.world = written(node.world.clone(), &begins);
            }
            for _ in 0..3 {
                node.carry_out(permit, 0);
            }
            let goes_on = !is_node_written || permit == RolloutPermit::Granted;
            let expected = goes_on.then_some(ChangeState::Prepare);
            assert_eq!((node.state(), node.has_taint()), (expected, goes_on), "{case}");
        }
    }
}

#[test]
fn drain_for_another_sharing_is_over_once_every_device_has_changed() {
    let mut node = begun(&["ml/a"]);
    node.report("Applied", &[], 4);
    node.step(2);
    assert_eq!((node.state(), node.has_taint()), (None, true));
    node.step(2);
    assert!(!node.has_taint());
}

#[test]
fn agent_that_starts_and_knows_no_holder_ends_no_drain_and_no_pause() {
    let silent = |node: &mut Drained, is_silent: bool| {
        let reason = if is_silent { "HoldersUnknown" } else { "Registered" };
        let condition = &mut node.status().conditions[0];
        condition.status = if is_silent { "False" } else { "True" }.to_owned();
        reason.clone_into(&mut condition.reason);
    };
    let mut node = begun(&["ml/a"]);
    silent(&mut node, true);
    node.report("Applied", &[], 0);
    let plan = node.step(2);
    assert_eq!(
        (plan.stage, node.state()),
        (Some(RolloutStage::Stepping), Some(ChangeState::Prepare))
    );
    silent(&mut node, false);
    node.report("Waiting", &["ml/a"], 0);
    node.step(5);
    silent(&mut node, true);
    node.report("Applied", &[], 0);
    node.step(6);
    assert_eq!(node.state(), Some(ChangeState::Failed));
    silent(&mut node, false);
    node.step(6);
    assert_eq!(node.state(), None);
}

#[test]
fn policy_that_waits_drains_nothing_and_ends_a_drain() {
    let node = Drained::new(&["ml/a"]);
    let plan = node.plan(RolloutPermit::Granted, &waiting_for_pods(""), 0);
    assert_eq!(
        (plan.stage, &plan.gpu_node),
        (Some(RolloutStage::Done), &GpuNodeChange::None)
    );

    let node = begun(&["ml/a"]);
    let plan = node.plan(RolloutPermit::Withheld, &waiting_for_pods(""), 2);
    assert!(plan.patch.is_some(), "the taint goes");
    assert_eq!(written(node.world, &plan).gpu_node.unwrap().spec.change, None);
}

#[test]
fn pods_that_stay_get_their_devices_back_and_the_next_drain_waits_longer() {
    let mut node = begun(&["ml/a"]);
    let ends = node.step(1).recheck;
    assert_eq!(ends, Some(now() + SignedDuration::from_mins(5)));
    node.step(5);
    let failed = node.change().cloned().unwrap();
    assert_eq!(
        (failed.state, failed.reason, failed.attempts, node.has_taint()),
        (ChangeState::Failed, Some(DrainFailure::DrainTimedOut), 1, true)
    );
    let message = failed.message.unwrap();
    assert_eq!(
        message,
        "next attempt after 2026-01-01T00:15:00Z; the last one failed: ml/a did not end within drain.timeout (5m); see event \
         EvictionRefused of the pods, and their grace periods; pods keep what they hold"
    );
    node.report("Blocked/DrainTimedOut", &["ml/a"], 1);
    node.allocatable("1");
    let over = node.step(6);
    assert!(!node.has_taint() && node.evicted(&over).is_empty());
    let told = &over.waiting[0];
    assert_eq!(
        (told.pods.as_slice(), told.message.as_ref()),
        (["ml/a".to_owned()].as_slice(), Some(&message))
    );
    let postponed = node.plan(RolloutPermit::Granted, &evicting(""), 14);
    assert_eq!(
        (&postponed.stage, postponed.has_work()),
        (&Some(RolloutStage::Done), false)
    );
    assert_eq!(postponed.outcomes["p"], PolicyOutcome::Ready);

    node.carry_out(RolloutPermit::Granted, 15);
    assert_eq!(
        node.change().map(|change| (change.state, change.attempts)),
        Some((ChangeState::Prepare, 1))
    );
    node.step(20);
    assert_eq!(
        node.change().map(|change| (change.state, change.attempts)),
        Some((ChangeState::Failed, 2))
    );
    node.report("Blocked/DrainTimedOut", &["ml/a"], 1);
    assert_eq!(
        node.plan(RolloutPermit::Granted, &evicting(""), 39).stage,
        Some(RolloutStage::Done)
    );
    assert_eq!(
        node.plan(RolloutPermit::Granted, &evicting(""), 40).stage,
        Some(RolloutStage::Pending)
    );
    node.report("Applied", &[], 1);
    node.step(39);
    assert_eq!(node.state(), None, "the pods went by themselves");
}

#[test]
fn pod_that_would_come_straight_back_fails_the_drain_before_anybody_is_evicted() {
    let mut node = begun(&["ml/a", "ml/b"]);
    let mut bound = pod("b");
    bound["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    node.reviewed = None;
    let plan = node.step(1);
    node.read_pods(&plan, &[pod("a"), bound]);
    let fails = node.step(1);
    assert!(node.evicted(&fails).is_empty());
    let message = node.obstacles();
    assert!(
        message.contains("ml/b (a static pod") && !message.contains("ml/a"),
        "{message}"
    );
}

#[test]
fn pod_that_got_a_share_before_it_was_withdrawn_is_read_before_it_is_evicted() {
    let mut node = begun(&["ml/a"]);
    node.report("Waiting", &["ml/a", "ml/b"], 0);
    let plan = node.step(1);
    assert!(plan.drain_work.review.is_some() && node.evicted(&plan).is_empty());
    node.read_pods(&plan, &[pod("a"), pod("b")]);
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ml/a", "ml/b"]);
}

#[test]
fn monitor_is_evicted_only_while_something_keeps_the_gpu_open() {
    let monitor = monitor();
    let mut node = begun(&["ml/a"]);
    node.reviewed = None;
    let plan = node.step(1);
    node.read_pods(&plan, &[pod("a"), monitor.clone()]);
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ml/a"]);
    node.report("Blocked/InUse", &[], 0);
    let plan = node.step(2);
    assert_eq!(node.evicted(&plan), ["ops/dcgm-1"]);
    assert!(
        plan.drain_work
            .evictions
            .values()
            .all(|it| matches!(it.cause, EvictionCause::OpenHandle { .. }))
    );

    // Nothing else holds the GPU.
    let mut node = Drained::new(&[]);
    node.report("Blocked/InUse", &[], 1);
    node.carry_out(RolloutPermit::Granted, 0);
    assert_eq!(node.state(), Some(ChangeState::Prepare));
    let plan = node.step(1);
    node.read_pods(&plan, &[monitor]);
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ops/dcgm-1"]);
}

#[test]
fn handle_that_only_the_driver_knows_turns_the_approval_into_a_drain() {
    let mut node = Drained::new(&[]);
    node.report("AwaitingApproval", &[], 0);
    node.carry_out(RolloutPermit::Granted, 0);
    node.report("Applying", &[], 0);
    node.step(0);
    assert_eq!(node.state(), Some(ChangeState::Approved));
    node.report("Blocked/InUse", &[], 0);
    let plan = node.step(1);
    assert_eq!(
        (plan.stage, node.state()),
        (Some(RolloutStage::Stepping), Some(ChangeState::Prepare))
    );
    let plan = node.step(1);
    assert!(node.has_taint() && plan.drain_work.review.is_none());
    let monitor = monitor();
    let plan = node.step(1);
    node.read_pods(&plan, &[monitor]);
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ops/dcgm-1"]);
    node.report("Applying", &[], 0);
    let plan = node.step(2);
    assert_eq!(
        (plan.stage, node.state(), node.has_taint()),
        (Some(RolloutStage::Stepping), Some(ChangeState::Approved), true),
        "it still changes"
    );
}

/// A node with a change in its midst, for which a drain has begun in the place of the approval.
fn drained_in_the_midst() -> Drained {
    let mut node = Drained::new(&[]);
    node.report("AwaitingApproval", &[], 0);
    node.carry_out(RolloutPermit::Granted, 0);
    node.report("Blocked/InUse", &[], 0);
    node.step(1);
    assert_eq!(node.state(), Some(ChangeState::Prepare));
    node
}

#[test]
fn change_that_fails_during_a_drain_ends_it_and_stops_the_rollout() {
    for phase in ["Failed/DriverError", "Failed/RolledBack"] {
        let mut node = drained_in_the_midst();
        node.report(phase, &[], 0);
        node.step(2);
        assert_eq!(node.state(), Some(ChangeState::Approved), "{phase}");
        let stopped = node.step(2);
        assert!(matches!(&stopped.stage, Some(RolloutStage::Stopped(_))), "{stopped:?}");
        node.step(2);
        assert!(!node.has_taint(), "{phase}");
    }
}

#[test]
fn change_that_goes_back_after_its_drain_failed_stops_the_rollout_for_good() {
    let mut node = drained_in_the_midst();
    node.step(6);
    assert_eq!(node.state(), Some(ChangeState::Failed));
    node.report("Applying", &[], 0);
    let back = node.step(7);
    assert_eq!(back.stage, Some(RolloutStage::Stepping), "it goes back");
    node.report("Failed/RolledBack", &[], 1);
    node.allocatable("1");
    let expected = Some(RolloutStage::Stopped("MigFailed: GPU 0: m".to_owned()));
    for minutes in [8, 8, 9, 600] {
        let plan = node.step(minutes);
        assert_eq!(plan.stage, expected, "after {minutes} minutes");
    }
    let step = node.world.gpu_node.as_ref().unwrap().spec.step.as_ref();
    assert_eq!(step.unwrap().failed.as_deref(), Some("MigFailed: GPU 0: m"));
    assert!(!node.has_taint());
    node.report("Applied", &[], 1);
    node.step(601);
    assert_eq!(node.state(), None, "somebody has mended it");
}

#[test]
fn nodes_that_must_not_change_are_not_drained_and_a_drain_ends_there() {
    let released = |mut node: Drained| {
        node.world.set_label("gpunode.dev/release", Some("true"));
        node
    };
    let ignored = |mut node: Drained| {
        node.world.set_label("gpunode.dev/ignore", Some(""));
        node
    };
    let stopped = |mut node: Drained| {
        node.world = down(node.world.clone());
        node
    };
    let cases: [(&str, &dyn Fn(Drained) -> Drained); 3] =
        [("released", &released), ("ignored", &ignored), ("down", &stopped)];
    for (name, change) in cases {
        let node = change(Drained::new(&["ml/a"]));
        let plan = node.plan(RolloutPermit::Granted, &evicting(""), 0);
        assert!(
            !matches!(plan.gpu_node, GpuNodeChange::Step { change: Some(_), .. }),
            "{name}: {plan:?}"
        );
        let mut node = change(begun(&["ml/a"]));
        node.step(1);
        assert_eq!(node.state(), None, "{name}");
        assert!(
            node.evicted(&node.plan(RolloutPermit::Withheld, &evicting(""), 1))
                .is_empty(),
            "{name}"
        );
        assert_eq!(
            node.has_taint(),
            name == "ignored",
            "{name}: an ignored node stays as it is"
        );
    }
    let paused = evicting(", mode: Paused");
    let node = begun(&["ml/a"]);
    let plan = node.plan(RolloutPermit::Withheld, &paused, 1);
    assert!(plan.patch.is_some(), "the taint goes");
    assert_eq!(written(node.world, &plan).gpu_node.unwrap().spec.change, None);
}

#[test]
fn drain_for_another_configuration_is_void() {
    let mut node = begun(&["ml/a"]);
    let other = policy(
        "p",
        "{nodeSelector: {}, devicePlugin: {}, drain: {policy: Evict}, rollout: {progressDeadline: 5m}}",
    );
    let plan = node.plan(RolloutPermit::Granted, &other, 1);
    assert!(matches!(plan.gpu_node, GpuNodeChange::Configure { .. }), "{plan:?}");
    node.world = written(node.world.clone(), &plan);
    assert_eq!(node.change(), None);
    assert_ne!(configuration(&other).hash, configuration(&evicting("")).hash);
    let plan = plan_at(RolloutPermit::Withheld, &node.world, &[other], 1);
    assert!(plan.patch.is_some(), "the taint goes");
}

/// Asserts that a plan ends the drain and evicts nobody.
fn ends(node: &Drained, plan: &NodePlan, case: &str) {
    assert!(
        node.evicted(plan).is_empty() && plan.recheck.is_none_or(|at| at > now() + SignedDuration::from_mins(1)),
        "{case}: {plan:?}"
    );
    let after = written(node.world.clone(), plan).gpu_node.unwrap();
    assert_eq!(after.spec.change, None, "{case}");
    assert_eq!(
        after.spec.config,
        node.world.gpu_node.as_ref().unwrap().spec.config,
        "{case}: the configuration stays"
    );
}

#[test]
fn drain_ends_where_its_configuration_is_wanted_no_more_or_nobody_can_tell() {
    let plugin = |name: &str, plugin: &str| {
        policy(
            name,
            &format!("{{nodeSelector: {{}}, devicePlugin: {plugin}, drain: {{policy: Evict, timeout: 5m}}}}"),
        )
    };
    let node = begun(&["ml/a"]);
    for (case, policies) in [
        ("edited, and another node's turn", vec![plugin("p", "{}")]),
        ("invalid", vec![plugin("p", "{sharing: {unknown: 1}}")]),
        (
            "disputed",
            vec![evicting(""), plugin("q", "{resourceName: example.com/gpu}")],
        ),
    ] {
        let plan = node.plan_all(RolloutPermit::Withheld, &policies, 1);
        ends(&node, &plan, case);
        let mut after = Drained {
            world: written(node.world.clone(), &plan),
            reviewed: None,
        };
        let plan = after.plan_all(RolloutPermit::Withheld, &policies, 1);
        json_patch::patch(&mut after.world.node, &plan.patch.unwrap()).unwrap();
        assert!(!after.has_taint(), "{case}");
    }
    let mut older = begun(&["ml/a"]);
    older.status().agent.as_mut().unwrap().config_versions = vec![0];
    ends(
        &older,
        &older.plan(RolloutPermit::Withheld, &evicting(""), 1),
        "an older agent",
    );
    let mut unreadable = begun(&["ml/a"]);
    unreadable.world.node["metadata"]["annotations"]["gpunode.dev/owned"] = json!("{");
    let plan = unreadable.plan(RolloutPermit::Withheld, &evicting(""), 9);
    ends(&unreadable, &plan, "an unreadable record");
}

#[test]
fn gpu_that_is_free_changes_while_pods_of_another_one_stay() {
    let mut node = begun(&["ml/a"]);
    node.step(5);
    assert_eq!(node.state(), Some(ChangeState::Failed));
    // The first GPU waits for its pods, the second one for its turn.
    node.report("Blocked/DrainTimedOut", &["ml/a"], 1);
    node.allocatable("1");
    let mut free = node.status().gpus[0].clone();
    free.uuid = "GPU-1".to_owned();
    free.mig.as_mut().unwrap().phase = MigPhase::AwaitingApproval;
    node.status().gpus.push(free);
    let plan = node.carry_out(RolloutPermit::Granted, 6);
    assert_eq!(plan.stage, Some(RolloutStage::Pending));
    let approved = node.change().cloned().unwrap();
    assert_eq!((approved.state, approved.attempts), (ChangeState::Approved, 1));
    node.status().finished_change = Some(approved.since);
    node.status().gpus.truncate(1);
    node.step(6);
    assert!(!node.has_taint());
    let stage = |node: &Drained, minutes| node.plan(RolloutPermit::Granted, &evicting(""), minutes).stage;
    assert_eq!(
        stage(&node, 15),
        Some(RolloutStage::Done),
        "the next drain has its pause"
    );
    assert_eq!(stage(&node, 16), Some(RolloutStage::Pending));
    node.carry_out(RolloutPermit::Granted, 16);
    node.step(21);
    assert_eq!(node.change().map(|change| change.attempts), Some(2));
}

#[test]
fn pods_of_a_gpu_that_cannot_change_are_not_evicted() {
    for phase in [
        "Blocked/Unhealthy",
        "Blocked/ModePending",
        "Failed/DriverError",
        "RebootRequired",
    ] {
        let mut node = Drained::new(&[]);
        node.report(phase, &["ml/a"], 1);
        let plan = node.plan(RolloutPermit::Granted, &evicting(""), 0);
        assert!(
            !matches!(plan.gpu_node, GpuNodeChange::Step { change: Some(_), .. }),
            "{phase}: {plan:?}"
        );
    }
    let mut node = begun(&["ml/a", "ml/b"]);
    let mut broken = node.status().gpus[0].clone();
    broken.uuid = "GPU-1".to_owned();
    let mig = broken.mig.as_mut().unwrap();
    (mig.phase, mig.reason) = (MigPhase::Blocked, Some(MigReason::Unhealthy));
    node.status().gpus.push(broken);
    node.status().waiting = vec![waiting("GPU-0", &["ml/a"]), waiting("GPU-1", &["ml/b"])];
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ml/a"]);
}

#[test]
fn taint_goes_once_the_node_needs_a_repair_or_a_reboot() {
    for phase in ["Failed/DriverError", "RebootRequired", "Blocked/ModePending"] {
        let mut node = begun(&["ml/a"]);
        node.report("AwaitingApproval", &[], 0);
        node.step(2);
        node.report("Applying", &[], 0);
        node.step(2);
        assert!(node.has_taint(), "{phase}");
        node.report(phase, &[], 0);
        node.step(3);
        node.step(3);
        assert!(!node.has_taint(), "{phase}");
    }
}

#[test]
fn monitor_that_would_come_straight_back_fails_the_drain_while_its_handle_is_open() {
    let mut daemon = monitor();
    daemon["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "dcgm", "uid": "u", "controller": true}]);
    daemon["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let mut node = begun(&["ml/a"]);
    node.reviewed = None;
    let plan = node.step(1);
    node.read_pods(&plan, &[pod("a"), daemon]);
    let plan = node.step(1);
    assert_eq!(node.evicted(&plan), ["ml/a"], "no handle is known");
    node.report("Blocked/InUse", &[], 0);
    let plan = node.step(2);
    assert!(node.evicted(&plan).is_empty());
    let message = node.obstacles();
    assert!(message.contains("ops/dcgm-1 (its DaemonSet tolerates"), "{message}");
}

#[test]
fn other_rules_for_monitors_hold_for_a_drain_under_way() {
    let mut node = begun(&["ml/a"]);
    node.reviewed = None;
    let plan = node.step(1);
    node.read_pods(&plan, &[pod("a"), monitor()]);
    node.report("Blocked/InUse", &[], 0);
    let mut edited = evicting("");
    edited.spec.drain.as_mut().unwrap().evict.clear();
    let plan = node.plan(RolloutPermit::Withheld, &edited, 1);
    assert!(
        node.evicted(&plan).is_empty() && plan.drain_work.review.is_some(),
        "{plan:?}"
    );
}
