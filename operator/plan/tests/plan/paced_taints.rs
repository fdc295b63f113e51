//! Taints with the effect NoExecute, which evict pods: they wait for a permit, and evict until no pod is left or a deadline ends.

use crate::world::{World, now, policy};
use gpunode_crds::{GpuNodePolicy, Reason, UNHEALTHY_TAINT};
use gpunode_plan::{
    NodeContext, NodeDrain, NodePlan, PolicyOutcome, PolicySet, RolloutPermit, RolloutStage, plan_node_with_permit,
};
use jiff::SignedDuration;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use serde_json::json;
use std::collections::BTreeSet;

fn reserved(more: &str) -> GpuNodePolicy {
    policy(
        "p",
        &format!(
            "{{nodeSelector: {{}}, labels: {{x: y}}, taints: [{{key: k, value: v, effect: NoExecute}}], rollout: {{progressDeadline: 5m}}{more}}}"
        ),
    )
}

/// Plans a node on which these policies may evict pods.
fn plan_with(world: &World, policies: &[GpuNodePolicy], permits: &[&str], drained: Option<&NodeDrain>) -> NodePlan {
    let permits: BTreeSet<String> = permits.iter().map(|name| (*name).to_owned()).collect();
    let facts = world.facts();
    let gpu_node = world.gpu_facts();
    let context = NodeContext::new(&facts, gpu_node.as_ref(), world.now)
        .drained(drained)
        .with_taint_permits(&permits);
    plan_node_with_permit(RolloutPermit::Withheld, &PolicySet::new(policies), context)
}

fn carry_out(world: &mut World, plan: &NodePlan) {
    json_patch::patch(&mut world.node, plan.patch.as_ref().unwrap()).unwrap();
}

fn text(plan: &NodePlan) -> String {
    plan.patch
        .as_ref()
        .map(|patch| json!(patch).to_string())
        .unwrap_or_default()
}

fn stage(plan: &NodePlan) -> Option<&RolloutStage> {
    plan.taint_stages.get("p")
}

