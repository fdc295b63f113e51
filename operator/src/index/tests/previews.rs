//! Policies in mode Preview.

use super::*;

const PREVIEW: &str = "{mode: Preview, nodeSelector: {}, labels: {x: y}}";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn updating(scene: &Scene) -> i32 {
    scene.index.node_counts()[0].1.updating
}

#[test]
fn edit_of_a_preview_plans_no_node_and_its_status_waits_for_the_pass() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    let policy = scene.policy("p", PREVIEW);
    let message = IndexMessage::Policies(WatchUpdate::applied(policy.into()));
    scene.go(|index, now, effects| index.apply(message, now, effects));
    let queued = scene.queued();
    assert!(
        queued.contains(&&WorkKey::Previews) && !queued.contains(&&WorkKey::Sweep),
        "{queued:?}"
    );
    assert!(scene.due_nodes().is_empty());
    let plan =
        |scene: &mut Scene, key: &WorkKey| scene.go(|index, now, effects| index.planned_write(key, now, effects));
    assert_eq!(plan(&mut scene, &status("p")), None);
    assert_eq!(plan(&mut scene, &WorkKey::Previews), None);
    assert_eq!(scene.queued(), [&status("p")]);
    let Some(PlannedWrite::PolicyStatus(write)) = plan(&mut scene, &status("p")) else {
        panic!("the pass is over")
    };
    assert_eq!(write.status.preview.len(), 1);
}

#[test]
fn preview_that_is_edited_faster_than_its_pass_ends_has_a_status_of_the_spec_before() {
    let mut scene = Scene::synced();
    for index in 0..20 {
        scene.set_node(&format!("n-{index:02}"), &json!({}));
    }
    let mut observed = Vec::new();
    for generation in 1..=20 {
        let mut policy = scene.policy("p", PREVIEW);
        policy.metadata.generation = Some(generation);
        if let Some(known) = scene.index.objects.policies.get("p") {
            policy.status.clone_from(&known.status);
        }
        let message = IndexMessage::Policies(WatchUpdate::applied(policy.into()));
        scene.go(|index, now, effects| index.apply(message, now, effects));
        scene.go(|index, now, effects| index.planned_write(&WorkKey::Previews, now, effects));
        if let Some(write) = scene.index.policy_status_write("p", Timestamp::UNIX_EPOCH) {
            assert!(write.status.nodes.as_ref().is_some_and(|nodes| nodes.updating == 20));
            let of_conditions = write.status.conditions.iter().map(|it| it.observed_generation);
            assert!(of_conditions.eq([write.status.observed_generation; 6]));
            observed.extend(write.status.observed_generation);
            scene.write_status("p");
        }
    }
    // Four turns for each pass.
    assert_eq!(observed, [1, 5, 9, 13, 17]);
    for _ in 0..4 {
        scene.go(|index, now, effects| index.planned_write(&WorkKey::Previews, now, effects));
    }
    scene.write_status("p");
    let status = scene.index.objects.policies.get("p").unwrap().status.clone();
    assert_eq!(status.unwrap().observed_generation, Some(20));
}

#[test]
fn event_of_a_node_computes_no_preview_and_asks_for_a_pass_after_a_pause() {
    let mut scene = Scene::synced();
    scene.set_policy("p", PREVIEW);
    scene.set_node("a", &json!({}));
    assert_eq!(updating(&scene), 1, "the first change waits for nothing");
    let facts = scene.facts("b", &json!({}));
    scene.apply_at(at(3), IndexMessage::Nodes(WatchUpdate::applied(facts)));
    assert_eq!(updating(&scene), 1);
    let pass = scene
        .effects
        .queued
        .iter()
        .find(|queued| queued.key == WorkKey::Previews);
    assert_eq!(pass.and_then(|queued| queued.at), Some(at(10)));
    let facts = scene.facts("c", &json!({}));
    scene.apply_at(at(4), IndexMessage::Nodes(WatchUpdate::applied(facts)));
    assert!(!scene.queued().contains(&&WorkKey::Previews), "one pass is for both");
    scene.go(|index, _, effects| index.planned_write(&WorkKey::Previews, at(10), effects));
    scene.settle(at(10));
    assert_eq!(updating(&scene), 3);
}

#[test]
fn policy_that_is_enforced_again_is_counted_by_the_plans_of_nodes() {
    let mut scene = Scene::synced();
    scene.set_node("n", &json!({}));
    scene.set_policy("p", PREVIEW);
    scene.set_policy("p", "{nodeSelector: {}, labels: {x: y}}");
    assert_eq!((scene.due_nodes(), updating(&scene)), (vec!["n"], 1));
    scene.write_node("n");
    scene.set_policy("p", PREVIEW);
    assert_eq!(scene.due_nodes(), ["n"], "what it wrote goes");
    scene.write_node("n");
    scene.settle(at(10));
    assert_eq!(updating(&scene), 1);
}
