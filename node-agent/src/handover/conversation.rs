//! Connection between a successor and the holder.

use super::protocol::{MAX_LINE, line, parse};
use serde::{Serialize, de::DeserializeOwned};
use std::{io, path::Path, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::UnixStream,
    time::timeout,
};

/// Timeout to connect, and to write a line.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Failure to connect, to write or to read.
#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    /// No agent listens on the socket.
    #[error("connect to the agent that holds the lock of this node: {0}")]
    Connect(io::Error),
    /// The connection failed.
    #[error("exchange messages with the other agent of this node: {0}")]
    Broken(#[from] io::Error),
    /// The other agent closed the connection.
    #[error("exchange messages with the other agent of this node: it closed the connection")]
    Closed,
    /// The other agent does not answer in time.
    #[error("exchange messages with the other agent of this node: no answer within {0:?}")]
    Silent(Duration),
    /// The message is not part of the protocol.
    #[error("read the message of the other agent of this node: {0}; does it run another version?")]
    Unclear(#[from] serde_json::Error),
}

/// Connection that carries one JSON message per line.
#[derive(Debug)]
pub struct Conversation(BufReader<UnixStream>);

impl Conversation {
    /// Wraps an accepted connection.
    pub fn of(stream: UnixStream) -> Self {
        Self(BufReader::with_capacity(MAX_LINE, stream))
    }

    /// Connects to the agent that listens on `socket`.
    pub async fn open(socket: &Path) -> Result<Self, ConversationError> {
        let stream = timeout(WRITE_TIMEOUT, UnixStream::connect(socket)).await;
        stream
            .map_err(|_| ConversationError::Silent(WRITE_TIMEOUT))?
            .map(Self::of)
            .map_err(ConversationError::Connect)
    }

    /// Sends a message.
    pub async fn say<T: Serialize>(&mut self, said: &T) -> Result<(), ConversationError> {
        let line = line(said);
        let written = timeout(WRITE_TIMEOUT, self.0.write_all(&line)).await;
        Ok(written.map_err(|_| ConversationError::Silent(WRITE_TIMEOUT))??)
    }

    /// Receives a message within `limit`. After an error the connection is of no more use.
    pub async fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, ConversationError> {
        let mut heard = Vec::new();
        let mut bounded = (&mut self.0).take(MAX_LINE as u64);
        let read = timeout(limit, bounded.read_until(b'\n', &mut heard)).await;
        if read.map_err(|_| ConversationError::Silent(limit))?? == 0 {
            return Err(ConversationError::Closed);
        }
        Ok(parse(&heard)?)
    }

    /// Waits until the other agent closes the connection or sends an unrequested message.
    pub async fn ended(&mut self) {
        _ = self.0.fill_buf().await;
    }

    /// Returns whether [`Self::ended`] would return at once.
    pub async fn has_ended(&mut self) -> bool {
        timeout(Duration::ZERO, self.ended()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Conversation, Conversation) {
        let (one, other) = UnixStream::pair().unwrap();
        (Conversation::of(one), Conversation::of(other))
    }

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn lines_arrive_one_by_one() {
        let (mut one, mut other) = pair();
        for word in ["a", "b"] {
            one.say(&word).await.unwrap();
        }
        for word in ["a", "b"] {
            assert_eq!(other.hear::<String>(SOON).await.unwrap(), word);
        }
    }

    #[tokio::test]
    async fn silence_an_endless_line_and_an_end_are_told_apart() {
        let (mut one, mut other) = pair();
        assert!(matches!(
            other.hear::<String>(SOON).await,
            Err(ConversationError::Silent(_))
        ));
        one.0.write_all(&[b'a'; 2 * MAX_LINE]).await.unwrap();
        assert!(matches!(
            other.hear::<String>(SOON).await,
            Err(ConversationError::Unclear(_))
        ));
        let (one, mut other) = pair();
        assert!(!other.has_ended().await);
        drop(one);
        assert!(other.has_ended().await);
        assert!(matches!(
            other.hear::<String>(SOON).await,
            Err(ConversationError::Closed)
        ));
        other.ended().await;
    }

    #[tokio::test]
    async fn a_socket_on_which_nobody_listens_is_no_reason_to_wait() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        assert!(matches!(
            Conversation::open(&socket).await,
            Err(ConversationError::Connect(_))
        ));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(matches!(
            Conversation::open(&socket).await,
            Err(ConversationError::Connect(_))
        ));
    }
}
