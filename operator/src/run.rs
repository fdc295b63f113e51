//! Makes the threads and tasks and joins them. Every task runs for as long as the process; when one ends, the process
//! ends with an error and the kubelet starts it again.
//!
//! | module | what it does |
//! |---|---|
//! | `lead` | thread: holds the Lease, serves probes and metrics |

mod lead;

use crate::{
    audit::{AuditReporter, AuditTrail},
    cli::OperatorArgs,
    events::{EventRecorder, event_channel},
    index::{ClusterIndex, summary::ClusterSummary},
    leader_election::{CacheState, CacheView, LeadershipOwner, LeaseDurations, guarded_client},
    memory::return_free_memory,
    metrics::OperatorMetrics,
    pods::{AnnouncedRefusals, DrainWatcher, PodContext, PodEvictor, RejectedPodDeleter},
    reconcile::{IndexOwner, Reconciler, ReconcilerOutputs},
    run::lead::{LEAD_ENDS_WITHIN, LeadThread, WRITES_END_WITHIN},
    threads::RuntimeThread,
    watch::{ClusterWatch, WatchHealth},
    work_queue::WorkQueue,
    write::{ClusterWriter, MAX_PLANNED_URGENT_WRITES, WriteResults, WriteWorker},
    written_versions::WrittenVersions,
};
use anyhow::{Context, Result, anyhow};
use gpunode_plan::{AgentImages, AgentPodSettings, HostPaths};
use gpunode_process::{RequestThrottle, paced_client};
use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config};
use std::{sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, timeout},
};

/// Longest silence of the API server before a connection is given up. Longer than any watch lasts.
const READ_TIMEOUT: Duration = Duration::from_secs(310);
/// Messages to the index that may wait; a watch that brings more waits itself.
const INDEX_MESSAGES: usize = 64;

/// Runs the operator until a signal stops it, it loses the Lease, or a task ends.
pub async fn run(args: OperatorArgs) -> Result<()> {
    let durations = LeaseDurations::new(args.lease_duration, args.renew_deadline, args.retry_period);
    let durations = durations.context("read the durations of the Lease")?;
    let config = client_config().await?;
    // A renewal has a few seconds and must not wait for its turn, so the thread of the Lease has a client without limits.
    let throttle = RequestThrottle::new(args.client_qps, args.client_burst);
    // Lists and watches have pauses of their own.
    let client = Client::try_from(config.clone()).context("make a client for the API server")?;
    let allowed = AgentImages::of_operator(&args.agent_image, &args.agent_images).context("read AGENT_IMAGES")?;
    let agent_pods = AgentPodSettings {
        namespace: args.namespace.clone(),
        image: args.agent_image,
        allowed,
        paths: HostPaths {
            driver_roots: args.driver_roots,
            dev_root: args.dev_root,
            kubelet_root: args.kubelet_root,
            companion_roots: args.companion_roots,
        },
    };
    let (owned_index, index) = IndexOwner::new(ClusterIndex::new(agent_pods, args.gpu_labels));
    let watch_health = WatchHealth::default();
    let leadership_owner = LeadershipOwner::default();
    let leadership = leadership_owner.follow();
    // Each try passes the guard anew, after its wait.
    let guarded_client = guarded_client(config.clone(), leadership.clone()).context("make a client for writes")?;
    let guarded_client = paced_client(guarded_client, &throttle);
    let metrics = Arc::new(OperatorMetrics::new());
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;

    let (message_sender, messages) = mpsc::channel(INDEX_MESSAGES);
    let (write_sender, write_requests) = mpsc::channel(MAX_PLANNED_URGENT_WRITES);
    let (event_sender, events) = event_channel(metrics.clone());
    let (deletes_rejected_pods, is_deletion_wanted) = watch::channel(false);
    let (evictions, drains) = (Arc::new(WorkQueue::new()), Arc::new(WorkQueue::new()));

    let written = WrittenVersions::default();
    let watch = ClusterWatch {
        client: client.clone(),
        namespace: args.namespace.clone(),
        messages: message_sender.clone(),
        health: watch_health.clone(),
        written: written.clone(),
    };
    let outputs = ReconcilerOutputs {
        writes: write_sender,
        events: event_sender.clone(),
        evictions: evictions.clone(),
        drains: drains.clone(),
        deletes_rejected_pods,
    };
    let reconciler = Reconciler::new(owned_index, outputs, metrics.clone());
    let (writes_ended_sender, writes_ended) = oneshot::channel();
    let lead = LeadThread {
        config,
        namespace: args.namespace.clone(),
        identity: args.pod_name.clone(),
        durations,
        caches: cache_view(reconciler.summary(), watch_health.clone()),
        watch_health: watch_health.clone(),
        leadership: leadership_owner.clone(),
        writes_ended,
        admin_address: args.admin_address,
        summary: reconciler.summary(),
        queue: reconciler.queue(),
        metrics: metrics.clone(),
    };
    let results = WriteResults {
        metrics: metrics.clone(),
        messages: message_sender.clone(),
        written,
    };
    let index_of_policies = index.clone();
    let audit = AuditTrail::new(Box::new(move |name| index_of_policies.policy_reference(name)));
    let writer = ClusterWriter {
        client: guarded_client.clone(),
        namespace: args.namespace,
        results,
        audit: audit.clone(),
    };
    let write_worker = WriteWorker {
        writer,
        requests: write_requests,
    };
    let reporter = AuditReporter {
        trail: audit.clone(),
        events: event_sender.clone(),
    };
    let context = PodContext {
        index,
        guarded_client: guarded_client.clone(),
        leadership: leadership.clone(),
        metrics: metrics.clone(),
        events: event_sender,
        audit: audit.clone(),
        refusals: AnnouncedRefusals::default(),
    };
    let evictor = PodEvictor {
        context: context.clone(),
        queue: evictions,
    };
    let drain_watcher = DrainWatcher {
        context: context.clone(),
        client: paced_client(client.clone(), &throttle),
        queue: drains,
        messages: message_sender,
    };
    let deleter = RejectedPodDeleter {
        context,
        client,
        watch_health,
        is_wanted: is_deletion_wanted,
    };
    let recorder = EventRecorder {
        client: guarded_client,
        identity: args.pod_name,
        leadership: leadership.clone(),
        metrics,
        events,
    };

    // The first thread has an arena of its own, the next one that of this thread (`memory`). Lead begins once both have
    // theirs: looking up names takes threads, which get arenas, too.
    let (begin, may_begin) = oneshot::channel::<()>();
    let lead = move || async move {
        // Fails if the other thread did not start, and the process ends.
        let _ = may_begin.await;
        Box::pin(lead.run()).await
    };
    let mut lead = RuntimeThread::start("lead", lead)?;
    // Plans of a large fleet take seconds: watches, writes and probes go on meanwhile.
    let reconcile = move || endless("reconcile", reconciler.run(messages, leadership));
    let mut reconcile = RuntimeThread::start("reconcile", reconcile)?;
    let _ = begin.send(());
    let mut tasks = JoinSet::new();
    tasks.spawn(endless("watch the cluster", watch.run()));
    tasks.spawn(endless("write to the API server", write_worker.run()));
    tasks.spawn(endless("evict pods", evictor.run()));
    tasks.spawn(endless("delete rejected pods", deleter.run()));
    tasks.spawn(endless("watch evictions by taints", drain_watcher.run()));
    tasks.spawn(endless("report interventions", reporter.run()));
    tasks.spawn(endless("send events", recorder.run()));
    tasks.spawn(endless("return free memory", return_free_memory()));
    let result = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        // The thread says why.
        () = leadership_owner.ended() => Ok(()),
        ended = lead.ended() => ended,
        ended = reconcile.ended() => ended,
        Some(ended) = tasks.join_next() => ended.context("run a task").flatten(),
    };
    tracing::info!("stopping");
    // No write begins from here on, whatever the tasks still do.
    leadership_owner.end();
    if timeout(WRITES_END_WITHIN, tasks.shutdown()).await.is_err() {
        tracing::warn!("tasks are still running; releasing the Lease without waiting for them");
    }
    audit.log_rest();
    // Fails if the thread has ended, and holds no Lease.
    let _ = writes_ended_sender.send(());
    let ended = timeout(LEAD_ENDS_WITHIN, lead.ended()).await;
    result.and(ended.context("wait for the release of the Lease").flatten())
}

