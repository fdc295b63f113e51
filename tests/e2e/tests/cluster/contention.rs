//! Others change the objects that gpunode writes, all the time.

use anyhow::{Context, Result, ensure};
use gpunode_cluster::Cluster;
use gpunode_e2e::{AuditEvent, AuditLog, Lab, NAMESPACE, T4, eventually, is_event_since};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::{
    io,
    process::{Command, Output},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_mins(3);
/// Writers of annotations.
const WRITERS: usize = 4;
/// Changes of the policy in 30 seconds.
const CHANGES: u32 = 100;
/// Time between the changes.
const PACE: Duration = Duration::from_millis(300);
/// Longest time from the last change of the policy to that of the node.
const ARRIVAL: SignedDuration = SignedDuration::from_secs(1);

/// Removes the annotations of the writers.
struct Annotations<'a>(&'a Lab);

impl Drop for Annotations<'_> {
    fn drop(&mut self) {
        let keys = (0..WRITERS).map(|writer| format!("contention-{writer}-"));
        let keys: Vec<String> = keys.collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let _ = self.0.try_kubectl(&[&["annotate", "node", T4], &keys[..]].concat());
    }
}

/// kubectl without end keeps a small machine busy, so that it goes behind the cluster.
fn annotate(cluster: &Cluster, annotation: &str) -> io::Result<Output> {
    let kubectl = cluster.kubectl_command();
    Command::new("nice")
        .args(["-n", "10"])
        .arg(kubectl.get_program())
        .args(kubectl.get_args())
        .args(["annotate", "--overwrite", "node", T4, annotation])
        .envs(kubectl.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .output()
}

fn set_label(lab: &Lab, value: &str) -> Result<()> {
    let patch = format!(r#"{{"spec":{{"labels":{{"contended":"{value}"}}}}}}"#);
    lab.kubectl(&["patch", "gpunodepolicy", "contended", "--type=merge", "-p", &patch])
        .map(drop)
}

/// Fails if the policy says that a write failed.
fn check_no_failure(policy: &Value) -> Result<()> {
    let status = policy["status"].to_string();
    ensure!(
        !status.contains("WriteFailed"),
        "a lost race is told as a failure: {status}"
    );
    Ok(())
}

/// Failed reconciles that the leader has counted.
fn errors(lab: &Lab) -> Result<u64> {
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/metrics",
        lab.leader()?
    );
    let metrics = lab.kubectl(&["get", "--raw", &path])?;
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("gpunode_operator_errors_total"))
        .filter_map(|line| line.rsplit(' ').next());
    counts.map(|count| count.parse::<u64>().context("read a metric")).sum()
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn lost_races_are_no_failures_and_the_last_value_arrives_within_a_second() -> Result<()> {
    let lab = Lab::enter()?;
    let start = Timestamp::now();
    lab.apply(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: contended}
spec:
  nodeSelector: {matchLabels: {pool: inference}}
  labels: {contended: 'first'}
",
    )?;
    lab.await_ready("contended")?;
    let errors_before = errors(&lab)?;
    let _annotations = Annotations(&lab);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (cluster, is_over) = (lab.cluster(), &is_over);
            scope.spawn(move || {
                let mut number = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    let _ = annotate(cluster, &format!("contention-{writer}={number}"));
                }
            });
        }
        // A plan for each change would be slower than the changes.
        let result = lab.unplanned("contended", || change_the_label(&lab));
        is_over.store(true, Ordering::Relaxed);
        result
    })?;
    lab.await_ready("contended")?;
    let errors_after = errors(&lab)?;
    assert_eq!(errors_after, errors_before, "errors are counted");
    let events = lab.get(&["events"])?;
    let failures = events["items"].as_array().into_iter().flatten();
    let failures: Vec<&Value> = failures
        .filter(|event| event["reason"] == "WriteFailed" && event["involvedObject"]["name"] == "contended")
        .filter(|event| is_event_since(event, start))
        .collect();
    assert_eq!(failures, Vec::<&Value>::new());
    Ok(())
}

fn change_the_label(lab: &Lab) -> Result<()> {
    let audit = lab.audit()?;
    let start = Instant::now();
    for number in 0..CHANGES {
        std::thread::sleep((PACE * number).saturating_sub(start.elapsed()));
        set_label(lab, &number.to_string())?;
        check_no_failure(&lab.get(&["gpunodepolicy", "contended"])?)?;
    }
    set_label(lab, "last")?;
    eventually("the node has the last value", LIMIT, || {
        check_no_failure(&lab.get(&["gpunodepolicy", "contended"])?)?;
        let value = &lab.node(T4)?["metadata"]["labels"]["contended"];
        ensure!(value == "last", "it has {value}");
        Ok(())
    })?;
    let arrival = arrival(&audit)?;
    ensure!(arrival < ARRIVAL, "it took {arrival:#}");
    Ok(())
}

/// Returns the time from the last value in the policy to that on the node, as the API server saw them.
fn arrival(audit: &AuditLog) -> Result<SignedDuration> {
    let events = audit.events()?;
    let has_last = |event: &AuditEvent| {
        let request = event.request().map(ToString::to_string);
        event.is_accepted() && request.is_some_and(|request| request.contains(r#""last""#))
    };
    let time = |resource: &str, name: &str| {
        let is_it = |event: &&AuditEvent| event.resource() == resource && event.name() == name && has_last(event);
        let event = events.iter().find(is_it);
        event
            .with_context(|| format!("nobody wrote the last value to {name}"))?
            .time()
    };
    Ok(time("nodes", T4)?.duration_since(time("gpunodepolicies", "contended")?))
}
