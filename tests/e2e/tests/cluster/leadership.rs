//! The operator dies or is stopped in the middle of its writes.

use anyhow::{Context, Result, anyhow, ensure};
use gpunode_cluster::{Process, Signal};
use gpunode_e2e::{AuditEvent, AuditLog, Lab, PolicyChange, eventually};
use jiff::Timestamp;
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

const LIMIT: Duration = Duration::from_mins(3);

/// Enough nodes that the operator is surely stopped between its first and its last write.
const NODES: usize = 300;

const POLICY: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: many}
spec:
  nodeSelector: {matchLabels: {pool: many}}
  labels: {rollout: done}
  taints: [{key: many, value: 'yes', effect: NoSchedule}]
";

/// Nodes without a kubelet, kept off by DaemonSets as virtual ones are; gone when the value is dropped.
struct ManyNodes<'a>(&'a Lab);

impl<'a> ManyNodes<'a> {
    fn create(lab: &'a Lab) -> Result<Self> {
        let mut manifest = String::new();
        for number in 0..NODES {
            writeln!(
                manifest,
                "---\napiVersion: v1\nkind: Node\nmetadata: {{name: many-{number:03}, labels: {{pool: many, type: virtual-kubelet}}}}"
            )?;
        }
        let nodes = Self(lab);
        let output = lab.kubectl_with_input(&["create", "-f", "-"], &manifest)?;
        ensure!(
            output.status.success(),
            "create nodes: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(nodes)
    }

    fn labelled(&self) -> Result<usize> {
        let list = self
            .0
            .kubectl(&["get", "nodes", "-l", "pool=many,rollout=done", "-o", "name"])?;
        Ok(list.lines().count())
    }

    fn await_all_labelled(&self) -> Result<()> {
        eventually("every node has the label", LIMIT, || {
            let labelled = self.labelled()?;
            ensure!(labelled == NODES, "{labelled} of {NODES} have it");
            Ok(())
        })
    }
}

impl Drop for ManyNodes<'_> {
    fn drop(&mut self) {
        let _ = self
            .0
            .try_kubectl(&["delete", "nodes", "-l", "pool=many", "--timeout=60s"]);
    }
}

fn node_writes(audit: &AuditLog) -> Result<Vec<AuditEvent>> {
    let writes = audit.gpunode_writes()?.into_iter();
    Ok(writes
        .filter(|event| event.resource() == "nodes" && !event.is_of_record_alone())
        .collect())
}

/// Waits for the first node's write by polling the log much faster than the operator can write all.
fn first_node_write(audit: &AuditLog) -> Result<AuditEvent> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(first) = node_writes(audit)?.into_iter().next() {
            return Ok(first);
        }
        ensure!(Instant::now() < end, "the operator wrote no node within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Applies the policy, and sends the operator a signal at its first write of a node. kubectl may end later than that.
fn begin_and_signal<'a>(lab: &'a Lab, audit: &AuditLog, process: &Process, signal: Signal) -> Result<PolicyChange<'a>> {
    std::thread::scope(|scope| {
        let signalled = scope.spawn(|| {
            first_node_write(audit)?;
            process.signal(signal)
        });
        let change = lab.begin(POLICY);
        let signalled = signalled.join();
        signalled.map_err(|_| anyhow!("the thread that sends the signal panicked"))??;
        change
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_operator_killed_between_two_nodes_is_followed_by_one_that_finishes() -> Result<()> {
    let lab = Lab::enter()?;
    let nodes = ManyNodes::create(&lab)?;
    let leader = lab.leader()?;
    let process = lab.operator_process(&leader)?;
    let audit = lab.audit()?;
    let change = begin_and_signal(&lab, &audit, &process, Signal::KILL)?;
    let at_kill = nodes.labelled()?;
    ensure!(
        at_kill < NODES,
        "all {NODES} nodes were written before the kill; the test shows nothing"
    );
    nodes.await_all_labelled()?;
    change.check()?;

    let writes = node_writes(&audit)?;
    let mut names: Vec<&str> = writes.iter().map(AuditEvent::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), writes.len(), "no node is written twice");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_leader_that_was_stopped_writes_nothing_after_another_took_over() -> Result<()> {
    let lab = Lab::enter()?;
    let nodes = ManyNodes::create(&lab)?;
    let first = lab.leader()?;
    let process = lab.operator_process(&first)?;
    let audit = lab.audit()?;
    let change = begin_and_signal(&lab, &audit, &process, Signal::STOP)?;
    let at_stop = nodes.labelled()?;
    ensure!(
        at_stop < NODES,
        "all {NODES} nodes were written before the stop; the test shows nothing"
    );

    let second = lab.await_leader_other_than(&first)?;
    let takeover = takeover(&audit, &second)?;
    process.signal(Signal::CONT)?;
    nodes.await_all_labelled()?;
    change.check()?;
    // The first one is alive again; give it what a write needs: the time until it holds or asks for the lease again.
    eventually("the first operator has noticed that it does not lead", LIMIT, || {
        let asked = audit.events()?.into_iter().any(|event| {
            event.pod() == first && event.resource() == "leases" && event.time().is_ok_and(|time| time > takeover)
        });
        ensure!(
            asked || !lab.operator_pods()?.contains(&first),
            "it has not asked for the lease since"
        );
        Ok(())
    })?;

    let late: Vec<String> = audit
        .gpunode_writes()?
        .iter()
        .filter(|event| event.pod() == first && event.time().is_ok_and(|time| time > takeover))
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        late,
        Vec::<String>::new(),
        "writes of {first} after {second} took over at {takeover}"
    );
    Ok(())
}

/// Returns the time of the first write to the Lease by `leader`.
fn takeover(audit: &AuditLog, leader: &str) -> Result<Timestamp> {
    audit
        .events()?
        .iter()
        .find(|event| event.pod() == leader && event.resource() == "leases" && event.is_write() && event.is_accepted())
        .context("find the write by which the second operator took the lease")?
        .time()
}
