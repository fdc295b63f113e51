//! Successor's side: waits on standby, asks the holder for the lock, and confirms that it serves the node.

use super::{
    command::Fitness,
    connection::{PeerConnection, PeerError},
    lock::{LockError, NodeLock, is_held},
    protocol::{HandoverRequest, HolderResponse, SOCKET, Successor, truncate},
    record::{AgentId, HandoverRecord},
    take_back::TakeBack,
};
use crate::{admin::server::Readiness, runtime::clock::since_boot, store::atomic_file::DISK_TIMEOUT};
use gpunode_process::OnChange;
use std::{path::PathBuf, time::Duration};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

/// Interval between attempts to take the lock.
const RETRY: Duration = Duration::from_millis(200);
/// Shorter interval after a failed hand-over, so that the previous holder is the first to take the lock.
pub const RETRY_SOON: Duration = Duration::from_millis(20);
/// Pause between two checks of the record, before this agent takes the node back.
const RECHECK: Duration = Duration::from_secs(1);
/// Timeout for the holder to withdraw from the kubelet and answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout to take the lock that a holder has released.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout to become ready before the successor returns the lock. Shorter than the wait of the previous holder.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the previous holder to take the lock again.
pub const RETURN_PAUSE: Duration = Duration::from_secs(5);
/// Pause after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// Result of a request to the holder.
enum TakeoverResult {
    /// No agent listens on the socket.
    Nobody,
    /// The holder refused, for this reason.
    Refused(String),
    /// This agent has the lock.
    Took(TakenLock),
    /// The holder failed, or another successor took the lock first.
    Failed(String),
}

/// Lock that a successor has taken, by its origin.
#[derive(Debug)]
pub enum TakenLock {
    /// No agent held it.
    Free(NodeLock),
    /// A holder released it; that agent, of this pod, awaits the confirmation on the connection.
    From(NodeLock, PeerConnection, String),
}

/// Successor's side of hand-overs.
#[derive(Debug)]
pub struct HandoverClient {
    /// Folder of the lock, the socket and the record.
    pub state_dir: PathBuf,
    /// Identity of this agent.
    pub agent: AgentId,
    /// Condition under which this agent takes the node back after a hand-over.
    pub take_back: TakeBack,
    /// Ability of this agent to serve the node.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Readiness of this agent.
    pub readiness: watch::Receiver<Readiness>,
}

impl HandoverClient {
    /// Waits until this agent has the lock. The main loop loads hardware and configuration meanwhile.
    pub async fn acquire(&mut self) -> Result<TakenLock, LockError> {
        let mut record = self.record().await;
        let has_handed_over = record.has_handed_over(&self.agent.pod);
        let mut due = Instant::now() + record.pause(&self.agent, since_boot());
        let (mut waiting, mut refusals) = (false, OnChange::default());
        let mut was_held = has_handed_over;
        loop {
            // An agent that has handed over does not come between two others in a hand-over.
            let is_held = has_handed_over && is_held(&self.state_dir);
            if !is_held
                && !was_held
                && let Some(lock) = NodeLock::take(&self.state_dir)?
            {
                return Ok(TakenLock::Free(lock));
            }
            was_held = is_held;
            if !waiting {
                info!(
                    reason = "WaitingForPredecessor",
                    has_handed_over, "another agent of this node is registered"
                );
                waiting = true;
            }
            let may_request = due <= Instant::now() && (!has_handed_over || self.may_take_back().await);
            let fitness = self.fitness.borrow().clone().filter(|_| may_request);
            if let Some(fitness) = fitness {
                let refusal = match self.request(fitness.problem, &mut record).await? {
                    TakeoverResult::Took(taken) => return Ok(taken),
                    TakeoverResult::Nobody => None,
                    TakeoverResult::Refused(reason) => {
                        due = Instant::now() + REFUSED_PAUSE;
                        Some(reason)
                    }
                    TakeoverResult::Failed(reason) => {
                        due = Instant::now() + record.pause(&self.agent, since_boot());
                        Some(reason)
                    }
                };
                if let Some(reason) = refusals.set(refusal) {
                    warn!(
                        reason,
                        "the agent that holds the lock of this node does not hand over; asking again"
                    );
                }
            }
            sleep(RETRY).await;
        }
    }

    /// Waits until this agent may take the node back.
    pub async fn wait_to_take_back(&self) {
        self.take_back.wait_until_met().await;
        while !self.may_take_back().await {
            sleep(RECHECK).await;
            self.take_back.wait_until_met().await;
        }
    }

    /// Returns true if this agent may take the node back now. The watched GpuNode may be stale, so the record on disk, which names
    /// the policy of the last holder, has to agree.
    async fn may_take_back(&self) -> bool {
        self.take_back.is_met() && self.record().await.is_served_by_another(&self.take_back.policy)
    }

