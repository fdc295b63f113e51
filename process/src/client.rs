//! Client that goes easy on the API server: it waits as long as an answer asks it to, and keeps to a rate.
//!
//! | module | what it does |
//! |---|---|
//! | `retry_after` | answers by which the API server asks to be left alone for a while |
//! | `token_bucket` | limits a rate |
//! | `request_clock` | time limit of requests that does not run while they wait for their turn |

mod request_clock;
mod retry_after;
mod token_bucket;

pub use request_clock::within;

use crate::{
    client::{
        request_clock::StoppedClock,
        retry_after::{MAX_TRIES, may_be_repeated, requested_pause},
        token_bucket::TokenBucket,
    },
    jitter::random_up_to,
};
use http::{Request, Response};
use kube::{Client, client::Body};
use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};
use tower::service_fn;

/// Time for the rest of an answer that is thrown away. A connection with an unread answer cannot be used again.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// Limit for the rate of requests, for all clients together that share it. Without limit by default.
#[derive(Clone, Debug, Default)]
pub struct RequestThrottle(Option<Arc<Mutex<TokenBucket>>>);

impl RequestThrottle {
    /// Lets `qps` requests go in a second, without limit if it is 0, and `burst` at once after a pause, as many as in a
    /// second if that is 0.
    pub fn new(qps: u32, burst: u32) -> Self {
        let bucket = NonZeroU32::new(qps).map(|qps| {
            let burst = NonZeroU32::new(burst).unwrap_or(qps);
            Arc::new(Mutex::new(TokenBucket::new(qps, burst, Instant::now())))
        });
        Self(bucket)
    }

    /// Waits until the next request may go.
    async fn turn(&self) {
        let Some(bucket) = &self.0 else { return };
        let wait = bucket
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(Instant::now());
        if !wait.is_zero() {
            let _stopped = StoppedClock::stop();
            sleep(wait).await;
        }
    }
}

/// Returns a client that sends requests through `client`, each when `throttle` lets it go.
///
/// After an answer 429 or 503 with `Retry-After` it waits, with jitter, and sends the request again, at most four
/// times. [`within`] does not count these waits. Not for requests with a time limit of their own, such as those for
/// the Lease: pass `client` itself to those. It belongs to the runtime in which it is made.
pub fn paced_client(client: Client, throttle: &RequestThrottle) -> Client {
    let namespace = client.default_namespace().to_owned();
    let throttle = throttle.clone();
    let service = service_fn(move |request: Request<Body>| send(client.clone(), throttle.clone(), request));
    Client::new(service, namespace)
}

async fn send(client: Client, throttle: RequestThrottle, request: Request<Body>) -> kube::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let is_repeatable = may_be_repeated(parts.uri.path());
    let mut tries = 1;
    loop {
        // A body that is a stream can be sent once.
        let copy = body.try_clone().filter(|_| is_repeatable && tries < MAX_TRIES);
        throttle.turn().await;
        let Some(copy) = copy else {
            return client.send(Request::from_parts(parts, body)).await;
        };
        let response = client.send(Request::from_parts(parts.clone(), copy)).await?;
        let Some(pause) = requested_pause(response.status(), response.headers()) else {
            return Ok(response);
        };
        tracing::debug!(path = parts.uri.path(), ?pause, "the API server is busy; waiting");
        let _stopped = StoppedClock::stop();
        // An error while reading what nobody needs changes nothing.
        _ = timeout(DRAIN_TIME, response.into_body().collect_bytes()).await;
        // Never earlier than it asks for.
        sleep(pause + random_up_to(pause / 2)).await;
        tries += 1;
    }
}

#[cfg(test)]
mod tests;
