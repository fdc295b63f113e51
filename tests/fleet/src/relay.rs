//! A relay between a client and the API server that makes every request late: an API server that is slow to answer,
//! with real answers.
//!
//! Bytes towards the API server wait, those from it do not: a request on an open connection takes longer by the delay,
//! and the first one on a new connection by two delays, one for the handshake of TLS.

use anyhow::{Context, Result};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

/// Most bytes that are read at once.
const CHUNK: usize = 16 * 1024;
/// Chunks of one connection that may wait.
const WAITING: usize = 256;

/// A relay on a port of this machine; its connections end when the value is dropped.
pub struct SlowRelay {
    address: SocketAddr,
    /// Delay of requests, in milliseconds.
    delay: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Bytes, and the moment at which they go on.
type DelayedChunk = (Instant, Vec<u8>);

impl SlowRelay {
    /// Starts a relay to an address, without a delay.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen for connections to the API server")?;
        let address = listener.local_addr().context("read the port of the relay")?;
        let delay = Arc::new(AtomicU64::new(0));
        let task = tokio::spawn(accept(listener, target, delay.clone()));
        Ok(Self { address, delay, task })
    }

    /// Address of the relay.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the delay of requests from now on.
    pub fn slow_down(&self, delay: Duration) {
        let milliseconds = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delay.store(milliseconds, Ordering::Relaxed);
    }
}

impl Drop for SlowRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, delay: Arc<AtomicU64>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                connections.spawn(relay(client, target, delay.clone()));
            }
            // A connection that breaks is the business of its client.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Relays one connection until both sides have ended.
async fn relay(client: TcpStream, target: SocketAddr, delay: Arc<AtomicU64>) -> io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let (chunks, waiting) = mpsc::channel(WAITING);
    let answers = async {
        copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    tokio::try_join!(
        read_requests(from_client, chunks, &delay),
        send_requests(waiting, to_server),
        answers
    )?;
    Ok(())
}

async fn read_requests(
    mut client: OwnedReadHalf,
    chunks: mpsc::Sender<DelayedChunk>,
    delay: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = client.read(&mut buffer).await?;
        let due = Instant::now() + Duration::from_millis(delay.load(Ordering::Relaxed));
        let Some(chunk) = buffer.get(..length).filter(|chunk| !chunk.is_empty()) else {
            return Ok(());
        };
        if chunks.send((due, chunk.to_vec())).await.is_err() {
            return Ok(());
        }
    }
}

async fn send_requests(mut waiting: mpsc::Receiver<DelayedChunk>, mut server: OwnedWriteHalf) -> io::Result<()> {
    while let Some((due, chunk)) = waiting.recv().await {
        sleep_until(due).await;
        server.write_all(&chunk).await?;
    }
    server.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every byte with itself.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut read, mut write) = stream.into_split();
            copy(&mut read, &mut write).await.unwrap();
        });
        address
    }

    async fn exchange(stream: &mut TcpStream) -> Duration {
        let begin = Instant::now();
        stream.write_all(b"request").await.unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"request");
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_is_late_by_the_delay_and_connections_end_together() {
        let relay = SlowRelay::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(relay.address()).await.unwrap();
        let delay = Duration::from_millis(200);
        assert!(exchange(&mut stream).await < delay);
        relay.slow_down(delay);
        for _ in 0..2 {
            let took = exchange(&mut stream).await;
            assert!(took >= delay && took < 2 * delay, "{took:?}");
        }
        relay.slow_down(Duration::ZERO);
        assert!(exchange(&mut stream).await < delay);
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        assert_eq!(stream.read_to_end(&mut rest).await.unwrap(), 0);
    }
}