/// The state of the caches, on which the election depends.
fn cache_view(summary: watch::Receiver<Arc<ClusterSummary>>, watch_health: WatchHealth) -> CacheView {
    Box::new(move || {
        let summary = summary.borrow().clone();
        if summary.has_synced && !watch_health.is_failing(Instant::now()) {
            CacheState::Warm {
                is_first_install: summary.is_first_install,
            }
        } else {
            CacheState::Cold
        }
    })
}

/// The end of a task that should not end is an error.
async fn endless(name: &'static str, task: impl Future<Output = ()>) -> Result<()> {
    task.await;
    Err(anyhow!("{name}: the task ended"))
}

async fn client_config() -> Result<Config> {
    let mut config = Config::infer().await.context("find out how to reach the API server")?;
    // The election, lists and watches have pauses of their own; all other requests go through a paced client.
    config.default_retry = false;
    // A list on a dead connection would wait for ever. A watch may be silent for 290 s, after which the server ends it. The time
    // that a connection was idle before a request does not count.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.headers.push((
        USER_AGENT,
        HeaderValue::from_static(concat!("gpunode-operator/", env!("CARGO_PKG_VERSION"))),
    ));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn caches_that_a_dead_watch_feeds_are_cold() {
        let (summaries, summary) = watch::channel(Arc::<ClusterSummary>::default());
        let health = WatchHealth::default();
        let view = cache_view(summary, health.clone());
        assert!(matches!(view(), CacheState::Cold), "nothing is listed yet");
        summaries.send_replace(Arc::new(ClusterSummary {
            has_synced: true,
            ..ClusterSummary::default()
        }));
        health.began_list("nodes", Instant::now());
        health.listed("nodes", Instant::now());
        assert!(matches!(view(), CacheState::Warm { .. }));
        tokio::time::advance(Duration::from_secs(80)).await;
        assert!(matches!(view(), CacheState::Cold));
    }
}
