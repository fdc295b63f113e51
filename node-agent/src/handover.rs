//! One registered agent per node, by a lock on the node, and the hand-over of that lock from an agent to its successor.
//!
//! The lock decides; the socket only spares the kubelet a gap. A successor stands by with hardware and configuration loaded,
//! asks the holder over `agent.sock` to let go, takes the lock, and says so once the kubelet has taken its lists. Where that
//! does not come, the holder before it takes the lock again as soon as it is free. Without anybody on the socket (an older
//! version, or one that was killed) a successor waits for the lock alone.
//!
//! | module | what it does |
//! |---|---|
//! | `lock` | the lock of the node |
//! | `successor` | stands by, asks the holder, takes the lock |
//! | `holder` | serves the socket and lets go |
//! | `protocol` | what both say, pure |
//! | `conversation` | one connection between both |
//! | `record` | notes on disk which successors failed and which pods let go |
//! | `take_back` | tells whether an agent that let go is wanted back |
//! | `alive` | checks that this agent still answers on its socket |

mod alive;
mod conversation;
mod holder;
mod lock;
mod protocol;
mod record;
mod successor;
mod take_back;

pub use alive::watch as watch_own_socket;
pub use lock::{NodeLock, is_held};
pub use record::AgentId;
pub use take_back::TakeBack;

use crate::{admin::server::Readiness, runtime::channel::send_if_new};
use std::{convert::Infallible, path::PathBuf, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// The socket in the state folder.
const SOCKET: &str = "agent.sock";
/// How soon a free lock is noticed.
const RETRY: Duration = Duration::from_millis(200);
/// The same after a failed hand-over, so that the agent that was at work before is the first.
const RETRY_SOON: Duration = Duration::from_millis(20);
/// For how long: then a third agent has been faster.
const SOON: Duration = Duration::from_secs(10);
/// How soon an agent is asked for that is to have the node again, where another of its policy had it just now.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the agent has to do.
#[derive(Debug)]
pub enum HandoverCommand {
    /// This agent holds the lock: it reads what the one before it left, and registers.
    Hold,
    /// It withdraws from the kubelet, forgets what it knows of the devices, and says so: what it leaves is on disk.
    LetGo(oneshot::Sender<()>),
    /// It shows that it still takes its turns.
    Answer(oneshot::Sender<()>),
    /// The lock cannot be used.
    Fail(lock::LockError),
}

/// Whether this agent could offer the GPUs of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// Why it could not.
    pub problem: Option<String>,
}

/// This agent's part in hand-overs.
#[derive(Debug)]
pub struct Handover {
    /// Folder of lock, socket and record, the same for every agent of the node.
    pub state_dir: PathBuf,
    /// This agent.
    pub who: AgentId,
    /// Whether it is to have the node again after it has let go.
    pub wanted: TakeBack,
    /// Whether it could offer the GPUs; none before hardware and configuration are known, and nobody is asked to let go.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Whether it has done what a holder has to do.
    pub ready: watch::Receiver<Readiness>,
    /// Where the agent takes its turns.
    pub turns: mpsc::Sender<HandoverCommand>,
    /// Whether the socket is served.
    pub served: watch::Sender<bool>,
}

/// How a successor came to the lock.
#[derive(Debug)]
enum TakenLock {
    /// Nobody held it.
    Free(NodeLock),
    /// From another agent, which waits on the connection to hear that all is well.
    From(NodeLock, conversation::Conversation, String),
}

impl Handover {
    /// Takes the lock, holds it, lets go of it. Ends with the process.
    pub async fn follow(mut self) {
        match self.run().await {
            Ok(never) => match never {},
            Err(error) => {
                self.turn(HandoverCommand::Fail(error)).await;
                std::future::pending::<()>().await;
            }
        }
    }

    async fn run(&mut self) -> Result<Infallible, lock::LockError> {
        let mut taken = self.stand_by().await?;
        loop {
            self.turn(HandoverCommand::Hold).await;
            let mut lock = match taken {
                TakenLock::Free(lock) => lock,
                TakenLock::From(lock, predecessor, pod) => match self.prove(predecessor, &pod).await {
                    Ok(()) => lock,
                    Err(predecessor) => {
                        self.let_go().await;
                        drop(lock);
                        drop(predecessor);
                        // The agent before takes the lock first.
                        sleep(successor::GIVE_BACK).await;
                        taken = self.stand_by().await?;
                        continue;
                    }
                },
            };
            let (successor, named) = self.hold(&mut lock).await?;
            info!(
                successor = named.pod,
                version = named.version,
                "letting a successor take over"
            );
            self.let_go().await;
            drop(lock);
            taken = self.stand_back(successor).await?;
        }
    }

