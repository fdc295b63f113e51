//! Probes the GPUs at intervals, on a thread of its own: a GPU that hangs keeps that thread, and the others get a new one.
//!
//! A hang usually keeps the driver from answering any call (`driver::calls`). So the GPU of the first call without an answer
//! hangs, and all others are blocked, until the driver answers for one of them.

use crate::driver::{
    calls::DriverCall,
    hardware_probe::DriverRoots,
    nvml::probe::{ProbeReport, ProbeTarget, probe, unanswered},
};
use gpunode_gpu::{GpuProbe, ProbeResult};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    future::pending,
    ops::ControlFlow,
    path::PathBuf,
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
/// Time after which a GPU that is being probed counts as not answering. Without persistence mode an answer takes 1 to 5 s.
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
    /// The driver did not answer in time for this GPU, which hangs or is blocked.
    NoAnswer(GpuProbe),
    /// The driver could not be opened.
    Failed,
    /// The round is over.
    Done,
    /// A round is due.
    Due,
}

/// Rounds of probes, and the GPUs without an answer.
pub struct ProbeLoop {
    driver_roots: DriverRoots,
    state_dir: PathBuf,
    next: Instant,
    /// No round begins before this.
    earliest: Instant,
    round: Option<ProbeRound>,
    /// GPUs whose probe has not ended, with the result that it would have now. Rounds leave them out.
    unanswered: BTreeMap<String, ProbeResult>,
    /// Late answers of these GPUs.
    answers: JoinSet<(String, Option<ProbeEvent>)>,
    /// Results to report.
    reports: VecDeque<GpuProbe>,
    /// Start of the time in which the driver answers for GPUs; none while it is blocked.
    answers_since: Option<Instant>,
    /// GPUs without an answer to an earlier agent; none once the driver has answered this one.
    silent_before: BTreeSet<String>,
}

struct ProbeRound {
    events: mpsc::Receiver<ProbeEvent>,
    /// Number of its call to the driver.
    call: Option<u64>,
    /// UUIDs of the GPUs that have not answered in this round.
    waiting: BTreeSet<String>,
    /// Start of the probe of one of them.
    since: Instant,
    /// True once its GPUs were reported as blocked.
    is_blocked: bool,
}

impl ProbeLoop {
    /// A loop whose first round is due at once. `silent_before` are the GPUs that did not answer an earlier agent.
    pub fn new(driver_roots: DriverRoots, state_dir: PathBuf, silent_before: BTreeSet<String>) -> Self {
        let (next, earliest) = (Instant::now(), Instant::now());
        Self {
            driver_roots,
            state_dir,
            next,
            earliest,
            round: None,
            unanswered: BTreeMap::new(),
            answers: JoinSet::new(),
            reports: VecDeque::new(),
            answers_since: None,
            silent_before,
        }
    }

    /// Brings the next round forward to this time, though not closer to the last one than the shortest pause.
    pub fn probe_soon(&mut self, to: Instant) {
        self.next = self.next.min(to);
    }

    /// Begins a round over the GPUs without an unanswered probe.
    pub fn begin(&mut self, mut targets: Vec<ProbeTarget>) {
        let now = Instant::now();
        self.next = now + EVERY;
        targets.retain(|target| !self.unanswered.contains_key(&target.gpu));
        let waiting = targets.iter().map(|target| target.gpu.clone()).collect();
        let (sender, events) = mpsc::channel(QUEUE);
        let call = self.driver_roots.calls.begin().filter(|_| !targets.is_empty());
        let number = call.as_ref().map(DriverCall::number);
        let (driver_roots, recovered) = (self.driver_roots.clone(), self.state_dir.join(RECOVERED));
        spawn_blocking(move || {
            // The receiver is gone when the agent stops.
            if let Some(time) = fs::metadata(recovered)
                .and_then(|file| file.modified())
                .ok()
                .and_then(|at| at.try_into().ok())
            {
                _ = sender.blocking_send(ProbeEvent::Recovered(time));
            }
            let (Some(call), Some(driver)) = (call, driver_roots.find()) else {
                return;
            };
            let on_report = |report: ProbeReport| {
                if report.probe.result == ProbeResult::Responds {
                    call.answered();
                }
                call.end_turn();
                match sender.blocking_send(ProbeEvent::Probed(Box::new(report))) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            };
            if let Err(error) = probe(&driver.library, &targets, |gpu| call.begin_turn(gpu), on_report) {
                debug!(%error, "cannot probe the GPUs");
                _ = sender.blocking_send(ProbeEvent::Failed);
            }
        });
        self.round = Some(ProbeRound {
            events,
            call: number,
            waiting,
            since: now,
            is_blocked: false,
        });
    }