    /// Waits until the lock stays free for longer than a hand-over between two other agents takes, without asking a holder.
    pub async fn wait_until_unheld(&self) -> Result<NodeLock, LockError> {
        let mut was_held = true;
        loop {
            let held = is_held(&self.state_dir);
            if !held
                && !was_held
                && let Some(lock) = NodeLock::take(&self.state_dir)?
            {
                return Ok(lock);
            }
            was_held = held;
            sleep(RETRY).await;
        }
    }

    /// Waits for the lock without asking a holder.
    pub async fn wait_for_lock(&self, pause: Duration) -> Result<NodeLock, LockError> {
        loop {
            if let Some(lock) = NodeLock::take(&self.state_dir)? {
                return Ok(lock);
            }
            sleep(pause).await;
        }
    }

    async fn request(&self, problem: Option<String>, record: &mut HandoverRecord) -> Result<TakeoverResult, LockError> {
        // An older version has no socket, a killed agent left a dead one, and one that has just handed over no longer listens.
        let Ok(mut holder) = PeerConnection::connect(&self.state_dir.join(SOCKET)).await else {
            return Ok(TakeoverResult::Nobody);
        };
        let before = record.clone();
        let fit = problem.is_none();
        if fit {
            // The attempt must be on disk before anything that could end this process.
            record.count_attempt(&self.agent, since_boot());
            self.save(record).await;
        }
        let (version, pod) = (self.agent.version.clone(), self.agent.pod.clone());
        let successor = Successor {
            version,
            pod,
            problem: problem.as_deref().map(truncate),
        };
        info!("asking the agent that holds the lock of this node to hand over");
        match Self::ask_holder(&mut holder, successor).await {
            Ok(HolderResponse::Released { pod }) => self.take_released(holder, pod).await,
            Ok(HolderResponse::Refused { reason }) => {
                // A refusal does not count as a failed attempt.
                *record = before;
                if fit {
                    self.save(record).await;
                }
                Ok(TakeoverResult::Refused(reason))
            }
            Ok(HolderResponse::Holding {}) => Ok(TakeoverResult::Failed("unexpected answer of the holder".to_owned())),
            Err(error) => Ok(TakeoverResult::Failed(error.to_string())),
        }
    }

    async fn ask_holder(holder: &mut PeerConnection, successor: Successor) -> Result<HolderResponse, PeerError> {
        holder.send(&HandoverRequest::LetGo(successor)).await?;
        holder.receive(ANSWER_TIMEOUT).await
    }

    async fn take_released(&self, holder: PeerConnection, pod: String) -> Result<TakeoverResult, LockError> {
        match timeout(LOCK_TIMEOUT, self.wait_for_lock(RETRY_SOON)).await {
            Ok(lock) => Ok(TakeoverResult::Took(TakenLock::From(lock?, holder, pod))),
            Err(_) => Ok(TakeoverResult::Failed(
                "the holder released the lock, but another agent has taken it".to_owned(),
            )),
        }
    }

    /// Waits until the kubelet has accepted the registration, and confirms it to the previous holder. On failure returns the
    /// connection of the previous holder, which still waits.
    pub async fn confirm(&mut self, mut predecessor: PeerConnection, pod: &str) -> Result<(), PeerConnection> {
        let mut ready = self.readiness.clone();
        let is_ready = tokio::select! {
            ready = ready.wait_for(Result::is_ok) => ready.is_ok(),
            () = predecessor.closed() => {
                warn!(pod, "the previous agent has ended; no agent could take the node back");
                return Ok(());
            }
            () = sleep(READY_TIMEOUT) => false,
        };
        if !is_ready {
            let reason = self
                .readiness
                .borrow()
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default();
            warn!(
                reason,
                pod, "this agent is not ready within {READY_TIMEOUT:?}; returning the lock"
            );
            return Err(predecessor);
        }
        if let Err(error) = predecessor.send(&HandoverRequest::Serving {}).await {
            warn!(%error, "cannot confirm the hand-over to the previous agent");
        }
        info!(pod, "took over from the previous agent");
        let mut record = self.record().await;
        record.took_over(&self.agent, &self.take_back.policy, pod);
        self.save(&record).await;
        Ok(())
    }

    async fn record(&self) -> HandoverRecord {
        let folder = self.state_dir.clone();
        let read = timeout(DISK_TIMEOUT, spawn_blocking(move || HandoverRecord::load(&folder))).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Saves the record. A failure is only logged: the pauses then restart with each process.
    async fn save(&self, record: &HandoverRecord) {
        let (folder, record) = (self.state_dir.clone(), record.clone());
        let error = match timeout(DISK_TIMEOUT, spawn_blocking(move || record.save(&folder))).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {DISK_TIMEOUT:?}"),
        };
        warn!(error, folder = %self.state_dir.display(), "cannot save the hand-over record");
    }
}
