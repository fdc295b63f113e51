//! Whether the holder answers on its own socket: one that does not would never let a successor take over.

use super::{
    SOCKET,
    conversation::{Conversation, Error},
    protocol::{Answer, Request},
};
use crate::{admin::Liveness, channel::send_if_new};
use std::{path::PathBuf, time::Duration};
use tokio::{sync::watch, time::sleep};
use tracing::error;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// More than the agent's other work may take at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// One look may fall into a hand-over.
const LOOKS: u32 = 2;

/// Looks while the socket is `served`, and says what it found. A socket that cannot be made, on a full disk, is no reason for
/// a restart, which would not make it. Does not end.
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
                    error!(%error, "this agent does not answer on its own socket, so that no other could take over");
                    send_if_new(&liveness, Err(format!("no answer on {}: {error}", socket.display())));
                }
            }
            _ => {
                failed = 0;
                send_if_new(&liveness, Ok(()));
            }
        }
    }
}

async fn look(socket: &std::path::Path) -> Result<(), Error> {
    let mut holder = Conversation::open(socket).await?;
    holder.say(&Request::Ping {}).await?;
    holder.hear::<Answer>(ANSWER_TIMEOUT).await.map(drop)
}
