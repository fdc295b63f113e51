//! Keeps one agent per node registered, with a lock on a file of the node, and hands that lock over to a successor.
//!
//! The lock decides; the socket only keeps the gap for the kubelet short. A successor waits on standby with hardware and
//! configuration loaded. It asks the holder over `agent.sock` to release the lock, takes it, and confirms once the kubelet has
//! accepted its registration. Without a confirmation, the previous holder takes the lock again as soon as it is free. If no
//! agent listens on the socket (an older version, or a killed one), a successor waits for the lock alone.
//!
//! | module | what it does |
//! |---|---|
//! | `lock` | locks a file of the node |
//! | `command` | commands to the agent's main loop |
//! | `successor` | waits on standby, asks the holder, takes the lock |
//! | `holder` | serves the socket, answers successors |
//! | `protocol` | messages between holder and successor, and the holder's decision |
//! | `conversation` | exchanges messages over one connection |
//! | `record` | saves failed attempts and retired pods |
//! | `take_back` | decides if an agent that has handed over takes the node back |
//! | `alive` | probes this agent's own socket for liveness |

mod alive;
mod command;
mod conversation;
mod holder;
mod lock;
mod protocol;
mod record;
mod successor;
mod take_back;

pub use alive::watch as watch_own_socket;
pub use command::{Fitness, HandoverCommand};
pub use lock::{NodeLock, is_held};
pub use record::AgentId;
pub use take_back::TakeBack;

use crate::{admin::server::Readiness, runtime::channel::send_if_new};
use conversation::Conversation;
use holder::HandoverServer;
use lock::LockError;
use std::{convert::Infallible, path::PathBuf, time::Duration};
use successor::{GIVE_BACK, HandoverClient, RETRY_SOON, TakenLock};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Time span of the shorter interval; after it a third agent has the lock.
const SOON: Duration = Duration::from_secs(10);

/// Part of this agent in hand-overs, as successor and as holder.
#[derive(Debug)]
pub struct Handover {
    /// Folder of the lock, the socket and the record, the same for every agent of the node.
    pub state_dir: PathBuf,
    /// Identity of this agent.
    pub who: AgentId,
    /// Condition under which this agent takes the node back after a hand-over.
    pub take_back: TakeBack,
    /// Ability to serve the node; `None` until hardware and configuration are known. Until then this agent asks no holder.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Readiness of this agent: an active one is ready once the kubelet has accepted its registration.
    pub ready: watch::Receiver<Readiness>,
    /// Commands to the main loop.
    pub commands: mpsc::Sender<HandoverCommand>,
    /// True while this agent serves the socket.
    pub served: watch::Sender<bool>,
}

/// Runs hand-overs, in turn as successor and as holder.
struct HandoverTask {
    client: HandoverClient,
    server: HandoverServer,
}

impl Handover {
    /// Takes the lock, holds it, and hands it over, again and again. Never returns.
    pub async fn follow(self) {
        let Self {
            state_dir,
            who,
            take_back,
            fitness,
            ready,
            commands,
            served,
        } = self;
        let server = HandoverServer {
            state_dir: state_dir.clone(),
            pod: who.pod.clone(),
            fitness: fitness.clone(),
            commands,
            served,
        };
        let client = HandoverClient {
            state_dir,
            who,
            take_back,
            fitness,
            ready,
        };
        let mut task = HandoverTask { client, server };
        match task.run().await {
            Ok(never) => match never {},
            Err(error) => {
                task.command(HandoverCommand::Fail(error)).await;
                std::future::pending::<()>().await;
            }
        }
    }
}

impl HandoverTask {
    async fn run(&mut self) -> Result<Infallible, LockError> {
        let mut taken = self.client.stand_by().await?;
        loop {
            self.command(HandoverCommand::Hold).await;
            let mut lock = match taken {
                TakenLock::Free(lock) => lock,
                TakenLock::From(lock, predecessor, pod) => match self.client.prove(predecessor, &pod).await {
                    Ok(()) => lock,
                    Err(predecessor) => {
                        self.let_go().await;
                        drop(lock);
                        drop(predecessor);
                        // The previous holder gets the time to take the lock first.
                        sleep(GIVE_BACK).await;
                        taken = self.client.stand_by().await?;
                        continue;
                    }
                },
            };
            let (successor, named) = self.server.hold(&mut lock).await?;
            info!(
                successor = named.pod,
                version = named.version,
                "handing over to a successor"
            );
            self.let_go().await;
            drop(lock);
            taken = self.stand_back(successor).await?;
        }
    }

    /// Waits until this agent, which has handed over, has the lock again: the successor failed, no other agent is left, or
    /// this agent takes the node back.
    async fn stand_back(&mut self, successor: Conversation) -> Result<TakenLock, LockError> {
        let mut free = None;
        if !self.server.see_off(successor).await {
            free = timeout(SOON, self.client.wait_for_lock(RETRY_SOON)).await.ok();
        }
        if free.is_none() {
            free = tokio::select! {
                lock = self.client.wait_for_nobody() => Some(lock),
                () = self.client.wanted_back() => None,
            };
        }
        let Some(lock) = free else {
            return self.client.stand_by().await;
        };
        let lock = lock?;
        warn!("no other agent of this node holds the lock any more: taking over again");
        Ok(TakenLock::Free(lock))
    }

    async fn let_go(&self) {
        // The liveness probe fails an agent that hangs here, because the socket does not answer meanwhile.
        send_if_new(&self.server.served, true);
        let (done, withdrawn) = oneshot::channel();
        self.command(HandoverCommand::LetGo(done)).await;
        // A main loop that ends withdraws as well.
        _ = withdrawn.await;
        send_if_new(&self.server.served, false);
    }

    /// Sends a command; a main loop that ends takes no more.
    async fn command(&self, command: HandoverCommand) {
        _ = self.server.commands.send(command).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::gpu_node::GpuNodeState;
    use protocol::{HandoverRequest, HolderResponse, SOCKET};
    use tokio::net::UnixListener;

    #[tokio::test(start_paused = true)]
    async fn a_successor_that_hangs_with_the_lock_counts_as_one_that_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().to_owned();
        let lock = NodeLock::take(&state_dir).unwrap().unwrap();
        let listener = UnixListener::bind(state_dir.join(SOCKET)).unwrap();
        let (commands, mut taken) = mpsc::channel(1);
        let (served, mut is_served) = watch::channel(false);
        let (_fitness, fitness) = watch::channel(Some(Fitness::default()));
        let (_ready, ready) = watch::channel(Err("it hangs".into()));
        let (_seen, gpu_node) = watch::channel(GpuNodeState::Unknown);
        let take_back = TakeBack {
            policy: String::new(),
            gpu_node,
        };
        tokio::spawn(
            Handover {
                state_dir,
                who: AgentId::default(),
                take_back,
                fitness,
                ready,
                commands,
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
        // The last command that the main loop takes.
        assert!(matches!(taken.recv().await, Some(HandoverCommand::Hold)));
        timeout(Duration::from_secs(30), is_served.wait_for(|is_served| *is_served))
            .await
            .unwrap()
            .unwrap();
    }
}
