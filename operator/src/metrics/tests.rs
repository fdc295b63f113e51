use super::*;
use gpunode_crds::ConditionType;
use gpunode_docs::{documented_metrics, exposed_metrics};
use std::time::Duration;

/// The generated list of all metrics.
const DOCUMENT: &str = include_str!("../../../docs/reference/metrics.md");

fn check(metrics: &OperatorMetrics, lines: &[&str]) {
    let text = metrics.render();
    for line in lines {
        assert!(text.lines().any(|of| of == *line), "{line} is not in {text}");
    }
}

/// Metrics of which each has a value.
fn complete() -> OperatorMetrics {
    let metrics = OperatorMetrics::new();
    metrics.reconciled(WorkKind::Node);
    metrics.wrote(WorkKind::Node);
    metrics.failed(WorkKind::Node);
    metrics.writes.planned(WorkKind::Node, Duration::from_micros(200));
    metrics.writes.finished(WorkKind::Node, Duration::from_millis(20));
    metrics.queue.waited(WorkClass::Ordinary, Duration::from_millis(20));
    metrics.queue.retried(RetryReason::Conflict);
    metrics.queue.set(QueueNumbers::default());
    metrics.policies.set_nodes([("p".to_owned(), "ready", 1)]);
    metrics
        .policies
        .set_conditions([("p".to_owned(), ConditionType::Stalled, true)]);
    metrics.election.set(true, Some(Duration::from_secs(1)));
    metrics.election.attempt_began(Duration::from_millis(1));
    metrics.watches.set([("nodes".to_owned(), Duration::from_secs(1))]);
    metrics.caches.set([("nodes", 1)]);
    metrics
}

#[test]
fn numbers_of_the_cluster_are_metrics_without_labels() {
    let metrics = OperatorMetrics::new();
    metrics.policies.set_unreadable(1);
    metrics.policies.set_outdated_discovery(2);
    metrics.policies.set_removal_nodes(3);
    check(
        &metrics,
        &[
            "gpunode_operator_unreadable_policies 1",
            "gpunode_operator_discovery_outdated_nodes 2",
            "gpunode_operator_removal_waiting_nodes 3",
        ],
    );
}

#[test]
fn series_of_deleted_policies_are_dropped() {
    let metrics = OperatorMetrics::new();
    let conditions = ["gone", "p"].map(|policy| (policy.to_owned(), ConditionType::Stalled, true));
    metrics.policies.set_conditions(conditions);
    metrics
        .policies
        .set_conditions([("p".to_owned(), ConditionType::Stalled, true)]);
    let text = metrics.render();
    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("gpunode_operator_policy_c"))
        .collect();
    assert_eq!(
        series,
        [r#"gpunode_operator_policy_condition{policy="p",type="Stalled"} 1"#]
    );
}

#[test]
fn writes_are_counted_by_kind_and_result() {
    let metrics = OperatorMetrics::new();
    metrics.wrote(WorkKind::GpuNode);
    for outcome in [WriteOutcome::Conflict, WriteOutcome::Refused, WriteOutcome::Failed] {
        metrics.writes.ended(WorkKind::Node, outcome);
    }
    check(
        &metrics,
        &[
            r#"gpunode_operator_writes_total{kind="GpuNode",result="accepted"} 1"#,
            r#"gpunode_operator_writes_total{kind="Node",result="conflict"} 1"#,
            r#"gpunode_operator_writes_total{kind="Node",result="refused"} 1"#,
            r#"gpunode_operator_writes_total{kind="Node",result="failed"} 1"#,
        ],
    );
}

#[test]
fn queue_has_its_depth_by_class_and_its_retries_by_reason() {
    let metrics = OperatorMetrics::new();
    metrics.queue.set(QueueNumbers {
        urgent: 1,
        ordinary: 200,
        oldest: Duration::from_millis(1500),
        sweep: 4800,
    });
    for reason in [RetryReason::Conflict, RetryReason::Failure, RetryReason::TooEarly] {
        metrics.queue.retried(reason);
    }
    metrics.queue.waited(WorkClass::Urgent, Duration::from_millis(30));
    check(
        &metrics,
        &[
            r#"gpunode_operator_workqueue_depth{class="urgent"} 1"#,
            r#"gpunode_operator_workqueue_depth{class="ordinary"} 200"#,
            "gpunode_operator_workqueue_longest_wait_seconds 1.5",
            "gpunode_operator_sweep_pending_nodes 4800",
            r#"gpunode_operator_workqueue_retries_total{reason="conflict"} 1"#,
            r#"gpunode_operator_workqueue_retries_total{reason="failure"} 1"#,
            r#"gpunode_operator_workqueue_retries_total{reason="too_early"} 1"#,
            r#"gpunode_operator_workqueue_queue_duration_seconds_count{class="urgent"} 1"#,
            r#"gpunode_operator_workqueue_queue_duration_seconds_bucket{le="0.05",class="urgent"} 1"#,
        ],
    );
}

#[test]
fn age_of_the_lease_is_zero_on_a_replica_that_does_not_hold_it() {
    let metrics = OperatorMetrics::new();
    metrics.election.set(true, Some(Duration::from_millis(2500)));
    metrics.election.attempt_began(Duration::from_millis(40));
    check(
        &metrics,
        &[
            "gpunode_operator_is_leader 1",
            "gpunode_operator_lease_age_seconds 2.5",
            r#"gpunode_operator_lease_renewal_lateness_seconds_bucket{le="0.025"} 0"#,
            r#"gpunode_operator_lease_renewal_lateness_seconds_bucket{le="0.05"} 1"#,
        ],
    );
    metrics.election.set(false, None);
    check(
        &metrics,
        &["gpunode_operator_is_leader 0", "gpunode_operator_lease_age_seconds 0.0"],
    );
}

#[test]
fn watches_have_an_age_and_caches_a_size_by_resource() {
    let metrics = OperatorMetrics::new();
    let ages = [("nodes", 1), ("gpunodes", 40)];
    let ages = ages.map(|(resource, age)| (resource.to_owned(), Duration::from_secs(age)));
    metrics.watches.set(ages);
    metrics.caches.set([("nodes", 5000), ("gpunodes", 4000)]);
    metrics.caches.set([("nodes", 4999), ("gpunodes", 4000)]);
    check(
        &metrics,
        &[
            r#"gpunode_operator_watch_age_seconds{resource="nodes"} 1.0"#,
            r#"gpunode_operator_watch_age_seconds{resource="gpunodes"} 40.0"#,
            r#"gpunode_operator_cache_objects{resource="nodes"} 4999"#,
            r#"gpunode_operator_cache_objects{resource="gpunodes"} 4000"#,
        ],
    );
}

#[test]
fn each_metric_is_documented_with_its_type_and_labels_and_each_documented_one_exists() {
    let documented = documented_metrics(DOCUMENT, "gpunode_operator_");
    assert_eq!(documented, exposed_metrics(&complete().render()));
}
