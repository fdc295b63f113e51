use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

fn status(hash: &str, second: i64) -> GpuNodeStatus {
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: "True".to_owned(),
        reason: "ConfigurationInForce".to_owned(),
        message: String::new(),
        last_transition_time: Time(Timestamp::from_second(second).unwrap()),
        observed_generation: None,
    };
    GpuNodeStatus { config_hash: Some(hash.to_owned()), conditions: vec![ready], ..GpuNodeStatus::default() }
}

fn object(version: &str, status: Value) -> SeenGpuNode {
    let mut object = SeenGpuNode::new("a", &ApiResource::erase::<GpuNode>(&()), GpuNodeSpec::default());
    object.metadata.resource_version = Some(version.to_owned());
    object.status = Some(status);
    object
}

/// A status written over version 1, which made version 2.
fn written(hash: &str) -> Written {
    Written { status: status(hash, 5), over: Some("1".to_owned()), version: Some("2".to_owned()) }
}

fn write(written: Option<&Written>, wanted: &str, object: &SeenGpuNode) -> Option<GpuNodeStatus> {
    needed(written, status(wanted, 0), object, Timestamp::from_second(9).unwrap())
}

#[test]
fn what_the_object_says_already_is_not_written() {
    let live = object("1", json!(status("one", 5)));
    assert_eq!(write(None, "one", &live), None);
    assert_eq!(write(None, "two", &live), Some(status("two", 5)), "the condition has not changed");
    assert_eq!(write(None, "one", &object("1", json!({}))), Some(status("one", 9)));
}

#[test]
fn what_somebody_changed_is_written_again() {
    let edited = object("3", json!({"configHash": "zero"}));
    assert_eq!(write(Some(&written("one")), "one", &edited), Some(status("one", 9)));
}

#[test]
fn what_the_api_server_made_of_a_status_is_left_alone() {
    let pruned = object("2", json!({}));
    assert_eq!(write(Some(&written("one")), "one", &pruned), None);
    assert!(write(Some(&written("one")), "two", &pruned).is_some());
}

#[test]
fn what_the_watch_has_not_brought_yet_is_not_written_again() {
    let before = object("1", json!(status("zero", 5)));
    assert_eq!(write(Some(&written("one")), "one", &before), None);
    assert!(write(Some(&written("one")), "two", &before).is_some(), "the report changed");
}

#[test]
fn a_status_of_a_newer_agent_is_replaced() {
    let newer = object("1", json!({"agent": {"mode": "Telepathy"}}));
    assert_eq!(write(None, "one", &newer), Some(status("one", 9)));
}