    /// Returns the results that the unanswered probes would have now.
    pub fn unanswered(&self) -> Vec<GpuProbe> {
        let results = self.unanswered.iter().map(|(gpu, result)| (gpu, *result));
        let round = self.round.iter().filter(|round| round.is_blocked);
        let waiting = round.flat_map(|round| round.waiting.iter().map(|gpu| (gpu, ProbeResult::Blocked)));
        let all = results.chain(waiting);
        all.map(|(gpu, result)| no_answer(gpu, result)).collect()
    }

    /// Returns the next event.
    pub async fn next(&mut self) -> ProbeEvent {
        loop {
            if let Some(Ok((gpu, event))) = self.answers.try_join_next() {
                return self.answered(&gpu, event);
            }
            if let Some(probe) = self.reports.pop_front() {
                return ProbeEvent::NoAnswer(probe);
            }
            let due = self.next.max(self.earliest);
            let given_up = self.round.as_ref().map_or(due, |round| round.since + TIMEOUT);
            tokio::select! {
                biased;
                Some(Ok((gpu, event))) = self.answers.join_next() => return self.answered(&gpu, event),
                event = next_event(&mut self.round) => return self.handle(event),
                () = sleep_until(given_up), if self.round.is_some() => if !self.has_begun_turn()
                    && let Some(event) = self.judge_round()
                {
                    return event;
                },
                () = sleep_until(due), if self.round.is_none() => return ProbeEvent::Due,
            }
        }
    }

    /// Takes a GPU that answered late back into the rounds.
    fn answered(&mut self, gpu: &str, event: Option<ProbeEvent>) -> ProbeEvent {
        self.unanswered.remove(gpu);
        self.reports.retain(|report| report.gpu != gpu);
        event.unwrap_or(ProbeEvent::Failed)
    }

    fn handle(&mut self, event: Option<ProbeEvent>) -> ProbeEvent {
        if let (Some(round), Some(ProbeEvent::Probed(report))) = (&mut self.round, &event) {
            // NVML answers for a GPU that is lost without asking the driver.
            if report.probe.result == ProbeResult::Responds {
                self.answers_since.get_or_insert_with(Instant::now);
                self.silent_before.clear();
            }
            round.waiting.remove(&report.probe.gpu);
            self.reports.retain(|other| other.gpu != report.probe.gpu);
        }
        if let Some(round) = &mut self.round {
            round.since = Instant::now();
        }
        event.unwrap_or_else(|| {
            self.earliest = Instant::now() + LEAST;
            self.round = None;
            self.blame_blocked();
            ProbeEvent::Done
        })
    }

    /// Reports the blocked GPUs as hanging when the driver has answered for others for long, and not for them.
    fn blame_blocked(&mut self) {
        if self.answers_since.is_none_or(|since| since.elapsed() < TIMEOUT) {
            return;
        }
        let blocked = self.unanswered.iter_mut();
        for (gpu, result) in blocked.filter(|(_, result)| **result == ProbeResult::Blocked) {
            *result = ProbeResult::Hangs;
            self.reports.push_back(no_answer(gpu, *result));
        }
    }

    /// Gives the current GPU its own time, if its turn began after the last event: the session may have taken long to open, or
    /// the turn before. Returns false if it had its time.
    fn has_begun_turn(&mut self) -> bool {
        let Some(round) = &mut self.round else { return false };
        let progress = round.call.and_then(|call| self.driver_roots.calls.progress(call));
        let begun = progress
            .and_then(|progress| progress.since)
            .filter(|since| *since > round.since);
        round.since = begun.unwrap_or(round.since);
        begun.is_some()
    }

