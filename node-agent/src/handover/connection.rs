//! Connection between a successor and the holder.

use super::protocol::{MAX_LINE, decode, encode};
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
pub enum PeerError {
    /// No agent listens on the socket.
    #[error("connect to the agent that holds the lock of this node: {0}")]
    Connect(io::Error),
    /// The connection failed.
    #[error("exchange messages with the other agent of this node: {0}")]
    Io(#[from] io::Error),
    /// The other agent closed the connection.
    #[error("exchange messages with the other agent of this node: it closed the connection")]
    Closed,
    /// The other agent does not answer in time.
    #[error("exchange messages with the other agent of this node: no answer within {0:?}")]
    Timeout(Duration),
    /// The message is not part of the protocol.
    #[error("read the message of the other agent of this node: {0}; does it run another version?")]
    Decode(#[from] serde_json::Error),
}

/// Connection that carries one JSON message per line.
#[derive(Debug)]
pub struct PeerConnection(BufReader<UnixStream>);

impl PeerConnection {
    /// Wraps an accepted connection.
    pub fn new(stream: UnixStream) -> Self {
        Self(BufReader::with_capacity(MAX_LINE, stream))
    }

    /// Connects to the agent that listens on `socket`.
    pub async fn connect(socket: &Path) -> Result<Self, PeerError> {
        let stream = timeout(WRITE_TIMEOUT, UnixStream::connect(socket)).await;
        stream
            .map_err(|_| PeerError::Timeout(WRITE_TIMEOUT))?
            .map(Self::new)
            .map_err(PeerError::Connect)
    }

    /// Sends a message.
    pub async fn send<T: Serialize>(&mut self, message: &T) -> Result<(), PeerError> {
        let line = encode(message);
        let written = timeout(WRITE_TIMEOUT, self.0.write_all(&line)).await;
        Ok(written.map_err(|_| PeerError::Timeout(WRITE_TIMEOUT))??)
    }

    /// Receives a message within `limit`. After an error the connection is unusable.
    pub async fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, PeerError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.0).take(MAX_LINE as u64);
        let read = timeout(limit, bounded.read_until(b'\n', &mut line)).await;
        if read.map_err(|_| PeerError::Timeout(limit))?? == 0 {
            return Err(PeerError::Closed);
        }
        Ok(decode(&line)?)
    }

    /// Waits until the other agent closes the connection or sends an unrequested message.
    pub async fn closed(&mut self) {
        _ = self.0.fill_buf().await;
    }

    /// Returns true if [`Self::closed`] would return at once.
    pub async fn is_closed(&mut self) -> bool {
        timeout(Duration::ZERO, self.closed()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (PeerConnection, PeerConnection) {
        let (one, other) = UnixStream::pair().unwrap();
        (PeerConnection::new(one), PeerConnection::new(other))
    }

    const SOON: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn lines_arrive_one_by_one() {
        let (mut one, mut other) = pair();
        for word in ["a", "b"] {
            one.send(&word).await.unwrap();
        }
        for word in ["a", "b"] {
            assert_eq!(other.receive::<String>(SOON).await.unwrap(), word);
        }
    }

    #[tokio::test]
    async fn silence_an_endless_line_and_an_end_are_told_apart() {
        let (mut one, mut other) = pair();
        assert!(matches!(
            other.receive::<String>(SOON).await,
            Err(PeerError::Timeout(_))
        ));
        one.0.write_all(&[b'a'; 2 * MAX_LINE]).await.unwrap();
        assert!(matches!(other.receive::<String>(SOON).await, Err(PeerError::Decode(_))));
        let (one, mut other) = pair();
        assert!(!other.is_closed().await);
        drop(one);
        assert!(other.is_closed().await);
        assert!(matches!(other.receive::<String>(SOON).await, Err(PeerError::Closed)));
        other.closed().await;
    }

    #[tokio::test]
    async fn a_socket_without_a_listener_fails_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        assert!(matches!(
            PeerConnection::connect(&socket).await,
            Err(PeerError::Connect(_))
        ));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(matches!(
            PeerConnection::connect(&socket).await,
            Err(PeerError::Connect(_))
        ));
    }
}
