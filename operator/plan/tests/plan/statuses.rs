//! The status of a policy.

use crate::world::{World, now, policy};
use gpunode_crds::{GpuNodePolicyStatus, NodeWaiting, Reason};
use gpunode_plan::{
    AgentUpdate, NodeContext, PolicyNodeStatus, PolicyOutcome, PolicySet, PolicyTally, RolloutStage, explain,
    policy_status,
};
use jiff::SignedDuration;

fn status(
    spec: &str,
    outcomes: &[PolicyOutcome],
    before: Option<&GpuNodePolicyStatus>,
    seconds: i64,
) -> GpuNodePolicyStatus {
    let policies = PolicySet::new(&[policy("p", spec)]);
    let mut tally = PolicyTally::default();
    for (index, outcome) in outcomes.iter().enumerate() {
        tally.add(&format!("node-{index}"), &outcome.clone().into());
    }
    policy_status(
        policies.get("p").unwrap(),
        &tally,
        &AgentUpdate::default(),
        before,
        now() + SignedDuration::from_secs(seconds),
    )
}

fn conditions(status: &GpuNodePolicyStatus) -> Vec<String> {
    let conditions = status.conditions.iter();
    conditions
        .map(|it| format!("{}={} {}: {}", it.type_, it.status, it.reason, it.message))
        .collect()
}

#[test]
fn no_match_is_ready() {
    let status = status("{nodeSelector: {}}", &[], None, 0);
    assert_eq!(
        conditions(&status),
        [
            "Ready=True NoMatchingNodes: no node matches",
            "Reconciling=False UpToDate: no change is under way",
            "Stalled=False UpToDate: nothing stops the policy",
            "Conflict=False NoConflict: no other owner is in the way",
            "Degraded=False NodesHealthy: no matched node failed",
            "Waiting=False NothingWaits: no device waits for a pod to end",
        ]
    );
    assert_eq!(status.observed_generation, Some(1));
}

#[test]
fn a_paused_policy_is_ready_whatever_its_nodes_do() {
    let outcomes = [
        PolicyOutcome::Ready,
        PolicyOutcome::Updating,
        PolicyOutcome::failed(Reason::NodeNotReady, "m"),
    ];
    let status = status("{mode: Paused, nodeSelector: {}}", &outcomes, None, 0);
    let conditions = conditions(&status);
    assert_eq!(
        conditions[0],
        "Ready=True Paused: 3 nodes stay as they are; no further node is added"
    );
    assert_eq!(conditions[1], "Reconciling=False UpToDate: no change is under way");
}

#[test]
fn broken_nodes_show_and_do_not_hold_ready() {
    let broken = [
        Reason::NodeNotReady,
        Reason::DriverNotFound,
        Reason::DriverFailed,
        Reason::AgentNotReporting,
        Reason::Registering,
        Reason::MigInstancesUnequal,
        Reason::MpsUnsupported,
    ];
    for reason in broken {
        let status = status(
            "{nodeSelector: {}}",
            &[PolicyOutcome::Ready, PolicyOutcome::failed(reason, "m")],
            None,
            0,
        );
        let conditions = conditions(&status);
        assert_eq!(conditions[0], "Ready=True InForce: in force on 1 of 2 matched nodes");
        let degraded = format!(
            "Degraded=True NodesFailed: 1 of 2 matched nodes failed; node-1: {}: m",
            reason.as_str()
        );
        assert_eq!(conditions[4], degraded);
    }
}

#[test]
fn healthy_nodes_on_which_somebody_has_to_act_hold_ready() {
    let outcomes = [
        PolicyOutcome::Ready,
        PolicyOutcome::failed(Reason::ConfigurationRejected, "resources[0]: no"),
        PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "label a is \"x\", not \"y\""),
    ];
    let status = status("{nodeSelector: {}}", &outcomes, None, 0);
    assert_eq!(
        conditions(&status),
        [
            "Ready=False ConfigurationRejected: in force on 1 of 3 matched nodes; not on node-1: resources[0]: no",
            "Reconciling=False UpToDate: no change is under way",
            "Stalled=False UpToDate: nothing stops the policy",
            "Conflict=True KeyOwnedByAnother: 1 of 3 matched nodes conflict; node-2: label a is \"x\", not \"y\"",
            "Degraded=True NodesFailed: 1 of 3 matched nodes failed; node-1: ConfigurationRejected: resources[0]: no",
            "Waiting=True ConfigurationRejected: in force on 1 of 3 matched nodes; not on node-1: resources[0]: no",
        ]
    );
    assert_eq!(
        status.failures.iter().map(|it| it.node.as_str()).collect::<Vec<_>>(),
        ["node-1", "node-2"]
    );
}

