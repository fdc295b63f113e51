//! The side of the holder: listens for a successor, and waits until that one does the work.

use super::{
    Handover, HandoverCommand,
    conversation::{Conversation, ConversationError},
    lock::{self, NodeLock},
    protocol::{HandoverRequest, HolderDecision, HolderResponse, Successor, reply, short},
};
use crate::{runtime::channel::send_if_new, store::file_id::FileId};
use gpunode_process::OnChange;
use rustix::process::geteuid;
use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

/// Connections at the same time: a successor or two, and this agent's look at itself.
const MAX_CONNECTIONS: usize = 4;
/// How long whoever connects may take to say what they want.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the agent's other work may keep it from showing that it is alive.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a successor may take until the kubelet has its lists.
const SERVING_TIMEOUT: Duration = Duration::from_secs(30);
/// How often lock and socket are looked at: somebody may have removed them.
const CHECK: Duration = Duration::from_secs(5);

/// The socket that is listened on.
struct HolderSocket {
    listener: UnixListener,
    id: Option<FileId>,
}

impl HolderSocket {
    /// In place of what an earlier holder left.
    fn on(socket: &Path) -> io::Result<Self> {
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener,
            id: FileId::without_time(socket),
        })
    }

    fn is_there(&self, socket: &Path) -> bool {
        self.id.is_some() && FileId::without_time(socket) == self.id
    }
}

impl Handover {
    /// Listens until there is a successor to let go to.
    pub(super) async fn hold(&self, lock: &mut NodeLock) -> Result<(Conversation, Successor), lock::LockError> {
        let socket = self.socket();
        let mut connections: JoinSet<()> = JoinSet::new();
        let (asks, mut asked) = mpsc::channel(1);
        let mut listening: Option<HolderSocket> = None;
        let mut errors = OnChange::default();
        let mut check = Instant::now();
        let (successor, named) = loop {
            if check <= Instant::now() {
                lock.keep(&self.state_dir)?;
                if listening.as_ref().is_none_or(|listening| !listening.is_there(&socket)) {
                    listening = HolderSocket::on(&socket)
                        .inspect_err(|error| {
                            if let Some(error) = errors.changed(error) {
                                warn!(socket = %socket.display(), error, "listen for a successor; trying again, and one waits for the lock until then");
                            }
                        })
                        .ok();
                    send_if_new(&self.served, listening.is_some());
                }
                check = Instant::now() + CHECK;
            }
            tokio::select! {
                asked = asked.recv() => if let Some(asked) = asked { break asked },
                stream = accept(listening.as_ref()) => {
                    // One too many is closed at once, and may ask again.
                    if connections.len() < MAX_CONNECTIONS {
                        let (turns, fitness) = (self.turns.clone(), self.fitness.clone());
                        connections.spawn(answer(stream, turns, fitness, asks.clone()));
                    }
                }
                _ = connections.join_next(), if !connections.is_empty() => {}
                () = sleep_until(check) => {}
            }
        };
        send_if_new(&self.served, false);
        Ok((successor, named))
    }

    /// Tells a successor that the lock is free, and waits until it says that it does the work; whether it did.
    pub(super) async fn see_off(&self, mut successor: Conversation) -> bool {
        let heard = async {
            successor
                .say(&HolderResponse::Released {
                    pod: self.who.pod.clone(),
                })
                .await?;
            successor.hear::<HandoverRequest>(SERVING_TIMEOUT).await
        };
        match heard.await {
            Ok(HandoverRequest::Serving {}) => {
                info!("the successor does the work; this agent only waits for its end");
                true
            }
            Ok(_) => {
                warn!("the successor says something else than that it serves; taking over again when the lock is free");
                false
            }
            Err(error) => {
                warn!(%error, "the successor has not taken over; taking over again when the lock is free");
                false
            }
        }
    }
}

/// The next connection of an agent; none where nothing is listened on.
async fn accept(listening: Option<&HolderSocket>) -> UnixStream {
    let Some(listening) = listening else {
        return std::future::pending().await;
    };
    loop {
        match listening.listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw()) => return stream,
            Ok(_) => warn!("somebody who is no agent connected to the socket of this agent"),
            // For want of file descriptors, for example.
            Err(error) => {
                debug!(%error, "accept a connection of a successor");
                sleep_until(Instant::now() + Duration::from_millis(100)).await;
            }
        }
    }
}

/// One connection. A successor that is to be let go to is handed on; of several only the first is, and the others find
/// nobody and wait.
async fn answer(
    stream: UnixStream,
    turns: mpsc::Sender<HandoverCommand>,
    fitness: watch::Receiver<Option<super::Fitness>>,
    asks: mpsc::Sender<(Conversation, Successor)>,
) {
    let mut conversation = Conversation::of(stream);
    let request = conversation.hear::<HandoverRequest>(REQUEST_TIMEOUT).await;
    let own_problem = fitness.borrow().as_ref().and_then(|fitness| fitness.problem.clone());
    let reply = match request {
        Ok(request) => reply(request, own_problem.as_deref()),
        Err(ConversationError::Unclear(error)) => HolderDecision::No(error.to_string()),
        Err(_) => return,
    };
    let answer = match reply {
        HolderDecision::Alive => {
            let (done, answered) = oneshot::channel();
            let took_turn = async { turns.send(HandoverCommand::Answer(done)).await.is_ok() && answered.await.is_ok() };
            if !timeout(TURN_TIMEOUT, took_turn).await.unwrap_or(false) {
                return;
            }
            HolderResponse::Holding {}
        }
        HolderDecision::No(reason) => HolderResponse::Refused { reason: short(&reason) },
        HolderDecision::LetGo(successor) => {
            // An agent that was stopped for a while hears of one that has given up since.
            if !conversation.has_ended().await {
                _ = asks.try_send((conversation, successor));
            }
            return;
        }
    };
    // Who does not listen needs no answer.
    _ = conversation.say(&answer).await;
}
