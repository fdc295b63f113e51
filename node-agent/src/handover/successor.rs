//! The side of a successor: stands by, asks, and proves that it does the work.

use super::{
    Handover, RETRY, RETRY_SOON, TakenLock,
    conversation::{Conversation, ConversationError},
    lock::{self, NodeLock, is_held},
    protocol::{HandoverRequest, HolderResponse, Successor, short},
    record::HandoverRecord,
};
use crate::runtime::clock::since_boot;
use gpunode_process::OnChange;
use std::time::Duration;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

/// How long the holder may take to withdraw from the kubelet.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the lock of a holder that has let go may stay taken.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a successor tries to do the work before it gives the lock back. Less than the holder before it waits.
const PROVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the agent before to take the lock again.
pub(super) const GIVE_BACK: Duration = Duration::from_secs(5);
/// Pause after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// How long the disk may take to note an attempt.
const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of a question.
enum TakeoverResult {
    /// There is nobody to ask.
    Nobody,
    /// No.
    Refused(String),
    /// The lock is this agent's.
    Took(TakenLock),
    /// The holder broke off, or another successor was faster.
    Failed(String),
}

impl Handover {
    /// Waits until this agent has the lock. Hardware and configuration are loaded meanwhile.
    pub(super) async fn stand_by(&mut self) -> Result<TakenLock, lock::LockError> {
        let mut record = self.record().await;
        let has_let_go = record.has_let_go(&self.who.pod);
        let mut due = Instant::now() + record.pause(&self.who, since_boot());
        let (mut waiting, mut refusals) = (false, OnChange::default());
        let mut was_held = has_let_go;
        loop {
            // One that has let go does not come between two others.
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
                        "the agent that holds the lock of this node does not let go; asking again"
                    );
                }
            }
            sleep(RETRY).await;
        }
    }

    async fn ask(
        &self,
        problem: Option<String>,
        record: &mut HandoverRecord,
    ) -> Result<TakeoverResult, lock::LockError> {
        // An older version has no socket, one that was killed leaves it behind, and one that has just let go listens no more.
        let Ok(mut holder) = Conversation::open(&self.socket()).await else {
            return Ok(TakeoverResult::Nobody);
        };
        let before = record.clone();
        let fit = problem.is_none();
        if fit {
            // Before anything that could end this process.
            record.asks(&self.who, since_boot());
            self.save(record).await;
        }
        let (version, pod) = (self.who.version.clone(), self.who.pod.clone());
        let successor = Successor {
            version,
            pod,
            problem: problem.as_deref().map(short),
        };
        info!("asking the agent that holds the lock of this node to let go");
        match Self::released(&mut holder, successor).await {
            Ok(HolderResponse::Released { pod }) => self.take_released(holder, pod).await,
            Ok(HolderResponse::Refused { reason }) => {
                // It has not failed.
                *record = before;
                if fit {
                    self.save(record).await;
                }
                Ok(TakeoverResult::Refused(reason))
            }
            Ok(HolderResponse::Holding {}) => Ok(TakeoverResult::Failed("it answers what it was not asked".to_owned())),
            Err(error) => Ok(TakeoverResult::Failed(error.to_string())),
        }
    }

    async fn released(holder: &mut Conversation, successor: Successor) -> Result<HolderResponse, ConversationError> {
        holder.say(&HandoverRequest::LetGo(successor)).await?;
        holder.hear(ANSWER_TIMEOUT).await
    }

    async fn take_released(&self, holder: Conversation, pod: String) -> Result<TakeoverResult, lock::LockError> {
        match timeout(LOCK_TIMEOUT, self.wait_for_lock(RETRY_SOON)).await {
            Ok(lock) => Ok(TakeoverResult::Took(TakenLock::From(lock?, holder, pod))),
            Err(_) => Ok(TakeoverResult::Failed(
                "it let go, and yet another agent has taken the lock".to_owned(),
            )),
        }
    }

    /// Tells the holder before, which waits on the connection, that the kubelet has taken what there is to register. Where that
    /// does not come about, gives back the connection of one that still waits.
    pub(super) async fn prove(&mut self, mut predecessor: Conversation, pod: &str) -> Result<(), Conversation> {
        let mut ready = self.ready.clone();
        let proved = tokio::select! {
            ready = ready.wait_for(Result::is_ok) => ready.is_ok(),
            () = predecessor.ended() => {
                warn!(pod, "the agent before this one has ended; nobody could take over again");
                return Ok(());
            }
            () = sleep(PROVE_TIMEOUT) => false,
        };
        if !proved {
            let reason = self.ready.borrow().clone().err().unwrap_or_default();
            warn!(
                reason,
                pod, "the work cannot be done within {PROVE_TIMEOUT:?}; giving the lock back"
            );
            return Err(predecessor);
        }
        if let Err(error) = predecessor.say(&HandoverRequest::Serving {}).await {
            warn!(%error, "tell the agent before this one that it is not needed any more");
        }
        info!(pod, "took over from the agent before this one");
        let mut record = self.record().await;
        record.took_over(&self.who, &self.wanted.policy, pod);
        self.save(&record).await;
        Ok(())
    }

    pub(super) async fn record(&self) -> HandoverRecord {
        let folder = self.state_dir.clone();
        let read = timeout(DISK_TIMEOUT, spawn_blocking(move || HandoverRecord::load(&folder))).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// What cannot be saved is no reason not to go on: the pauses then start anew with each process.
    async fn save(&self, record: &HandoverRecord) {
        let (folder, record) = (self.state_dir.clone(), record.clone());
        let error = match timeout(DISK_TIMEOUT, spawn_blocking(move || record.save(&folder))).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {DISK_TIMEOUT:?}"),
        };
        warn!(error, folder = %self.state_dir.display(), "note the hand-over");
    }
}