#[test]
fn first_word_of_ready_is_what_somebody_has_to_mend() {
    for (outcome, reason) in [
        (PolicyOutcome::conflicted(Reason::EqualPriority, "m"), "EqualPriority"),
        (
            PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m"),
            "KeyOwnedByAnother",
        ),
        (PolicyOutcome::failed(Reason::WriteFailed, "m"), "WriteFailed"),
        (PolicyOutcome::failed(Reason::ServedByAnother, "m"), "ServedByAnother"),
        (PolicyOutcome::failed(Reason::RecordUnreadable, "m"), "RecordUnreadable"),
    ] {
        let status = status("{nodeSelector: {}}", &[PolicyOutcome::Updating, outcome], None, 0);
        assert_eq!(
            conditions(&status)[..2],
            [
                format!("Ready=False {reason}: in force on 0 of 2 matched nodes; not on node-1: m"),
                "Reconciling=True NodesUpdating: 1 of 2 matched nodes are updating".to_owned(),
            ]
        );
    }
}

#[test]
fn updating_nodes_hold_ready() {
    let status = status(
        "{nodeSelector: {}}",
        &[PolicyOutcome::Ready, PolicyOutcome::Updating],
        None,
        0,
    );
    assert_eq!(
        conditions(&status)[..2],
        [
            "Ready=False NodesUpdating: 1 of 2 matched nodes are updating",
            "Reconciling=True NodesUpdating: 1 of 2 matched nodes are updating",
        ]
    );
}

#[test]
fn devices_that_wait_for_their_holders_are_named_and_do_not_hold_ready() {
    let policies = PolicySet::new(&[policy("p", "{nodeSelector: {}}")]);
    let waiting = NodeWaiting {
        node: "b".to_owned(),
        device: "GPU-1".to_owned(),
        pods: vec!["ns/job".to_owned()],
        message: None,
    };
    let mut tally = PolicyTally::default();
    tally.add("a", &PolicyOutcome::Ready.into());
    tally.add(
        "b",
        &PolicyNodeStatus {
            waiting: vec![waiting.clone()],
            ..PolicyOutcome::Ready.into()
        },
    );
    let status = policy_status(policies.get("p").unwrap(), &tally, &AgentUpdate::default(), None, now());
    let ready =
        "Ready=True InForce: in force on 2 of 2 matched nodes; on 1 of them, devices wait, as condition Waiting says";
    assert_eq!(
        (conditions(&status)[0].as_str(), status.waiting),
        (ready, vec![waiting])
    );
}

#[test]
fn nodes_on_which_pods_get_no_gpu_make_a_policy_degraded_and_stay_ready() {
    let policies = PolicySet::new(&[policy("p", "{nodeSelector: {}}")]);
    let refused = PolicyNodeStatus {
        gpu_refusal: Some("CDI is off".to_owned()),
        ..PolicyOutcome::Ready.into()
    };
    let mut tally = PolicyTally::default();
    tally.add("a", &PolicyOutcome::Ready.into());
    tally.add("b", &refused);
    let of = |tally: &PolicyTally| {
        conditions(&policy_status(
            policies.get("p").unwrap(),
            tally,
            &AgentUpdate::default(),
            None,
            now(),
        ))
    };
    assert_eq!(of(&tally)[0], "Ready=True InForce: in force on 2 of 2 matched nodes");
    assert_eq!(
        of(&tally)[4],
        "Degraded=True PodsGetNoGpu: pods get no GPU on 1 of 2 matched nodes; b: CDI is off"
    );
    tally.add("c", &PolicyOutcome::failed(Reason::NodeNotReady, "m").into());
    assert_eq!(
        of(&tally)[4],
        "Degraded=True NodesFailed: 1 of 3 matched nodes failed; c: NodeNotReady: m; pods get no GPU on 1 of 3 matched \
         nodes; b: CDI is off"
    );
    tally.remove("b", &PolicyOutcome::Ready);
    assert!(!of(&tally)[4].contains("no GPU"), "{}", of(&tally)[4]);
}

