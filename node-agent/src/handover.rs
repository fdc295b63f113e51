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
//! | `connection` | exchanges messages with the other agent |
//! | `record` | saves failed attempts and retired pods |
//! | `take_back` | decides whether an agent that has handed over takes the node back |
//! | `liveness` | probes this agent's own socket for liveness |

mod command;
mod connection;
mod holder;
mod liveness;
mod lock;
mod protocol;
pub mod record;
mod successor;
mod take_back;

pub use command::{Fitness, HandoverCommand};
pub use liveness::OwnSocketProbe;
pub use lock::{NodeLock, is_held};
pub use record::AgentId;
pub use take_back::TakeBack;

use crate::{admin::server::Readiness, runtime::channel::send_if_new};
use connection::PeerConnection;
use holder::HandoverServer;
use lock::LockError;
use std::{convert::Infallible, path::PathBuf, time::Duration};
use successor::{HandoverClient, RETRY_SOON, RETURN_PAUSE, TakenLock};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Duration of the shorter interval; after it a third agent has the lock.
const SOON: Duration = Duration::from_secs(10);

/// Part of this agent in hand-overs, as successor and as holder.
#[derive(Debug)]
pub struct Handover {
    /// Folder of the lock, the socket and the record, the same for every agent of the node.
    pub state_dir: PathBuf,
    /// Identity of this agent.
    pub agent: AgentId,
    /// Condition under which this agent takes the node back after a hand-over.
    pub take_back: TakeBack,
    /// Ability to serve the node; `None` until hardware and configuration are known. Until then this agent asks no holder.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Readiness of this agent: an active one is ready once the kubelet has accepted its registration.
    pub readiness: watch::Receiver<Readiness>,
    /// Commands to the main loop.
    pub commands: mpsc::Sender<HandoverCommand>,
    /// Publishes true while this agent serves the socket.
    pub socket_served: watch::Sender<bool>,
}

/// Runs hand-overs, in turn as successor and as holder.
struct HandoverTask {
    client: HandoverClient,
    server: HandoverServer,
}

impl Handover {
    /// Takes the lock, holds it, and hands it over, again and again. Never returns.
    pub async fn run(self) {
        let server = HandoverServer {
            state_dir: self.state_dir.clone(),
            pod: self.agent.pod.clone(),
            fitness: self.fitness.clone(),
            commands: self.commands,
            socket_served: self.socket_served,
        };
        let client = HandoverClient {
            state_dir: self.state_dir,
            agent: self.agent,
            take_back: self.take_back,
            fitness: self.fitness,
            readiness: self.readiness,
        };
        let mut task = HandoverTask { client, server };
        match task.run().await {
            Ok(never) => match never {},
            Err(error) => {
                task.command(HandoverCommand::Stop(error)).await;
                std::future::pending::<()>().await;
            }
        }
    }
}

impl HandoverTask {
    async fn run(&mut self) -> Result<Infallible, LockError> {
        let mut taken = self.client.acquire().await?;
        loop {
            self.command(HandoverCommand::Activate).await;
            let mut lock = match taken {
                TakenLock::Free(lock) => lock,
                TakenLock::From(lock, predecessor, pod) => match self.client.confirm(predecessor, &pod).await {
                    Ok(()) => lock,
                    Err(predecessor) => {
                        self.deactivate().await;
                        drop(lock);
                        drop(predecessor);
                        // The previous holder gets the time to take the lock first.
                        sleep(RETURN_PAUSE).await;
                        taken = self.client.acquire().await?;
                        continue;
                    }
                },
            };
            let (connection, successor) = self.server.wait_for_successor(&mut lock).await?;
            info!(
                successor = successor.pod,
                version = successor.version,
                "handing over to a successor"
            );
            self.deactivate().await;
            drop(lock);
            taken = self.release_to(connection).await?;
        }
    }

    /// Releases the node to a successor, and waits until this agent has the lock again: the successor failed, no other agent is
    /// left, or this agent takes the node back.
    async fn release_to(&mut self, successor: PeerConnection) -> Result<TakenLock, LockError> {
        let mut free = None;
        if !self.server.release_to(successor).await {
            free = timeout(SOON, self.client.wait_for_lock(RETRY_SOON)).await.ok();
        }
        if free.is_none() {
            free = tokio::select! {
                lock = self.client.wait_until_unheld() => Some(lock),
                () = self.client.wait_to_take_back() => None,
            };
        }
        let Some(lock) = free else {
            return self.client.acquire().await;
        };
        let lock = lock?;
        warn!("no other agent of this node holds the lock any more: taking over again");
        Ok(TakenLock::Free(lock))
    }

    async fn deactivate(&self) {
        // The liveness probe fails an agent that hangs here, because the socket does not answer meanwhile.
        send_if_new(&self.server.socket_served, true);
        let (done, withdrawn) = oneshot::channel();
        self.command(HandoverCommand::Deactivate(done)).await;
        // A main loop that ends withdraws as well.
        _ = withdrawn.await;
        send_if_new(&self.server.socket_served, false);
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
        let (socket_served, mut is_served) = watch::channel(false);
        let (_fitness, fitness) = watch::channel(Some(Fitness::default()));
        let (_readiness, readiness) = watch::channel(Err("it hangs".into()));
        let (_gpu_node, gpu_node) = watch::channel(GpuNodeState::Unknown);
        let take_back = TakeBack {
            policy: String::new(),
            gpu_node,
        };
        tokio::spawn(
            Handover {
                state_dir,
                agent: AgentId::default(),
                take_back,
                fitness,
                readiness,
                commands,
                socket_served,
            }
            .run(),
        );

        let mut successor = PeerConnection::new(listener.accept().await.unwrap().0);
        assert!(matches!(
            successor
                .receive::<HandoverRequest>(Duration::from_secs(5))
                .await
                .unwrap(),
            HandoverRequest::LetGo(_)
        ));
        drop((lock, listener));
        successor
            .send(&HolderResponse::Released { pod: String::new() })
            .await
            .unwrap();
        // The last command that the main loop takes.
        assert!(matches!(taken.recv().await, Some(HandoverCommand::Activate)));
        timeout(Duration::from_secs(30), is_served.wait_for(|is_served| *is_served))
            .await
            .unwrap()
            .unwrap();
    }
}
