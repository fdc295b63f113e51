//! Liveness of the holder: probes its own socket, because a holder that does not answer could never hand over.

use super::{
    conversation::{Conversation, ConversationError},
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
/// Failed probes in a row that end the liveness: a single one may coincide with a hand-over.
const LOOKS: u32 = 2;

/// Probes the socket while it is `served`, and publishes the liveness. A socket that cannot be created, for example on a full
/// disk, does not end the liveness: a restart would not help. Never returns.
pub async fn watch(state_dir: PathBuf, served: watch::Receiver<bool>, liveness: watch::Sender<Liveness>) {
    let socket = state_dir.join(SOCKET);
    let mut failed = 0;
    loop {
        sleep(PAUSE).await;
        let is_served = *served.borrow();
        match look(&socket).await {
            Err(error) if is_served && *served.borrow() => {
                failed += 1;
                if failed >= LOOKS {
                    error!(%error, "this agent does not answer on its own socket; no successor could take over");
                    send_if_new(
                        &liveness,
                        Err(format!("no answer on {}: {error}", socket.display()).into()),
                    );
                }
            }
            _ => {
                failed = 0;
                send_if_new(&liveness, Ok(()));
            }
        }
    }
}

async fn look(socket: &std::path::Path) -> Result<(), ConversationError> {
    let mut holder = Conversation::open(socket).await?;
    holder.say(&HandoverRequest::Ping {}).await?;
    holder.hear::<HolderResponse>(ANSWER_TIMEOUT).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::protocol::line;
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
                    stream.write_all(&line(&HolderResponse::Holding {})).await.unwrap();
                }
                silent.push(stream);
            }
        };
        let (_served, served) = watch::channel(is_served);
        let (liveness, live) = watch::channel(Ok(()));
        let looks = watch(folder.path().to_owned(), served, liveness);
        _ = timeout(LONG, async { tokio::join!(accept, looks) }).await;
        live.borrow().clone()
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