#[test]
fn refused_spec_is_stalled() {
    let spec = "{nodeSelector: {}, devicePlugin: {resources: [{name: nodomain}]}}";
    let status = status(spec, &[PolicyOutcome::failed(Reason::InvalidSpec, "m")], None, 0);
    let conditions = conditions(&status);
    assert!(
        conditions[0].starts_with("Ready=False InvalidSpec: spec.devicePlugin.resources[0].name"),
        "{conditions:?}"
    );
    assert!(
        conditions[2].starts_with("Stalled=True InvalidSpec: spec.devicePlugin.resources[0].name"),
        "{conditions:?}"
    );
}

#[test]
fn preview_is_ready_and_says_how_much_would_change() {
    let status = status(
        "{mode: Preview, nodeSelector: {}}",
        &[PolicyOutcome::Ready, PolicyOutcome::Updating],
        None,
        0,
    );
    assert_eq!(
        conditions(&status)[..2],
        [
            "Ready=True Preview: 1 of 2 matched nodes would change; nothing is written",
            "Reconciling=False UpToDate: no change is under way",
        ]
    );
}

#[test]
fn transition_times_move_only_with_the_status() {
    let spec = "{nodeSelector: {}}";
    let first = status(spec, &[PolicyOutcome::Updating], None, 0);
    assert_eq!(status(spec, &[PolicyOutcome::Updating], Some(&first), 60), first);
    let later = status(spec, &[PolicyOutcome::Ready], Some(&first), 60);
    let seconds: Vec<_> = later
        .conditions
        .iter()
        .map(|it| it.last_transition_time.0.as_second() - now().as_second())
        .collect();
    assert_eq!(seconds, [60, 60, 0, 0, 0, 60]);
}

/// Returns the conditions of a policy with nodes at these stages.
fn of_rollout(stages: &[(&str, RolloutStage)]) -> Vec<String> {
    let policies = PolicySet::new(&[policy("p", "{nodeSelector: {}}")]);
    let mut tally = PolicyTally::default();
    for (node, stage) in stages {
        let outcome = match stage {
            RolloutStage::Done => PolicyOutcome::Ready,
            RolloutStage::Stopped(_) => PolicyOutcome::failed(Reason::MemoryBelowUnit, "m"),
            RolloutStage::Outside
            | RolloutStage::Held
            | RolloutStage::AwaitsAgent
            | RolloutStage::Pending
            | RolloutStage::Stepping => PolicyOutcome::Updating,
        };
        tally.add(
            node,
            &PolicyNodeStatus {
                stage: Some(stage.clone()),
                ..outcome.into()
            },
        );
    }
    conditions(&policy_status(
        policies.get("p").unwrap(),
        &tally,
        &AgentUpdate::default(),
        None,
        now(),
    ))
}

#[test]
fn rollout_says_how_far_it_is() {
    let stages = [
        ("a", RolloutStage::Done),
        ("b", RolloutStage::Done),
        ("c", RolloutStage::Stepping),
        ("d", RolloutStage::Pending),
    ];
    let message = "2 of 4 nodes have the new configuration; c is changing";
    assert_eq!(
        of_rollout(&stages)[..3],
        [
            format!("Ready=False NodesUpdating: {message}"),
            format!("Reconciling=True NodesUpdating: {message}"),
            "Stalled=False UpToDate: nothing stops the policy".to_owned(),
        ]
    );
}

#[test]
fn stopped_rollout_is_stalled_and_nothing_is_under_way() {
    let stages = [
        ("a", RolloutStage::Done),
        ("b", RolloutStage::Stopped("MemoryBelowUnit: m".to_owned())),
        ("c", RolloutStage::Pending),
    ];
    let message = "stopped: node b failed: MemoryBelowUnit: m; no other node changes until the policy's spec changes; \
                 1 of 3 nodes has the new configuration";
    assert_eq!(
        of_rollout(&stages)[..3],
        [
            format!("Ready=False RolloutStopped: {message}"),
            "Reconciling=False UpToDate: no change is under way".to_owned(),
            format!("Stalled=True RolloutStopped: {message}"),
        ]
    );
}

