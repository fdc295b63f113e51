//! Holder's side: listens for a successor, hands over, and waits for the successor's confirmation.

use super::{
    command::{Fitness, HandoverCommand},
    connection::{PeerConnection, PeerError},
    lock::{LockError, NodeLock},
    protocol::{HandoverRequest, HolderDecision, HolderResponse, SOCKET, Successor, decide, truncate},
};
use crate::{runtime::channel::send_if_new, store::file_id::FileId};
use gpunode_process::OnChange;
use rustix::process::geteuid;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

/// Most connections at a time: a successor or two, and this agent's own liveness probe.
const MAX_CONNECTIONS: usize = 4;
/// Timeout for the first message of a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the main loop to answer a ping.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the successor's confirmation.
const SERVING_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between checks of the lock and the socket, which another process may have removed.
const CHECK: Duration = Duration::from_secs(5);

/// Socket on which the holder listens.
struct HolderSocket {
    listener: UnixListener,
    id: Option<FileId>,
}

impl HolderSocket {
    /// Replaces the socket of an earlier holder.
    fn bind(socket: &Path) -> io::Result<Self> {
        // Nobody else may connect, not even before its mode is set.
        let unnamed = socket.with_extension("new");
        match fs::remove_file(&unnamed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&unnamed)?;
        fs::set_permissions(&unnamed, fs::Permissions::from_mode(0o600))?;
        fs::rename(&unnamed, socket)?;
        Ok(Self {
            listener,
            id: FileId::without_time(socket),
        })
    }

    fn exists(&self, socket: &Path) -> bool {
        self.id.is_some() && FileId::without_time(socket) == self.id
    }
}

/// Holder's side of hand-overs.
#[derive(Debug)]
pub struct HandoverServer {
    /// Folder of the lock and the socket.
    pub state_dir: PathBuf,
    /// UID of this agent's pod; empty without a pod.
    pub pod: String,
    /// Ability of this agent to serve the node.
    pub fitness: watch::Receiver<Option<Fitness>>,
    /// Commands to the main loop.
    pub commands: mpsc::Sender<HandoverCommand>,
    /// Publishes true while this agent serves the socket.
    pub socket_served: watch::Sender<bool>,
}

impl HandoverServer {
    /// Listens until a successor requests the lock and may have it.
    pub async fn wait_for_successor(&self, lock: &mut NodeLock) -> Result<(PeerConnection, Successor), LockError> {
        let socket = self.state_dir.join(SOCKET);
        let mut connections: JoinSet<()> = JoinSet::new();
        let (requests, mut successors) = mpsc::channel(1);
        let mut listening: Option<HolderSocket> = None;
        let mut errors = OnChange::default();
        let mut check = Instant::now();
        let (connection, successor) = loop {
            if check <= Instant::now() {
                lock.keep(&self.state_dir)?;
                if listening.as_ref().is_none_or(|listening| !listening.exists(&socket)) {
                    listening = HolderSocket::bind(&socket)
                        .inspect_err(|error| {
                            if let Some(error) = errors.changed(error) {
                                warn!(socket = %socket.display(), error, "cannot listen for a successor; retrying, and successors wait for the lock until then");
                            }
                        })
                        .ok();
                    send_if_new(&self.socket_served, listening.is_some());
                }
                check = Instant::now() + CHECK;
            }
            tokio::select! {
                successor = successors.recv() => if let Some(successor) = successor { break successor },
                stream = accept(listening.as_ref()) => {
                    // A connection above the limit is closed at once; the successor may try again.
                    if connections.len() < MAX_CONNECTIONS {
                        let (commands, fitness) = (self.commands.clone(), self.fitness.clone());
                        connections.spawn(answer(stream, commands, fitness, requests.clone()));
                    }
                }
                _ = connections.join_next(), if !connections.is_empty() => {}
                () = sleep_until(check) => {}
            }
        };
        send_if_new(&self.socket_served, false);
        Ok((connection, successor))
    }

    /// Tells a successor that the lock is free; returns true if it confirms that it serves the node.
    pub async fn release_to(&self, mut successor: PeerConnection) -> bool {
        let confirmation = async {
            successor
                .send(&HolderResponse::Released { pod: self.pod.clone() })
                .await?;
            successor.receive::<HandoverRequest>(SERVING_TIMEOUT).await
        };
        match confirmation.await {
            Ok(HandoverRequest::Serving {}) => {
                info!("the successor serves the node; this agent awaits its termination");
                true
            }
            Ok(_) => {
                warn!(
                    "the successor sent something other than its confirmation; taking over again when the lock is free"
                );
                false
            }
            Err(error) => {
                warn!(%error, "the successor has not taken over; taking over again when the lock is free");
                false
            }
        }
    }
}

/// Returns the next connection of an agent; waits forever without a socket.
async fn accept(listening: Option<&HolderSocket>) -> UnixStream {
    let Some(listening) = listening else {
        return std::future::pending().await;
    };
    loop {
        match listening.listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw()) => return stream,
            Ok(_) => warn!("refused a connection to this agent's socket: it comes from another user"),
            // Too few file descriptors, for example.
            Err(error) => {
                debug!(%error, "cannot accept a connection of a successor");
                sleep_until(Instant::now() + Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves one connection. Passes a successor that may have the lock on to the holder: the first of several; the others lose
/// their connection and wait.
async fn answer(
    stream: UnixStream,
    commands: mpsc::Sender<HandoverCommand>,
    fitness: watch::Receiver<Option<Fitness>>,
    requests: mpsc::Sender<(PeerConnection, Successor)>,
) {
    let mut connection = PeerConnection::new(stream);
    let request = connection.receive::<HandoverRequest>(REQUEST_TIMEOUT).await;
    let own_problem = fitness.borrow().as_ref().and_then(|fitness| fitness.problem.clone());
    let decision = match request {
        Ok(request) => decide(request, own_problem.as_deref()),
        Err(PeerError::Decode(error)) => HolderDecision::Refuse(error.to_string()),
        Err(_) => return,
    };
    let answer = match decision {
        HolderDecision::Alive => {
            let (done, answered) = oneshot::channel();
            let handled = async { commands.send(HandoverCommand::Ping(done)).await.is_ok() && answered.await.is_ok() };
            if !timeout(COMMAND_TIMEOUT, handled).await.unwrap_or(false) {
                return;
            }
            HolderResponse::Holding {}
        }
        HolderDecision::Refuse(reason) => HolderResponse::Refused {
            reason: truncate(&reason),
        },
        HolderDecision::HandOver(successor) => {
            // The request may be old, and its successor gone, if this process was suspended for a while.
            if !connection.is_closed().await {
                _ = requests.try_send((connection, successor));
            }
            return;
        }
    };
    // A peer that is gone needs no answer.
    _ = connection.send(&answer).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    #[tokio::test]
    async fn nobody_else_may_connect_to_the_socket_at_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(SOCKET);
        let is_over = Arc::new(AtomicBool::new(false));
        let watcher = thread::spawn({
            let (socket, is_over) = (socket.clone(), is_over.clone());
            move || {
                let mut modes = BTreeSet::new();
                while !is_over.load(Ordering::Relaxed) {
                    let metadata = fs::metadata(&socket);
                    modes.extend(metadata.map(|metadata| metadata.permissions().mode() & 0o777));
                }
                modes
            }
        });
        for _ in 0..2000 {
            HolderSocket::bind(&socket).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(watcher.join().unwrap(), BTreeSet::from([0o600]));
    }
}
