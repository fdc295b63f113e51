//! Serves probes and scrapes. Memory and time per client are bounded, which `axum::serve` does not offer.

use crate::OnChange;
use hyper::{
    Method, Request, Response,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{collections::VecDeque, convert::Infallible, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{sleep, timeout},
};
use tracing::error;

pub use hyper::StatusCode;

/// Maximum number of connections. One more closes the oldest, so that silent clients cannot keep the kubelet's probes out.
const MAX_CONNECTIONS: usize = 64;
/// Maximum size of a request's header in bytes. A probe needs a few hundred.
const MAX_HEADER: usize = 16 * 1024;
/// Lifetime of a connection, which carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection cannot be accepted, for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Prometheus 3 refuses a response without its format.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Response with a text body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextResponse {
    status: StatusCode,
    content_type: HeaderValue,
    text: String,
}

impl TextResponse {
    /// Creates a response with one line for people.
    pub fn line(status: StatusCode, text: &str) -> Self {
        Self {
            status,
            content_type: PLAIN,
            text: format!("{text}\n"),
        }
    }

    /// Creates a response with a JSON document.
    pub fn json(text: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: JSON,
            text,
        }
    }

    /// Creates a response with metrics in the OpenMetrics text format.
    pub fn metrics(text: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: OPEN_METRICS,
            text,
        }
    }
}

/// Serves the response that `answer` gives for each path, until the process ends. `answer` must not block. A request with
/// another method than GET or HEAD gets status 405.
pub async fn serve(listener: TcpListener, answer: impl Fn(&str) -> TextResponse + Clone + Send + 'static) {
    let mut connections: VecDeque<AbortHandle> = VecDeque::with_capacity(MAX_CONNECTIONS);
    let mut accept_errors = OnChange::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                accept_errors.clear();
                if connections.len() == MAX_CONNECTIONS
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                let serving = timeout(CONNECTION_TIMEOUT, serve_one(stream, answer.clone()));
                // The client sees its own failures.
                connections.push_back(tokio::spawn(serving).abort_handle());
            }
            Err(error) => {
                if let Some(error) = accept_errors.changed(error) {
                    error!(error, "cannot accept a connection of a probe or scrape; retrying");
                }
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, answer: impl Fn(&str) -> TextResponse) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let TextResponse {
            status,
            content_type,
            text,
        } = if is_read {
            answer(request.uri().path())
        } else {
            TextResponse::line(StatusCode::METHOD_NOT_ALLOWED, "use GET")
        };
        let mut response = Response::new(text);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        if !is_read {
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
        }
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEADER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, |path| match path {
            "/readyz" => TextResponse::line(StatusCode::SERVICE_UNAVAILABLE, "not yet"),
            _ => TextResponse::metrics("# EOF\n".to_owned()),
        }));
        address
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        request(address, "GET", path).await
    }

    async fn request(address: SocketAddr, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("{method} {path} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn an_answer_has_its_status_and_says_its_format() {
        let address = start().await;
        let answer = get(address, "/readyz").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("not yet\n"),
            "{answer}"
        );
        let answer = get(address, "/metrics").await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("application/openmetrics-text"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_request_that_does_not_read_is_refused() {
        let address = start().await;
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let answer = request(address, method, "/metrics").await;
            assert!(
                answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET, HEAD"),
                "{method}: {answer}"
            );
        }
        let answer = request(address, "HEAD", "/metrics").await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && !answer.contains("# EOF"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn an_endless_header_is_refused_early() {
        let mut stream = TcpStream::connect(start().await).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nA: ").await.unwrap();
        stream.write_all(&[b'a'; MAX_HEADER]).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(status.as_slice(), b"HTTP/1.1 431");
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_a_probe_out() {
        let address = start().await;
        let mut silent = Vec::new();
        for _ in 0..=MAX_CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = timeout(CONNECTION_TIMEOUT / 2, get(address, "/readyz")).await.unwrap();
        assert_eq!(silent[0].read(&mut [0]).await.unwrap(), 0, "the oldest is closed");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
}
