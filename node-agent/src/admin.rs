//! `/livez` and `/readyz`. Whoever reaches the port can cost the agent a little memory for a short time, and no more.

use anyhow::{Context as _, Result};
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{collections::VecDeque, convert::Infallible, net::SocketAddr, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tracing::{error, info};

/// Connections at the same time. One more ends the oldest, so that silent ones do not keep the kubelet's probes out.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of a request's header. A probe needs a few hundred.
const MAX_HEADER: usize = 16 * 1024;
/// A connection is for one request, which is answered at once.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection that could not be accepted, for want of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Whether the agent does its work, or why not yet.
pub type Readiness = Result<(), String>;

/// Takes the address, so that one that is in use is noticed at the start.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}; choose another --admin-address"))?;
    info!(address = %listener.local_addr()?, "serving /livez and /readyz");
    Ok(listener)
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, readiness: watch::Receiver<Readiness>) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if connections.len() == MAX_CONNECTIONS
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let serving = timeout(CONNECTION_TIMEOUT, serve_one(stream, readiness.clone()));
                // What fails here is known to the one who asked.
                connections.push_back(tokio::spawn(serving).abort_handle());
            }
            Err(error) => {
                error!(%error, "accept a connection to /livez and /readyz");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, readiness: watch::Receiver<Readiness>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let readiness = readiness.borrow();
        let (status, text) = answer(request.uri().path(), &readiness);
        let mut response = Response::new(format!("{text}\n"));
        *response.status_mut() = status;
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEADER).keep_alive(false).serve_connection(TokioIo::new(stream), service).await
}

fn answer<'a>(path: &str, readiness: &'a Readiness) -> (StatusCode, &'a str) {
    match (path, readiness) {
        // An answer shows that the event loop runs; that is all that a restart could cure.
        ("/livez", _) | ("/readyz", Ok(())) => (StatusCode::OK, "ok"),
        ("/readyz", Err(reason)) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        _ => (StatusCode::NOT_FOUND, "there are /livez and /readyz"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn start(readiness: Readiness) -> SocketAddr {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (_readiness, ready) = watch::channel(readiness);
            serve(listener, ready).await;
        });
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn each_path_has_its_answer() {
        let address = start(Err("not yet".to_owned())).await;
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let answer = get(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("not yet\n"), "{answer}");
        assert!(get(address, "/metrics").await.starts_with("HTTP/1.1 404"));
        assert!(get(start(Ok(())).await, "/readyz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn an_endless_header_is_refused_early() {
        let mut stream = TcpStream::connect(start(Ok(())).await).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nA: ").await.unwrap();
        stream.write_all(&[b'a'; MAX_HEADER]).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(status.as_slice(), b"HTTP/1.1 431");
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_probe_out() {
        let address = start(Ok(())).await;
        let mut silent = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = timeout(CONNECTION_TIMEOUT / 2, get(address, "/readyz")).await.unwrap();
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0, "the oldest is closed");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
