//! Probes the GPUs at intervals, on a thread of its own: a GPU that hangs keeps that thread, and the others get a new one.

use crate::driver::{
    hardware_probe::DriverRoots,
    nvml::probe::{ProbeReport, ProbeTarget, probe, unanswered},
};
use gpunode_gpu::{GpuProbe, ProbeResult};
use jiff::Timestamp;
use std::{
    collections::BTreeSet,
    fs,
    future::pending,
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep_until},
};
use tracing::debug;

/// Pause between two rounds of probes.
const EVERY: Duration = Duration::from_secs(15);
/// Shortest pause between two rounds, where one is requested at once.
const LEAST: Duration = Duration::from_secs(1);
/// Time after an event during which a probe may show less than it will: the driver reports the error first, and what it
/// requires later.
pub const SETTLE: Duration = Duration::from_secs(5);
/// Time after which a GPU that is being probed counts as not answering.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bound of the queue of results; more than a node has GPUs.
const QUEUE: usize = 256;
/// File whose time is the time of recovery that a person declares where there is no API server.
const RECOVERED: &str = "recovered";

/// An event of the probe loop.
pub enum ProbeEvent {
    /// A person declared the GPUs recovered at this time.
    Recovered(Timestamp),
    /// A GPU was probed.
    Probed(Box<ProbeReport>),
    /// A GPU did not answer in time, or waits behind one that hangs. The others are probed without it from now on.
    Hangs(GpuProbe),
    /// The driver could not be opened.
    Failed,
    /// The round is over.
    Done,
    /// A round is due.
    Due,
}

/// Rounds of probes, and the GPUs that hang.
pub struct ProbeLoop {
    driver_roots: DriverRoots,
    state_dir: PathBuf,
    next: Instant,
    /// No round begins before this.
    earliest: Instant,
    round: Option<ProbeRound>,
    /// GPUs that have not answered.
    hanging: BTreeSet<String>,
    /// Those of them that may only wait behind another: the driver has answered for no GPU since.
    suspects: BTreeSet<String>,
    /// True when the GPUs in `hanging` are known to hang themselves.
    suspects_hang: bool,
    /// Late answers of GPUs that hung.
    answers: JoinSet<(String, Option<ProbeEvent>)>,
}

struct ProbeRound {
    events: mpsc::Receiver<ProbeEvent>,
    /// UUID of the GPU that is being probed.
    current: Arc<Mutex<String>>,
    /// Start of that probe.
    since: Instant,
    /// True when a GPU answered in this round.
    answered: bool,
}

impl ProbeLoop {
    /// A loop whose first round is due at once.
    pub fn new(driver_roots: DriverRoots, state_dir: PathBuf) -> Self {
        let (next, earliest) = (Instant::now(), Instant::now());
        let (hanging, suspects) = (BTreeSet::new(), BTreeSet::new());
        Self {
            driver_roots,
            state_dir,
            next,
            earliest,
            round: None,
            hanging,
            suspects,
            suspects_hang: false,
            answers: JoinSet::new(),
        }
    }

    /// Brings the next round forward to this time, though not closer to the last one than the shortest pause.
    pub fn probe_soon(&mut self, to: Instant) {
        self.next = self.next.min(to);
    }

    /// Begins a round over the GPUs that do not hang.
    pub fn begin(&mut self, mut targets: Vec<ProbeTarget>) {
        let now = Instant::now();
        self.next = now + EVERY;
        targets.retain(|target| !self.hanging.contains(&target.gpu));
        // No GPU is left whose answer could show that the driver works.
        self.suspects_hang = targets.is_empty();
        let (sender, events) = mpsc::channel(QUEUE);
        let current = Arc::new(Mutex::new(String::new()));
        let (driver_roots, recovered, at) = (
            self.driver_roots.clone(),
            self.state_dir.join(RECOVERED),
            current.clone(),
        );
        spawn_blocking(move || {
            // The receiver is gone when the agent stops.
            if let Some(time) = fs::metadata(recovered)
                .and_then(|file| file.modified())
                .ok()
                .and_then(|at| at.try_into().ok())
            {
                _ = sender.blocking_send(ProbeEvent::Recovered(time));
            }
            if targets.is_empty() {
                return;
            }
            let Some(library) = driver_roots.library() else { return };
            let begin = |gpu: &str| gpu.clone_into(&mut at.lock().unwrap_or_else(PoisonError::into_inner));
            let on_report = |report| match sender.blocking_send(ProbeEvent::Probed(Box::new(report))) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            if let Err(error) = probe(&library, &targets, begin, on_report) {
                debug!(%error, "cannot probe the GPUs");
                _ = sender.blocking_send(ProbeEvent::Failed);
            }
        });
        self.round = Some(ProbeRound {
            events,
            current,
            since: now,
            answered: false,
        });
    }

