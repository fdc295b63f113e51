//! Receives driver events on one thread with one NVML session, for as long as the driver stays the same.

use crate::{
    admin::metrics::AgentMetrics,
    driver::{
        calls::{DriverCall, DriverCalls},
        nvml::{
            self, GpuAddress,
            events::{DriverEvent, EventHandler},
        },
    },
};
use gpunode_process::OnChange;
use nvml_wrapper::error::NvmlError;
use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};
use tracing::{info, warn};

/// Capacity of the event queue. The thread waits up to [`FULL_TIMEOUT`] while it is full.
const QUEUE: usize = 256;
/// Longest wait for an event.
const WAIT: Duration = Duration::from_secs(2);
/// Longest wait while another reset of a GPU is likely, which waits for the end of the session.
const BRIEF_WAIT: Duration = Duration::from_millis(100);
/// Time after the session was closed for a reset in which another one is likely: a layout resets the GPUs of a node one by one.
const RESETS: Duration = Duration::from_mins(1);
/// Pause before retrying a full queue.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a full queue. A standby agent does not read events and has no use for old ones.
const FULL_TIMEOUT: Duration = Duration::from_secs(6);
/// Time for the thread to end its session; longer than [`WAIT`].
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a session that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Follows driver events.
pub struct DriverEvents {
    sender: mpsc::Sender<DriverEvent>,
    /// GPUs that report no events; logged once each.
    silent: BTreeSet<String>,
    running: Option<EventThread>,
    not_before: Instant,
    /// End of the time in which waits are brief; none before the first reset of a GPU.
    brief_until: Option<Instant>,
    errors: OnChange,
    metrics: AgentMetrics,
    calls: DriverCalls,
}

struct EventThread {
    gpus: watch::Sender<Vec<GpuAddress>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<EventThreadResult>,
}

/// Result of a thread: the GPUs that report no events, and the error that ended it.
type EventThreadResult = (BTreeSet<String>, Result<(), nvml::DriverError>);

impl DriverEvents {
    /// Creates an idle follower and the receiver of its events.
    pub fn new(metrics: AgentMetrics, calls: DriverCalls) -> (Self, mpsc::Receiver<DriverEvent>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (
            Self {
                sender,
                silent: BTreeSet::new(),
                running: None,
                not_before: Instant::now(),
                brief_until: None,
                errors: OnChange::default(),
                metrics,
                calls,
            },
            receiver,
        )
    }

    /// Follows these GPUs through the library at `path`. A second call with the same GPUs changes nothing.
    pub async fn follow(&mut self, path: &Path, gpus: &[GpuAddress]) {
        if self
            .running
            .as_ref()
            .is_some_and(|running| running.thread.is_finished())
        {
            self.close().await;
            self.not_before = Instant::now() + RETRY;
        }
        match &self.running {
            Some(running) => {
                running.gpus.send_if_modified(|now| {
                    let changes = now != gpus;
                    gpus.clone_into(now);
                    changes
                });
            }
            None if gpus.is_empty() || Instant::now() < self.not_before => {}
            None => self.running = self.calls.begin().map(|call| self.start(path, gpus, call)),
        }
    }

    fn start(&mut self, path: &Path, gpus: &[GpuAddress], call: DriverCall) -> EventThread {
        let (gpus, mut followed) = watch::channel(gpus.to_owned());
        followed.mark_changed();
        let stop = Arc::new(AtomicBool::new(false));
        let silent = std::mem::take(&mut self.silent);
        let mut thread = EventForwarder {
            followed,
            stop: stop.clone(),
            sender: self.sender.clone(),
            silent,
            call,
            full_since: None,
            brief_until: self.brief_until,
        };
        let path = path.to_owned();
        let thread = spawn_blocking(move || {
            let ended = nvml::events::watch(&path, &mut thread);
            (thread.silent, ended)
        });
        EventThread { gpus, stop, thread }
    }

    /// Ends the session so that a GPU can be reset. The sessions of the next minute end sooner.
    pub async fn close_for_reset(&mut self) {
        self.brief_until = Some(Instant::now() + RESETS);
        self.close().await;
    }

    /// Ends the session.
    pub async fn close(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.stop.store(true, Ordering::Relaxed);
        let error = match timeout(END_TIMEOUT, running.thread).await {
            Ok(Ok((silent, ended))) => {
                self.silent = silent;
                let error = ended.err();
                if let Some(call) = error.as_ref().and_then(nvml::DriverError::call) {
                    self.metrics.nvml_error(call);
                }
                error.map(|error| error.to_string())
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("end the driver session: no answer within {END_TIMEOUT:?}")),
        };
        if let Some(error) = self.errors.set(error) {
            warn!(error, "cannot follow driver events; retrying");
        }
    }
}

/// Forwards events from the thread to the queue.
struct EventForwarder {
    followed: watch::Receiver<Vec<GpuAddress>>,
    stop: Arc<AtomicBool>,
    sender: mpsc::Sender<DriverEvent>,
    silent: BTreeSet<String>,
    /// The session, which waits for events between its turns.
    call: DriverCall,
    /// Start of the time the queue has been full.
    full_since: Option<Instant>,
    /// End of the time in which waits are brief.
    brief_until: Option<Instant>,
}

impl EventForwarder {
    /// True when the thread must end, also when the receiver is gone.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.sender.is_closed()
    }
}

impl EventHandler for EventForwarder {
    fn gpus(&mut self) -> ControlFlow<(), Option<Vec<GpuAddress>>> {
        match self.followed.has_changed() {
            Ok(_) if self.is_stopped() => ControlFlow::Break(()),
            Ok(changed) => ControlFlow::Continue(changed.then(|| self.followed.borrow_and_update().clone())),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn wait_limit(&self) -> Duration {
        if self.brief_until.is_some_and(|end| Instant::now() < end) {
            BRIEF_WAIT
        } else {
            WAIT
        }
    }

    fn handle(&mut self, event: DriverEvent) -> ControlFlow<()> {
        let mut event = event;
        while !self.is_stopped() {
            match self.sender.try_send(event) {
                Ok(()) => {
                    self.full_since = None;
                    return ControlFlow::Continue(());
                }
                Err(mpsc::error::TrySendError::Full(unsent)) => event = unsent,
                Err(mpsc::error::TrySendError::Closed(_)) => return ControlFlow::Break(()),
            }
            if self.full_since.get_or_insert_with(Instant::now).elapsed() >= FULL_TIMEOUT {
                return ControlFlow::Continue(());
            }
            thread::sleep(FULL_PAUSE);
        }
        ControlFlow::Break(())
    }

    fn begin_registration(&mut self, gpu: Option<&str>) {
        match gpu {
            Some(_) => self.call.begin_turn(gpu),
            None => self.call.end_turn(),
        }
    }

    fn reports_no_events(&mut self, gpu: &str, why: &NvmlError) {
        if self.silent.insert(gpu.to_owned()) {
            info!(gpu, %why, "the GPU reports no events; only probes watch it");
        }
    }
}
