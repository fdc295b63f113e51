//! Another policy takes a node over: the old agent serves until the new one takes over.

use crate::{
    governed::{configuration, plan_at, world, written},
    world::{World, policy},
};
use gpunode_crds::{GpuNodePolicy, Reason};
use gpunode_plan::{AgentImages, NodeContext, PolicyOutcome, PolicySet, RolloutPermit, RolloutStage, explain};

fn old() -> GpuNodePolicy {
    policy("old", "{nodeSelector: {}, devicePlugin: {}}")
}

fn new() -> GpuNodePolicy {
    policy(
        "new",
        "{priority: 1, nodeSelector: {}, devicePlugin: {passDeviceSpecs: true}, rollout: {progressDeadline: 5m}}",
    )
}

fn placed(world: &World) -> Vec<&str> {
    let labels = world.node["metadata"]["labels"].as_object().into_iter().flatten();
    labels
        .filter_map(|(key, _)| key.strip_prefix("gpunode.dev/policy."))
        .collect()
}

fn serve(world: &mut World, policy: &GpuNodePolicy, in_force: &GpuNodePolicy) {
    let status = world.gpu_node.as_mut().unwrap().status.as_mut().unwrap();
    status.agent.as_mut().unwrap().policy.clone_from(&policy.metadata.name);
    status.config_hash = Some(configuration(in_force).hash);
}

/// Returns a node of policy `old` that policy `new` takes over.
fn taken() -> World {
    let mut world = world(&old(), None, &old(), true);
    serve(&mut world, &old(), &old());
    let plan = world.converge(&[new(), old()]);
    written(world, &plan)
}

#[test]
fn node_has_the_labels_of_both_policies_until_the_new_agent_has_taken_over() {
    let mut world = taken();
    assert_eq!(placed(&world), ["new", "old"]);
    serve(&mut world, &old(), &new());
    assert_eq!(world.converge(&[new(), old()]).patch, None);
    serve(&mut world, &new(), &new());
    world.converge(&[new(), old()]);
    assert_eq!(placed(&world), ["new"]);
    assert!(!world.record().unwrap().contains("policy.old"), "{:?}", world.record());
    assert_eq!(world.plan(&[new(), old()]).outcomes["new"], PolicyOutcome::Ready);
}

#[test]
fn agent_that_is_there_stays_while_its_configuration_waits_for_the_turn_of_the_node() {
    let mut world = taken();
    serve(&mut world, &new(), &new());
    assert_eq!(placed(&world), ["new", "old"]);
    let elsewhere = policy(
        "new",
        "{nodeSelector: {matchLabels: {pool: b}}, devicePlugin: {passDeviceSpecs: true}}",
    );
    let plan = plan_at(RolloutPermit::Withheld, &world, &[elsewhere, old()], 1);
    assert!(plan.waits);
    if let Some(patch) = &plan.patch {
        json_patch::patch(&mut world.node, patch).unwrap();
    }
    assert_eq!(placed(&world), ["new", "old"]);
}

#[test]
fn agents_of_a_policy_that_is_gone_or_runs_none_go_at_once() {
    let without = policy("old", "{nodeSelector: {}, labels: {a: b}}");
    let preview = policy("old", "{mode: Preview, nodeSelector: {}, devicePlugin: {}}");
    for policies in [vec![new()], vec![new(), without], vec![new(), preview]] {
        let mut world = taken();
        world.converge(&policies);
        assert_eq!(placed(&world), ["new"], "{policies:?}");
    }
    let elsewhere = policy("old", "{nodeSelector: {matchLabels: {pool: b}}, devicePlugin: {}}");
    let mut world = taken();
    world.converge(&[new(), elsewhere.clone()]);
    assert_eq!(placed(&world), ["new", "old"], "it has not handed over yet");
    world.converge(&[elsewhere]);
    assert_eq!(placed(&world), Vec::<&str>::new(), "nobody follows");
}

#[test]
fn agent_of_a_policy_with_a_refused_image_goes_to_no_further_node() {
    let refused = policy("old", "{nodeSelector: {}, devicePlugin: {}, image: 'evil/agent:1'}");
    let images = AgentImages::of_agent("example.com/agent:1");
    let set = PolicySet::new([&refused]).with_agent_images(Some(images));
    let mut configured = world(&old(), None, &old(), true);
    configured.converge_with(&set);
    assert_eq!(placed(&configured), ["old"]);
    let mut other = World::sample();
    let plan = other.converge_with(&set);
    assert_eq!(placed(&other), Vec::<&str>::new());
    assert_eq!(other.label("gpunode.dev/governed"), None, "discovery runs there");
    let outcome = &plan.outcomes["old"];
    assert!(
        matches!(
            outcome,
            PolicyOutcome::Failed {
                reason: Reason::InvalidSpec,
                ..
            }
        ),
        "{outcome:?}"
    );
}

#[test]
fn agent_that_never_takes_over_stops_the_rollout_and_is_named_as_the_cause() {
    let mut world = taken();
    serve(&mut world, &old(), &new());
    let policies = [new(), old()];
    let plan = plan_at(RolloutPermit::Granted, &world, &policies, 4);
    assert_eq!(
        (plan.stage, &plan.outcomes["new"]),
        (Some(RolloutStage::Stepping), &PolicyOutcome::Updating)
    );
    let plan = plan_at(RolloutPermit::Granted, &world, &policies, 5);
    let why = "not in force after 5m: the agent of policy old still serves the node; the agent of policy new has not taken over; see its pod on n";
    assert_eq!(
        plan.outcomes["new"],
        PolicyOutcome::failed(Reason::ProgressDeadlineExceeded, why)
    );
    assert!(matches!(plan.stage, Some(RolloutStage::Stopped(_))), "{:?}", plan.stage);
}

#[test]
fn plan_for_people_foretells_the_end_of_the_hand_over() {
    let plan = plan_at(RolloutPermit::Simulated, &taken(), &[new(), old()], 0);
    assert!(format!("{:?}", plan.patch).contains("policy.old"), "{:?}", plan.patch);
}

#[test]
fn end_of_a_hand_over_is_no_change_of_a_policy_that_changes_nothing() {
    let harmless = policy("harmless", "{mode: Preview, nodeSelector: {}}");
    let plan = plan_at(RolloutPermit::Withheld, &taken(), &[new(), old(), harmless], 0);
    assert_eq!(
        (plan.outcomes.get("harmless"), plan.previews.len()),
        (Some(&PolicyOutcome::Ready), 0),
        "{:?}",
        plan.previews
    );
}

#[test]
fn explanation_says_why_the_agent_of_another_policy_is_still_there() {
    let world = taken();
    let set = PolicySet::new(&[new(), old()]);
    let explanation = explain(
        &set,
        NodeContext::new(&world.facts(), world.gpu_facts().as_ref(), world.now),
    );
    let entry = explanation
        .entries
        .iter()
        .find(|entry| entry.key == "gpunode.dev/policy.old")
        .unwrap();
    let source = serde_json::to_value(&entry.source).unwrap();
    assert_eq!(
        source["why"],
        "its agent serves until the agent of policy new takes over"
    );
}