    /// Judges a round without an answer. Its current GPU gets no further probe before it answers.
    fn judge_round(&mut self) -> Option<ProbeEvent> {
        let round = self.round.take()?;
        let calls = &self.driver_roots.calls;
        let own = round.call.and_then(|call| calls.progress(call));
        let current = own.as_ref().and_then(|call| call.gpu.clone());
        let began = own.as_ref().and_then(|call| call.since).unwrap_or(round.since);
        let blocking = calls.first_unanswered(began).filter(|_| own.is_some());
        let first = blocking.clone().map_or_else(|| current.clone(), |call| call.gpu);
        // A call of the agent that could not get an answer before may still hold the driver.
        let may_hang = |gpu: &String| self.silent_before.is_empty() || self.silent_before.contains(gpu);
        let hanging = first.clone().filter(may_hang);
        let is_blocked = blocking.is_some() || hanging != first;
        let blocked = round
            .waiting
            .iter()
            .filter(|gpu| is_blocked && hanging.as_ref() != Some(gpu));
        let blocked = blocked.map(|gpu| no_answer(gpu, ProbeResult::Blocked));
        let first = hanging.iter().map(|gpu| no_answer(gpu, ProbeResult::Hangs));
        self.reports.extend(first.chain(blocked));
        if is_blocked {
            self.answers_since = None;
        }
        let Some(gpu) = current else {
            // The thread waits on, such as for the session to open.
            self.round = Some(ProbeRound {
                since: Instant::now(),
                is_blocked,
                ..round
            });
            return (own.is_some() && !is_blocked).then_some(ProbeEvent::Failed);
        };
        let is_first = hanging.as_ref() == Some(&gpu);
        let result = if is_first {
            ProbeResult::Hangs
        } else {
            ProbeResult::Blocked
        };
        self.unanswered.insert(gpu.clone(), result);
        let mut events = round.events;
        self.answers.spawn(async move { (gpu, events.recv().await) });
        self.next = Instant::now();
        None
    }
}

