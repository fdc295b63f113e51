//! Liveness of the holder: probes its own socket, because a holder that does not answer could never hand over.

use super::{
    connection::{PeerConnection, PeerError},
    protocol::{HandoverRequest, HolderResponse, SOCKET},
};
use crate::{admin::server::Liveness, runtime::channel::send_if_new};
use std::{path::PathBuf, time::Duration};
use tokio::{sync::watch, time::sleep};
use tracing::error;

/// Pause between two probes.
const PAUSE: Duration = Duration::from_secs(10);
/// Timeout of a probe; longer than any step of the main loop.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// Failed probes in a row after which the agent is not live: a single one may coincide with a hand-over.
const MAX_FAILURES: u32 = 2;

/// Task that probes this agent's own socket.
pub struct OwnSocketProbe {
    pub state_dir: PathBuf,
    /// True while this agent serves the socket.
    pub socket_served: watch::Receiver<bool>,
    pub liveness: watch::Sender<Liveness>,
}

impl OwnSocketProbe {
    /// Probes the socket while it is served. A socket that cannot be created, for example on a full disk, leaves the agent
    /// live: a restart would not help. Never returns.
    pub async fn run(self) {
        let socket = self.state_dir.join(SOCKET);
        let mut failed = 0;
        loop {
            sleep(PAUSE).await;
            let is_served = *self.socket_served.borrow();
            match ping(&socket).await {
                Err(error) if is_served && *self.socket_served.borrow() => {
                    failed += 1;
                    if failed >= MAX_FAILURES {
                        error!(%error, "this agent does not answer on its own socket; no successor could take over");
                        send_if_new(
                            &self.liveness,
                            Err(format!("no answer on {}: {error}", socket.display()).into()),
                        );
                    }
                }
                _ => {
                    failed = 0;
                    send_if_new(&self.liveness, Ok(()));
                }
            }
        }
    }
}

async fn ping(socket: &std::path::Path) -> Result<(), PeerError> {
    let mut holder = PeerConnection::connect(socket).await?;
    holder.send(&HandoverRequest::Ping {}).await?;
    holder.receive::<HolderResponse>(ANSWER_TIMEOUT).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::protocol::encode;
    use tokio::{io::AsyncWriteExt as _, net::UnixListener, time::timeout};

    const LONG: Duration = Duration::from_mins(2);

    /// Returns the liveness of a holder after a while.
    async fn after_a_while(answers: bool, is_served: bool) -> Liveness {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let accept = async {
            let mut silent = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                if answers {
                    stream.write_all(&encode(&HolderResponse::Holding {})).await.unwrap();
                }
                silent.push(stream);
            }
        };
        let (_sender, socket_served) = watch::channel(is_served);
        let (liveness_sender, liveness) = watch::channel(Ok(()));
        let socket_probe = OwnSocketProbe {
            state_dir: folder.path().to_owned(),
            socket_served,
            liveness: liveness_sender,
        };
        _ = timeout(LONG, async { tokio::join!(accept, socket_probe.run()) }).await;
        liveness.borrow().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_does_not_answer_on_its_socket_is_not_live() {
        assert!(
            after_a_while(false, true)
                .await
                .unwrap_err()
                .to_string()
                .contains("agent.sock")
        );
        assert_eq!(after_a_while(true, true).await, Ok(()));
        assert_eq!(
            after_a_while(false, false).await,
            Ok(()),
            "another agent's socket, or none, is not its own"
        );
    }
}
