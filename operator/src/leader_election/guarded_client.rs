//! Client that sends a write only while this process leads.
//!
//! It checks the leadership twice: when the request enters the client, and when the connection asks for the body, the last
//! moment before the bytes go to the kernel. Between the two lie a queue and perhaps a TLS handshake, and a process may be
//! stopped anywhere. No API server carries out a request whose body does not come.

use crate::leader_election::leadership::Leadership;
use http::{Method, Request};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tower::{BoxError, ServiceBuilder};

/// The client held a write back.
#[derive(Debug, thiserror::Error)]
#[error("cannot send a write: this process no longer leads")]
pub struct NotLeader;

/// Makes a client whose writes end with the leadership. It never retries by itself, since a retry would not be checked;
/// a paced client may lie above it.
pub fn guarded_client(config: Config, leadership: Leadership) -> kube::Result<Client> {
    let connector = config.rustls_https_connector()?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .filter(move |request: Request<Body>| guarded(request, &leadership))
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn guarded(request: Request<Body>, leadership: &Leadership) -> Result<Request<GuardedBody>, BoxError> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_read && !leadership.is_current() {
        return Err(NotLeader.into());
    }
    let leadership = (!is_read).then(|| leadership.clone());
    Ok(request.map(|inner| GuardedBody { inner, leadership }))
}

/// A body that is handed out only while this process leads.
struct GuardedBody {
    inner: Body,
    leadership: Option<Leadership>,
}

impl HttpBody for GuardedBody {
    type Data = <Body as HttpBody>::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self
            .leadership
            .as_ref()
            .is_some_and(|leadership| !leadership.is_current())
        {
            return Poll::Ready(Some(Err(NotLeader.into())));
        }
        Pin::new(&mut self.inner).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader_election::lease_durations::LEASE_DURATION;
    use std::future::poll_fn;
    use tokio::time::{Instant, advance};

    fn request(method: Method) -> Request<Body> {
        Request::builder()
            .method(method)
            .body(Body::from(b"{}".to_vec()))
            .unwrap()
    }

    async fn body_of(request: Request<GuardedBody>) -> Result<(), BoxError> {
        let mut body = request.into_body();
        poll_fn(|context| Pin::new(&mut body).poll_frame(context))
            .await
            .expect("there is a body")
            .map(drop)
    }

    #[tokio::test(start_paused = true)]
    async fn write_goes_only_while_this_process_leads() {
        let leadership = Leadership::until(Instant::now() + LEASE_DURATION);
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(body_of(guarded(request(method), &leadership).unwrap()).await.is_ok());
        }
        advance(LEASE_DURATION).await;
        assert!(
            guarded(request(Method::PATCH), &leadership)
                .err()
                .is_some_and(|error| error.is::<NotLeader>())
        );
        assert!(
            body_of(guarded(request(Method::GET), &leadership).unwrap())
                .await
                .is_ok(),
            "reads go on"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_waited_past_the_leadership_is_not_sent() {
        let leadership = Leadership::until(Instant::now() + LEASE_DURATION);
        let waiting = guarded(request(Method::PATCH), &leadership).unwrap();
        advance(LEASE_DURATION).await;
        assert!(body_of(waiting).await.is_err_and(|error| error.is::<NotLeader>()));
    }
}
