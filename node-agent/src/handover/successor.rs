//! Successor's side: waits on standby, asks the holder for the lock, and confirms that it serves the node.

use super::{
    command::Fitness,
    conversation::{Conversation, ConversationError},
    lock::{LockError, NodeLock, is_held},
    protocol::{HandoverRequest, HolderResponse, SOCKET, Successor, short},
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
/// Pause before another check whether this agent takes the node back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Timeout for the holder to withdraw from the kubelet and answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout to take the lock that a holder has released.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout to become ready before the successor returns the lock. Shorter than the wait of the previous holder.
const PROVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the previous holder to take the lock again.
pub const GIVE_BACK: Duration = Duration::from_secs(5);
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
    From(NodeLock, Conversation, String),
}

/// Successor's side of hand-overs.
#[derive(Debug)]
pub struct HandoverClient {
    /// Folder of the lock, the socket and the record.
    pub state_dir: PathBuf,
    /// Identity of this agent.
    pub who: AgentId,
    /// Condition under which this agent takes the node back after a hand-over.
    pub take_back: TakeBack,
    /// Ability of this agent to serve the node.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Readiness of this agent.
    pub ready: watch::Receiver<Readiness>,
}

impl HandoverClient {
    /// Waits until this agent has the lock. The main loop loads hardware and configuration meanwhile.
    pub async fn stand_by(&mut self) -> Result<TakenLock, LockError> {
        let mut record = self.record().await;
        let has_let_go = record.has_let_go(&self.who.pod);
        let mut due = Instant::now() + record.pause(&self.who, since_boot());
        let (mut waiting, mut refusals) = (false, OnChange::default());
        let mut was_held = has_let_go;
        loop {
            // An agent that has handed over does not come between two others in a hand-over.
            let is_held = has_let_go && is_held(&self.state_dir);
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
                    has_let_go, "another agent of this node is registered"
                );
                waiting = true;
            }
            let asks = due <= Instant::now() && (!has_let_go || self.is_wanted_back().await);
            let fitness = self.fitness.borrow().clone().filter(|_| asks);
            if let Some(fitness) = fitness {
                let refusal = match self.ask(fitness.problem, &mut record).await? {
                    TakeoverResult::Took(taken) => return Ok(taken),
                    TakeoverResult::Nobody => None,
                    TakeoverResult::Refused(reason) => {
                        due = Instant::now() + REFUSED_PAUSE;
                        Some(reason)
                    }
                    TakeoverResult::Failed(reason) => {
                        due = Instant::now() + record.pause(&self.who, since_boot());
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
    pub async fn wanted_back(&self) {
        self.take_back.back().await;
        while !self.is_wanted_back().await {
            sleep(LOOK_AGAIN).await;
            self.take_back.back().await;
        }
    }

    /// Returns whether this agent may take the node back now. The watched GpuNode may be stale, so the record on disk, which names
    /// the policy of the last holder, has to agree.
    async fn is_wanted_back(&self) -> bool {
        self.take_back.is_back() && self.record().await.serves_another(&self.take_back.policy)
    }

    /// Waits until the lock stays free for longer than a hand-over between two other agents takes, without asking a holder.
    pub async fn wait_for_nobody(&self) -> Result<NodeLock, LockError> {
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

    async fn ask(&self, problem: Option<String>, record: &mut HandoverRecord) -> Result<TakeoverResult, LockError> {
        // An older version has no socket, a killed agent left a dead one, and one that has just handed over listens no more.
        let Ok(mut holder) = Conversation::open(&self.state_dir.join(SOCKET)).await else {
            return Ok(TakeoverResult::Nobody);
        };
        let before = record.clone();
        let fit = problem.is_none();
        if fit {
            // The attempt must be on disk before anything that could end this process.
            record.asks(&self.who, since_boot());
            self.save(record).await;
        }
        let (version, pod) = (self.who.version.clone(), self.who.pod.clone());
        let successor = Successor {
            version,
            pod,
            problem: problem.as_deref().map(short),
        };
        info!("asking the agent that holds the lock of this node to hand over");
        match Self::released(&mut holder, successor).await {
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

    async fn released(holder: &mut Conversation, successor: Successor) -> Result<HolderResponse, ConversationError> {
        holder.say(&HandoverRequest::LetGo(successor)).await?;
        holder.hear(ANSWER_TIMEOUT).await
    }

    async fn take_released(&self, holder: Conversation, pod: String) -> Result<TakeoverResult, LockError> {
        match timeout(LOCK_TIMEOUT, self.wait_for_lock(RETRY_SOON)).await {
            Ok(lock) => Ok(TakeoverResult::Took(TakenLock::From(lock?, holder, pod))),
            Err(_) => Ok(TakeoverResult::Failed(
                "the holder released the lock, but another agent has taken it".to_owned(),
            )),
        }
    }

    /// Waits until the kubelet has accepted the registration, and confirms it to the previous holder. On failure returns the
    /// connection of the previous holder, which still waits.
    pub async fn prove(&mut self, mut predecessor: Conversation, pod: &str) -> Result<(), Conversation> {
        let mut ready = self.ready.clone();
        let proved = tokio::select! {
            ready = ready.wait_for(Result::is_ok) => ready.is_ok(),
            () = predecessor.ended() => {
                warn!(pod, "the previous agent has ended; no agent could take the node back");
                return Ok(());
            }
            () = sleep(PROVE_TIMEOUT) => false,
        };
        if !proved {
            let reason = self
                .ready
                .borrow()
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default();
            warn!(
                reason,
                pod, "this agent is not ready within {PROVE_TIMEOUT:?}; returning the lock"
            );
            return Err(predecessor);
        }
        if let Err(error) = predecessor.say(&HandoverRequest::Serving {}).await {
            warn!(%error, "cannot confirm the hand-over to the previous agent");
        }
        info!(pod, "took over from the previous agent");
        let mut record = self.record().await;
        record.took_over(&self.who, &self.take_back.policy, pod);
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