#[test]
fn agents_that_are_replaced_hold_ready_and_those_that_never_are_stop_it() {
    let policies = PolicySet::new(&[policy("p", "{nodeSelector: {}, devicePlugin: {}}")]);
    let conditions_with = |ready: usize, failed: usize, agents: &AgentUpdate| {
        let mut tally = PolicyTally::default();
        let outcomes = std::iter::repeat_n(PolicyOutcome::Ready, ready);
        let failures = std::iter::repeat_n(PolicyOutcome::failed(Reason::NodeNotReady, "m"), failed);
        for (index, outcome) in outcomes.chain(failures).enumerate() {
            let stage = if outcome == PolicyOutcome::Ready {
                RolloutStage::Done
            } else {
                RolloutStage::Outside
            };
            tally.add(
                &format!("node-{index}"),
                &PolicyNodeStatus {
                    stage: Some(stage),
                    ..outcome.into()
                },
            );
        }
        let status = policy_status(policies.get("p").unwrap(), &tally, agents, None, now());
        conditions(&status)[..3].to_vec()
    };
    let behind = |behind, is_late| AgentUpdate {
        behind,
        waited_for: behind,
        all: 4,
        is_late,
        ..AgentUpdate::default()
    };
    assert_eq!(
        conditions_with(4, 0, &behind(3, false)),
        [
            "Ready=False NodesUpdating: 1 of 4 agents is updated; the old ones serve until then",
            "Reconciling=True NodesUpdating: 1 of 4 agents is updated; the old ones serve until then",
            "Stalled=False UpToDate: nothing stops the policy",
        ]
    );
    let why = "no agent has taken over in the last 10m: 1 of 4 agents is updated; the old ones serve until then; see the \
               pods of DaemonSet gpunode-agent-p that are not Ready";
    assert_eq!(
        conditions_with(4, 0, &behind(3, true)),
        [
            format!("Ready=False RolloutStopped: {why}"),
            "Reconciling=False UpToDate: no change is under way".to_owned(),
            format!("Stalled=True RolloutStopped: {why}"),
        ]
    );
    let nobody_waits = AgentUpdate {
        waited_for: 0,
        ..behind(1, false)
    };
    assert_eq!(
        conditions_with(3, 1, &nobody_waits)[0],
        "Ready=True InForce: in force on 3 of 4 matched nodes; 1 agent is not updated",
        "one is down"
    );
    let refused = AgentUpdate {
        refusal: Some("update daemonset d: no".to_owned()),
        ..AgentUpdate::default()
    };
    assert_eq!(
        conditions_with(4, 0, &refused)[0],
        "Ready=False WriteFailed: update daemonset d: no"
    );
}

#[test]
fn a_policy_that_loses_keys_to_a_higher_priority_counts_the_nodes_names_key_and_winner_and_stays_ready() {
    let high = policy(
        "high",
        "{priority: 1, nodeSelector: {}, labels: {a: high}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let policies = |rest: &str| {
        let low = format!("{{nodeSelector: {{}}, labels: {{a: low{rest}}}, devicePlugin: {{}}}}");
        [policy("low", &low), high.clone()]
    };
    for (rest, kept) in [("", 0), (", b: low", 1)] {
        let policies = policies(rest);
        let mut world = World::sample();
        world.converge(&policies);
        let set = PolicySet::new(&policies);
        let mut tally = PolicyTally::default();
        tally.add("n", &world.plan(&policies).policy_statuses_after(None)["low"]);
        let status = policy_status(set.get("low").unwrap(), &tally, &AgentUpdate::default(), None, now());
        let expected = format!(
            "Ready=True InForce: in force on {kept} of 1 matched nodes; overridden on n: label a by policy high (priority \
             1) and 1 more key"
        );
        assert_eq!(conditions(&status)[0], expected);
        let counts = status.nodes.unwrap();
        assert_eq!((counts.matched, counts.ready, counts.overridden), (1, 1, 1));
        let explained = explain(&set, NodeContext::new(&world.facts(), None, world.now));
        let lost = explained
            .policies
            .iter()
            .find(|it| it.name == "low")
            .unwrap()
            .overridden
            .clone();
        assert_eq!(
            lost.as_deref(),
            Some("label a by policy high (priority 1) and 1 more key")
        );
    }
}
