//! Workers: each takes a key from the queue, carries it out, and says how it ended.

use crate::{
    apply::{ApplyError, Writer, one_line},
    controller::{Controller, Done, Key},
    lease::Claim,
    metrics::{Kind, Metrics},
};
use futures::future::join_all;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// Keys that are worked on at a time: enough to hide the way to the API server, and no burden to it.
const WORKERS: usize = 4;
/// The longest that one key may take.
const PASS_TIMEOUT: Duration = Duration::from_secs(10);
/// The status of one policy is written at most this often.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Works off the queue until it is dropped.
pub async fn run_workers(controller: &Controller, writer: &Writer, metrics: &Metrics, claim: &Claim) {
    let pace = Pace::default();
    join_all((0..WORKERS).map(|_| async {
        let mut claim = claim.clone();
        loop {
            claim.current().await;
            let key = controller.queue.next().await;
            let done = work(controller, writer, metrics, &pace, &key).await;
            controller.queue.done(key, done);
        }
    }))
    .await;
}

async fn work(controller: &Controller, writer: &Writer, metrics: &Metrics, pace: &Pace, key: &Key) -> Done {
    if let Key::Status(policy) = key
        && let Some(at) = pace.not_before(policy)
    {
        return Done::Again(at);
    }
    let (kind, pass) = match key {
        Key::Node(name) => (Kind::Node, timeout(PASS_TIMEOUT, node(controller, writer, name)).await),
        Key::DaemonSet(name) => (Kind::DaemonSet, timeout(PASS_TIMEOUT, daemonset(controller, writer, name)).await),
        Key::Status(name) => (Kind::Status, timeout(PASS_TIMEOUT, status(controller, writer, pace, name)).await),
    };
    metrics.reconciled(kind);
    match pass.unwrap_or(Err(ApplyError::TimedOut)) {
        Ok(()) => Done::Settled,
        Err(error) if error.is_race() => {
            tracing::debug!(?key, error = one_line(&error), "changed meanwhile");
            Done::Raced
        }
        Err(error) => {
            metrics.failed(kind);
            tracing::warn!(?key, error = one_line(&error), "reconcile");
            Done::Failed
        }
    }
}

async fn node(controller: &Controller, writer: &Writer, name: &str) -> Result<(), ApplyError> {
    let Some(work) = controller.with_index(|index, now, effects| index.node_work(name, now, effects)) else {
        return Ok(());
    };
    let result = writer.apply_node(controller, name, work).await;
    let refusal = result.as_ref().err().and_then(ApplyError::refusal);
    controller.with_index(|index, now, effects| index.node_written(name, refusal, now, effects));
    result
}

async fn daemonset(controller: &Controller, writer: &Writer, name: &str) -> Result<(), ApplyError> {
    match controller.with_index(|index, _, _| index.daemonset_work(name)) {
        Some(work) => writer.apply_daemonset(controller, name, work).await,
        None => Ok(()),
    }
}

async fn status(controller: &Controller, writer: &Writer, pace: &Pace, name: &str) -> Result<(), ApplyError> {
    match controller.with_index(|index, now, _| index.status_work(name, now)) {
        Some(work) => {
            pace.written(name);
            writer.apply_status(controller, name, work).await
        }
        None => Ok(()),
    }
}

/// When each status was last written. Entries that no longer hold anything back are dropped.
#[derive(Default)]
struct Pace(Mutex<HashMap<String, Instant>>);

impl Pace {
    fn not_before(&self, policy: &str) -> Option<Instant> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|_, at| at.elapsed() < STATUS_EVERY);
        written.get(policy).map(|at| *at + STATUS_EVERY)
    }

    fn written(&self, policy: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(policy.to_owned(), Instant::now());
    }
}