    /// Returns the result that a probe of each hanging GPU would have.
    pub fn hanging(&self) -> Vec<GpuProbe> {
        self.hanging.difference(&self.suspects).map(|gpu| hangs(gpu)).collect()
    }

    /// Returns the next event.
    pub async fn next(&mut self) -> ProbeEvent {
        loop {
            if let Some(Ok((gpu, event))) = self.answers.try_join_next() {
                return self.answered(&gpu, event);
            }
            if self.suspects_hang
                && let Some(gpu) = self.suspects.pop_first()
            {
                return ProbeEvent::Hangs(hangs(&gpu));
            }
            self.suspects_hang = false;
            let due = self.next.max(self.earliest);
            let given_up = self.round.as_ref().map_or(due, |round| round.since + TIMEOUT);
            tokio::select! {
                biased;
                Some(Ok((gpu, event))) = self.answers.join_next() => return self.answered(&gpu, event),
                event = next_event(&mut self.round) => return self.handle(event),
                () = sleep_until(given_up), if self.round.is_some() => if let Some(event) = self.end_hanging_round() {
                    return event;
                },
                () = sleep_until(due), if self.round.is_none() => return ProbeEvent::Due,
            }
        }
    }

    /// Takes a GPU that answered late off the list of hanging ones.
    fn answered(&mut self, gpu: &str, event: Option<ProbeEvent>) -> ProbeEvent {
        self.hanging.remove(gpu);
        self.suspects.remove(gpu);
        event.unwrap_or(ProbeEvent::Failed)
    }

    fn handle(&mut self, event: Option<ProbeEvent>) -> ProbeEvent {
        if let Some(round) = &mut self.round {
            round.since = Instant::now();
            round.answered |= matches!(event, Some(ProbeEvent::Probed(_)));
        }
        event.unwrap_or_else(|| {
            self.earliest = Instant::now() + LEAST;
            self.suspects_hang |= self.round.take().is_some_and(|round| round.answered);
            ProbeEvent::Done
        })
    }

    /// Ends the round at the GPU that hangs. Where another hangs already, that one may keep the driver from answering at all.
    fn end_hanging_round(&mut self) -> Option<ProbeEvent> {
        let mut round = self.round.take()?;
        let gpu = round.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_suspect = !round.answered && !self.hanging.is_empty();
        self.suspects_hang |= round.answered;
        if gpu.is_empty() {
            self.round = Some(ProbeRound {
                since: Instant::now(),
                ..round
            });
            return (!is_suspect).then_some(ProbeEvent::Failed);
        }
        let mut probe = hangs(&gpu);
        self.hanging.insert(gpu.clone());
        if is_suspect {
            self.suspects.insert(gpu.clone());
            probe.result = ProbeResult::Waits;
        }
        self.answers.spawn(async move { (gpu, round.events.recv().await) });
        self.next = Instant::now();
        Some(ProbeEvent::Hangs(probe))
    }
}

fn hangs(gpu: &str) -> GpuProbe {
    let target = ProbeTarget {
        gpu: gpu.to_owned(),
        ..ProbeTarget::default()
    };
    GpuProbe {
        result: ProbeResult::Hangs,
        ..unanswered(&target)
    }
}

/// Returns the next event of a round; none at its end.
async fn next_event(round: &mut Option<ProbeRound>) -> Option<ProbeEvent> {
    match round {
        Some(round) => round.events.recv().await,
        None => pending().await,
    }
}