/// Returns the result for a GPU without an answer.
fn no_answer(gpu: &str, result: ProbeResult) -> GpuProbe {
    let target = ProbeTarget {
        gpu: gpu.to_owned(),
        ..ProbeTarget::default()
    };
    GpuProbe {
        result,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn probe_loop() -> ProbeLoop {
        let nowhere = Path::new("/nonexistent");
        ProbeLoop::new(DriverRoots::of_host(nowhere), nowhere.to_owned(), BTreeSet::new())
    }

    /// Begins a round whose probe of the GPU `at` has no answer; `waiting` are those without one in this round.
    fn hang_at(probes: &mut ProbeLoop, at: Option<&str>, waiting: &[&str]) -> DriverCall {
        let call = probes.driver_roots.calls.begin().unwrap();
        if at.is_some() {
            call.begin_turn(at);
        }
        probes.round = Some(ProbeRound {
            events: mpsc::channel(1).1,
            call: Some(call.number()),
            waiting: waiting.iter().map(|gpu| (*gpu).to_owned()).collect(),
            since: Instant::now(),
            is_blocked: false,
        });
        call
    }

    fn reported(probes: &mut ProbeLoop) -> Vec<(String, ProbeResult)> {
        probes
            .reports
            .drain(..)
            .map(|probe| (probe.gpu, probe.result))
            .collect()
    }

    fn results(results: &[(&str, ProbeResult)]) -> Vec<(String, ProbeResult)> {
        results
            .iter()
            .map(|(gpu, result)| ((*gpu).to_owned(), *result))
            .collect()
    }

    use ProbeResult::{Blocked, Hangs};

    #[tokio::test]
    async fn the_gpu_whose_call_hung_first_hangs_and_the_others_are_blocked() {
        let mut probes = probe_loop();
        let _first = hang_at(&mut probes, Some("B"), &["B", "C"]);
        assert!(probes.judge_round().is_none());
        assert_eq!(reported(&mut probes), results(&[("B", Hangs)]));
        // The next round leaves it out; its session does not even open.
        let opening = hang_at(&mut probes, None, &["A", "C"]);
        let expected = results(&[("B", Hangs), ("A", Blocked), ("C", Blocked)]);
        for _ in 0..2 {
            assert!(probes.judge_round().is_none());
            assert_eq!(reported(&mut probes), expected);
            assert!(probes.round.is_some(), "its thread waits on");
            assert_eq!(probes.unanswered().len(), 3);
        }
        opening.begin_turn(Some("A"));
        assert!(probes.judge_round().is_none());
        assert_eq!(reported(&mut probes), expected);
        assert!(probes.round.is_none());
        let unanswered = probes.unanswered().into_iter().map(|probe| (probe.gpu, probe.result));
        assert_eq!(unanswered.collect::<Vec<_>>(), results(&[("A", Blocked), ("B", Hangs)]));
    }

    #[tokio::test]
    async fn a_call_of_another_task_may_be_the_one_that_hung_first() {
        for gpu in [None, Some("B")] {
            let mut probes = probe_loop();
            let reading = probes.driver_roots.calls.begin().unwrap();
            reading.begin_turn(gpu);
            let _probing = hang_at(&mut probes, Some("A"), &["A", "B"]);
            assert!(probes.judge_round().is_none());
            let expected = match gpu {
                Some(gpu) => results(&[(gpu, Hangs), ("A", Blocked)]),
                None => results(&[("A", Blocked), ("B", Blocked)]),
            };
            assert_eq!(reported(&mut probes), expected);
        }
    }

    #[tokio::test]
    async fn a_blocked_gpu_hangs_itself_if_the_driver_answers_for_others_for_long() {
        let mut probes = probe_loop();
        let _first = hang_at(&mut probes, Some("B"), &["A", "B", "C"]);
        assert!(probes.judge_round().is_none());
        probes.answers_since = Some(Instant::now());
        let _second = hang_at(&mut probes, Some("A"), &["A", "C"]);
        assert!(probes.judge_round().is_none());
        reported(&mut probes);
        assert_eq!(probes.answers_since, None);
        let now = Instant::now();
        for (since, expected) in [
            (None, results(&[])),
            (Some(now), results(&[])),
            (now.checked_sub(TIMEOUT), results(&[("A", Hangs)])),
        ] {
            probes.answers_since = since;
            assert!(matches!(probes.handle(None), ProbeEvent::Done));
            assert_eq!(reported(&mut probes), expected, "{since:?}");
        }
    }

    #[tokio::test]
    async fn a_gpu_hangs_itself_if_the_driver_answered_since_another_one_hung() {
        for (answers, expected) in [(true, Hangs), (false, Blocked)] {
            let mut probes = probe_loop();
            let _first = hang_at(&mut probes, Some("B"), &["B"]);
            assert!(probes.judge_round().is_none());
            assert_eq!(reported(&mut probes), results(&[("B", Hangs)]));
            let call = hang_at(&mut probes, None, &["C"]);
            if answers {
                call.begin_turn(Some("A"));
                call.answered();
            }
            call.begin_turn(Some("C"));
            assert!(probes.judge_round().is_none());
            assert_eq!(reported(&mut probes).pop(), results(&[("C", expected)]).pop());
        }
    }

    /// NVML says so by itself, though the driver answers no call.
    #[tokio::test]
    async fn that_a_gpu_is_lost_is_no_answer_of_the_driver() {
        for (result, answers) in [(ProbeResult::Lost, false), (ProbeResult::Responds, true)] {
            let mut probes = probe_loop();
            let _call = hang_at(&mut probes, Some("A"), &["A"]);
            let report = ProbeReport {
                probe: no_answer("A", result),
                links: None,
                fabric: None,
                link_ends: Vec::new(),
                failed: Vec::new(),
            };
            probes.handle(Some(ProbeEvent::Probed(Box::new(report))));
            assert_eq!(probes.answers_since.is_some(), answers, "{result:?}");
        }
    }

    #[tokio::test]
    async fn a_gpu_without_an_answer_to_an_earlier_agent_may_hold_the_driver() {
        let mut probes = probe_loop();
        probes.silent_before = BTreeSet::from(["B".to_owned()]);
        let _first = hang_at(&mut probes, Some("A"), &["A", "B"]);
        assert!(probes.judge_round().is_none());
        assert_eq!(reported(&mut probes), results(&[("A", Blocked), ("B", Blocked)]));
        let mut probes = probe_loop();
        probes.silent_before = BTreeSet::from(["B".to_owned()]);
        let _first = hang_at(&mut probes, Some("B"), &["B"]);
        assert!(probes.judge_round().is_none());
        assert_eq!(reported(&mut probes), results(&[("B", Hangs)]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gpu_whose_turn_begins_late_has_the_whole_time_to_answer() {
        let mut probes = probe_loop();
        let call = hang_at(&mut probes, None, &["A"]);
        let (_sender, events) = mpsc::channel(1);
        probes.round.as_mut().unwrap().events = events;
        sleep_until(Instant::now() + TIMEOUT - LEAST).await;
        call.begin_turn(Some("A"));
        let start = Instant::now();
        assert!(matches!(probes.next().await, ProbeEvent::NoAnswer(_)));
        assert!(start.elapsed() >= TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_session_that_does_not_open_blames_no_gpu() {
        let mut probes = probe_loop();
        let call = hang_at(&mut probes, None, &["A"]);
        assert!(matches!(probes.judge_round(), Some(ProbeEvent::Failed)));
        assert_eq!(reported(&mut probes), results(&[]));
        drop(call);
        assert!(probes.judge_round().is_none(), "the round has just ended");
        assert_eq!(reported(&mut probes), results(&[]));
    }
}
