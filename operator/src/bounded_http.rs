//! Serves HTTP to anybody in the cluster with bounded memory and time, which `axum::serve` cannot be told.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use std::{sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};

/// Connections at a time; others wait in the queue of the kernel.
const MAX_CONNECTIONS: usize = 64;
/// What one connection may hold of a request, in bytes.
const MAX_BUFFER: usize = 16 * 1024;
/// One request and its answer; probes and scrapes open a new connection for the next.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Before the next try where no connection can be taken, as when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // The semaphore is never closed.
    while let Ok(permit) = free.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut server = http1::Builder::new();
            server.max_buf_size(MAX_BUFFER).keep_alive(false);
            // A client that breaks off or is cut off is its own affair.
            let _ = timeout(MAX_TIME, server.serve_connection(TokioIo::new(stream), service)).await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    async fn connected() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Router::new().route("/livez", get(async || "ok\n"))));
        TcpStream::connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn request_is_answered() {
        let mut stream = connected().await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    }

    #[tokio::test]
    async fn endless_header_is_cut_off() {
        let mut stream = connected().await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nx: ").await.unwrap();
        let endless = async { while stream.write_all(&[b'a'; 4096]).await.is_ok() {} };
        timeout(MAX_TIME / 2, endless).await.unwrap();
    }

    #[tokio::test]
    async fn unfinished_request_is_cut_off() {
        let mut stream = connected().await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nx: ").await.unwrap();
        let mut answer = Vec::new();
        timeout(MAX_TIME * 2, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.is_empty());
    }
}
