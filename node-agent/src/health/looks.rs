//! Looking at the GPUs now and then, on a thread of its own: a driver that hangs takes that one alone.

use crate::{
    hardware::Place,
    nvml::probe::{Look, Target, probe, unanswered},
};
use gpunode_gpu::{Answer, Probe};
use jiff::Timestamp;
use std::{
    fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tracing::debug;

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(15);
/// Least pause, where one is wanted at once.
const LEAST: Duration = Duration::from_secs(1);
/// How long after an event a look may show less than it will: the driver tells of the error first and of what it needs then.
pub const SETTLE: Duration = Duration::from_secs(5);
/// How long one look at all GPUs may take before the one that it is at counts as not answering.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Looks that wait; more than a node has GPUs.
const QUEUE: usize = 256;
/// By its time a person says when the node was in order again, where there is no API server.
const RECOVERED: &str = "recovered";

/// What a round brings.
pub enum Found {
    /// When a person said that the GPUs are in order again.
    Recovered(Timestamp),
    /// A look.
    Look(Box<Look>),
    /// A GPU did not answer in time.
    Hangs(Probe),
    /// The driver could not be asked.
    Failed,
    /// It is over.
    Done,
    /// There is none, and one is due.
    Due,
}

/// The rounds.
pub struct Looks {
    place: Place,
    state_dir: PathBuf,
    next: Instant,
    /// No look before this.
    earliest: Instant,
    round: Option<Round>,
}

struct Round {
    found: mpsc::Receiver<Found>,
    /// The one that is looked at.
    current: Arc<Mutex<String>>,
    begun: Instant,
    hangs: bool,
}

impl Looks {
    /// The first one is due at once.
    pub fn new(place: Place, state_dir: PathBuf) -> Self {
        Self { place, state_dir, next: Instant::now(), earliest: Instant::now(), round: None }
    }

    /// The next look comes no later than this, and at least a while after the last one.
    pub fn hasten(&mut self, to: Instant) {
        self.next = self.next.min(to);
    }

    /// Begins a round.
    pub fn begin(&mut self, targets: Vec<Target>) {
        let now = Instant::now();
        self.next = now + EVERY;
        let (tell, found) = mpsc::channel(QUEUE);
        let current = Arc::new(Mutex::new(String::new()));
        let (place, recovered, at) = (self.place.clone(), self.state_dir.join(RECOVERED), current.clone());
        spawn_blocking(move || {
            // Nobody listens any more when the agent stops.
            if let Some(time) =
                fs::metadata(recovered).and_then(|file| file.modified()).ok().and_then(|at| at.try_into().ok())
            {
                _ = tell.blocking_send(Found::Recovered(time));
            }
            if targets.is_empty() {
                return;
            }
            let Some(library) = place.library() else { return };
            let begin = |gpu: &str| gpu.clone_into(&mut at.lock().unwrap_or_else(PoisonError::into_inner));
            let looked = |look| _ = tell.blocking_send(Found::Look(Box::new(look)));
            if let Err(error) = probe(&library, &targets, begin, looked) {
                debug!(%error, "look at the GPUs");
                _ = tell.blocking_send(Found::Failed);
            }
        });
        self.round = Some(Round { found, current, begun: now, hangs: false });
    }

    /// What comes next.
    pub async fn next(&mut self) -> Found {
        let Some(round) = &mut self.round else {
            sleep_until(self.next.max(self.earliest)).await;
            return Found::Due;
        };
        tokio::select! {
            found = round.found.recv() => {
                let Some(found) = found else {
                    self.earliest = Instant::now() + LEAST;
                    self.round = None;
                    return Found::Done;
                };
                found
            }
            () = sleep_until(round.begun + TIMEOUT), if !round.hangs => {
                round.hangs = true;
                let gpu = round.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if gpu.is_empty() {
                    return Found::Failed;
                }
                Found::Hangs(Probe { answer: Answer::Hangs, ..unanswered(&Target { gpu, ..Target::default() }) })
            }
        }
    }
}