#[test]
fn new_taint_waits_for_a_permit_and_labels_do_not() {
    let mut world = World::sample();
    let waiting = plan_with(&world, &[reserved("")], &[], None);
    assert_eq!(stage(&waiting), Some(&RolloutStage::Pending));
    assert!(waiting.awaits_taints() && !waiting.is_settled());
    assert!(text(&waiting).contains("/metadata/labels/x") && !text(&waiting).contains("/spec/taints"));
    carry_out(&mut world, &waiting);
    let waiting = plan_with(&world, &[reserved("")], &["other"], None);
    assert_eq!(
        (&waiting.patch, &waiting.outcomes["p"]),
        (&None, &PolicyOutcome::Updating)
    );
    assert!(!waiting.is_settled());

    let granted = plan_with(&world, &[reserved("")], &["p"], None);
    assert_eq!(stage(&granted), Some(&RolloutStage::Stepping));
    assert!(text(&granted).contains(r#""effect":"NoExecute""#), "{}", text(&granted));
}

#[test]
fn taint_evicts_until_no_pod_is_left_or_the_deadline_ends() {
    let mut world = World::sample();
    let granted = plan_with(&world, &[reserved("")], &["p"], None);
    carry_out(&mut world, &granted);
    world.wait(60);
    let evicting = plan_with(&world, &[reserved("")], &[], None);
    assert_eq!(
        (&evicting.patch, stage(&evicting), evicting.recheck),
        (
            &None,
            Some(&RolloutStage::Stepping),
            Some(now() + SignedDuration::from_mins(5))
        )
    );
    assert_eq!(evicting.outcomes["p"], PolicyOutcome::Ready);
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": []}})).unwrap();
    assert!(!evicting.drain.is_over(&[pod]) && evicting.drain.is_over(&[]));

    let drained = plan_with(&world, &[reserved("")], &[], Some(&evicting.drain));
    assert_eq!((&drained.patch, stage(&drained)), (&None, Some(&RolloutStage::Done)));
    assert!(drained.drain.is_empty() && drained.recheck.is_none());
    world.wait(240);
    let late = plan_with(&world, &[reserved("")], &[], None);
    assert_eq!((&late.patch, stage(&late)), (&None, Some(&RolloutStage::Done)));
    // A taint that is added again evicts again.
    let gone = plan_with(&world, &[], &[], None);
    carry_out(&mut world, &gone);
    let again = plan_with(&world, &[reserved("")], &["p"], Some(&evicting.drain));
    carry_out(&mut world, &again);
    let again = plan_with(&world, &[reserved("")], &[], Some(&evicting.drain));
    assert_eq!(stage(&again), Some(&RolloutStage::Stepping));
}

#[test]
fn other_value_is_a_new_taint_and_the_old_one_stays_until_then() {
    let mut world = World::sample();
    let first = plan_with(&world, &[reserved("")], &["p"], None);
    carry_out(&mut world, &first);
    world.wait(600);
    let other = policy(
        "p",
        "{nodeSelector: {}, taints: [{key: k, value: w, effect: NoExecute}]}",
    );
    let waiting = plan_with(&world, std::slice::from_ref(&other), &[], None);
    assert_eq!(stage(&waiting), Some(&RolloutStage::Pending));
    assert!(!text(&waiting).contains("/spec/taints"), "{}", text(&waiting));
    assert!(text(&waiting).contains(r#"\"policies\":[\"p\"]"#), "{}", text(&waiting));
    let granted = plan_with(&world, &[other], &["p"], None);
    assert!(text(&granted).contains("/spec/taints"), "{}", text(&granted));
}

#[test]
fn taint_of_the_same_key_stays_until_the_new_one_comes() {
    let mut world = World::sample();
    let soft = policy(
        "p",
        "{nodeSelector: {}, taints: [{key: k, value: v, effect: NoSchedule}]}",
    );
    world.converge(&[soft]);
    let waiting = plan_with(&world, &[reserved("")], &[], None);
    assert!(!text(&waiting).contains("/spec/taints"), "{}", text(&waiting));
    let granted = plan_with(&world, &[reserved("")], &["p"], None);
    carry_out(&mut world, &granted);
    let taints = world.node["spec"]["taints"].as_array().unwrap();
    let effects: Vec<_> = taints
        .iter()
        .filter(|it| it["key"] == "k")
        .map(|it| &it["effect"])
        .collect();
    assert_eq!(effects, ["NoExecute"]);
}

#[test]
fn new_nodes_get_the_taint_at_once_unless_the_policy_changed_since() {
    let created = |seconds: i64| Time(now() - SignedDuration::from_secs(seconds));
    for (age, policy_age, stage_of) in [
        (60, 3600, RolloutStage::Done),
        (60, 30, RolloutStage::Pending),
        (601, 3600, RolloutStage::Pending),
    ] {
        let mut world = World::sample();
        world.node["metadata"]["creationTimestamp"] = json!(created(age));
        let mut policy = reserved("");
        policy.metadata.creation_timestamp = Some(created(policy_age));
        let plan = plan_with(&world, &[policy.clone()], &[], None);
        assert_eq!(stage(&plan), Some(&stage_of), "{age} {policy_age}");
        assert_eq!(text(&plan).contains("/spec/taints"), stage_of == RolloutStage::Done);

        // Whoever changed only the status changed nothing that nodes get.
        let manager = |subresource: &str| json!({"manager": "m", "time": created(1), "subresource": subresource});
        policy.metadata.managed_fields = serde_json::from_value(json!([manager("status")])).unwrap();
        assert_eq!(stage(&plan_with(&world, &[policy.clone()], &[], None)), Some(&stage_of));
        policy.metadata.managed_fields = serde_json::from_value(json!([manager("")])).unwrap();
        let edited = plan_with(&world, &[policy], &[], None);
        assert_eq!(stage(&edited), Some(&RolloutStage::Pending));
    }
}

#[test]
fn node_that_is_down_gets_the_taint_at_its_turn_once_it_is_back() {
    let mut world = World::sample();
    world.node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    let plan = plan_with(&world, &[reserved("")], &[], None);
    assert_eq!(stage(&plan), Some(&RolloutStage::Outside));
    assert!(!text(&plan).contains("/spec/taints"));
    carry_out(&mut world, &plan);
    let down = plan_with(&world, &[reserved("")], &[], None);
    assert!(
        matches!(
            &down.outcomes["p"],
            PolicyOutcome::Failed {
                reason: Reason::NodeNotReady,
                ..
            }
        ),
        "nobody waits for it"
    );
}

#[test]
fn taint_that_somebody_removed_is_restored_without_a_permit() {
    let mut world = World::sample();
    let granted = plan_with(&world, &[reserved("")], &["p"], None);
    carry_out(&mut world, &granted);
    let taints = world.node["spec"]["taints"].as_array_mut().unwrap();
    taints.retain(|taint| taint["key"] != "k");
    let restored = plan_with(&world, &[reserved("")], &[], None);
    assert!(text(&restored).contains("/spec/taints"), "{}", text(&restored));
}

#[test]
fn taint_of_unhealthy_nodes_waits_for_nobody() {
    let watching = policy(
        "p",
        "{nodeSelector: {}, unhealthyTaint: {effect: NoExecute, after: 0s, minHealthy: 64}}",
    );
    let mut world = World::sample();
    let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {"gpus": [{"index": 0, "uuid": "GPU-0", "product": "Tesla-T4", "memoryMiB": 1}]}});
    world.gpu_node = Some(serde_json::from_value(gpu_node).unwrap());
    let plan = plan_with(&world, &[watching], &[], None);
    assert!(text(&plan).contains(UNHEALTHY_TAINT), "{}", text(&plan));
    assert!(plan.taint_stages.is_empty());
}

#[test]
fn taint_that_somebody_else_owns_is_a_conflict_and_waits_for_nothing() {
    let mut world = World::sample();
    world.node["spec"]["taints"]
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "k", "value": "theirs", "effect": "NoExecute"}));
    let plan = plan_with(&world, &[reserved("")], &[], None);
    assert_eq!((plan.conflicts.len(), stage(&plan)), (1, Some(&RolloutStage::Done)));
    let waiting = plan_with(&world, &[reserved(", onConflict: TakeOver")], &[], None);
    assert_eq!(stage(&waiting), Some(&RolloutStage::Pending));
    assert!(!text(&waiting).contains("/spec/taints"));
}

#[test]
fn preview_names_a_taint_that_would_wait() {
    let world = World::sample();
    let plan = plan_with(&world, &[reserved(", mode: Preview")], &[], None);
    let keys: Vec<_> = plan.previews["p"].set_taints.iter().map(|taint| &taint.key).collect();
    assert_eq!(keys, ["k"]);
    assert!(plan.taint_stages.is_empty());
}

#[test]
fn each_policy_needs_a_permit_of_its_own() {
    let other = policy("q", "{nodeSelector: {}, taints: [{key: other.k, effect: NoExecute}]}");
    let plan = plan_with(&World::sample(), &[reserved(""), other], &["q"], None);
    assert_eq!(
        (stage(&plan), plan.taint_stages.get("q")),
        (Some(&RolloutStage::Pending), Some(&RolloutStage::Stepping))
    );
    assert!(text(&plan).contains("other.k") && !text(&plan).contains(r#""key":"k""#));
}