    /// Waits until this agent, which has let go, is to hold the lock again: the successor has not taken over, nobody is there any
    /// more, or it is wanted back.
    async fn stand_back(&mut self, successor: conversation::Conversation) -> Result<TakenLock, lock::LockError> {
        let mut free = None;
        if !self.see_off(successor).await {
            free = timeout(SOON, self.wait_for_lock(RETRY_SOON)).await.ok();
        }
        if free.is_none() {
            free = tokio::select! {
                lock = self.wait_for_nobody() => Some(lock),
                () = self.wanted_back() => None,
            };
        }
        let Some(lock) = free else { return self.stand_by().await };
        let lock = lock?;
        warn!("no other agent of this node is at work any more: taking over again");
        Ok(TakenLock::Free(lock))
    }

    /// Waits until this agent is to have the node again.
    async fn wanted_back(&self) {
        self.wanted.back().await;
        while !self.is_wanted_back().await {
            sleep(LOOK_AGAIN).await;
            self.wanted.back().await;
        }
    }

    /// Whether it is so now. What the API server says may be old; who took over last is on the disk.
    async fn is_wanted_back(&self) -> bool {
        self.wanted.is_back() && self.record().await.serves_another(&self.wanted.policy)
    }

    /// Waits until nobody holds the lock for longer than a hand-over between two others takes, and asks nobody.
    async fn wait_for_nobody(&self) -> Result<NodeLock, lock::LockError> {
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

    /// Waits for the lock, and asks nobody.
    async fn wait_for_lock(&self, pause: Duration) -> Result<NodeLock, lock::LockError> {
        loop {
            if let Some(lock) = NodeLock::take(&self.state_dir)? {
                return Ok(lock);
            }
            sleep(pause).await;
        }
    }

    async fn let_go(&self) {
        // One that does not manage that is not live: nobody answers on the socket meanwhile.
        send_if_new(&self.served, true);
        let (done, withdrawn) = oneshot::channel();
        self.turn(HandoverCommand::LetGo(done)).await;
        // An agent that ends withdraws too.
        _ = withdrawn.await;
        send_if_new(&self.served, false);
    }

    /// An agent that ends takes no more turns.
    async fn turn(&self, turn: HandoverCommand) {
        _ = self.turns.send(turn).await;
    }

    fn socket(&self) -> PathBuf {
        self.state_dir.join(SOCKET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::gpu_node::GpuNodeState;
    use conversation::Conversation;
    use protocol::{HandoverRequest, HolderResponse};
    use tokio::net::UnixListener;

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_hangs_with_the_lock_counts_as_one_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().to_owned();
        let lock = NodeLock::take(&state_dir).unwrap().unwrap();
        let listener = UnixListener::bind(state_dir.join(SOCKET)).unwrap();
        let (turns, mut taken) = mpsc::channel(1);
        let (served, mut is_served) = watch::channel(false);
        let (_fitness, fitness) = watch::channel(Some(Fitness::default()));
        let (_ready, ready) = watch::channel(Err("it hangs".to_owned()));
        let (_seen, gpu_node) = watch::channel(GpuNodeState::Unknown);
        let wanted = TakeBack {
            policy: String::new(),
            gpu_node,
        };
        tokio::spawn(
            Handover {
                state_dir,
                who: AgentId::default(),
                wanted,
                fitness,
                ready,
                turns,
                served,
            }
            .follow(),
        );

        let mut successor = Conversation::of(listener.accept().await.unwrap().0);
        assert!(matches!(
            successor.hear::<HandoverRequest>(Duration::from_secs(5)).await.unwrap(),
            HandoverRequest::LetGo(_)
        ));
        drop((lock, listener));
        successor
            .say(&HolderResponse::Released { pod: String::new() })
            .await
            .unwrap();
        // The last turn that it takes.
        assert!(matches!(taken.recv().await, Some(HandoverCommand::Hold)));
        timeout(Duration::from_secs(30), is_served.wait_for(|is_served| *is_served))
            .await
            .unwrap()
            .unwrap();
    }
}
