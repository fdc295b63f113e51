use super::*;
use http::{Method, StatusCode, header::RETRY_AFTER};
use std::{
    convert::Infallible,
    future::{pending, ready},
    io,
};

/// An API server that is busy for the first requests, and what it has received.
#[derive(Clone, Default)]
struct BusyServer(Arc<Mutex<Vec<(Instant, Method, String)>>>);

impl BusyServer {
    /// Returns a client of the server, which answers `status` with this `Retry-After` to the first `busy` requests.
    fn client(&self, busy: usize, status: StatusCode, retry_after: &'static str) -> Client {
        let requests = self.0.clone();
        let service = service_fn(move |request: Request<Body>| {
            let requests = requests.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.unwrap();
                let text = String::from_utf8(body.to_vec()).unwrap();
                let mut requests = requests.lock().unwrap();
                requests.push((Instant::now(), method, text));
                let is_busy = requests.len() <= busy;
                let answer = if is_busy { "busy" } else { "{}" };
                let mut response = Response::new(Body::from(answer.as_bytes().to_vec()));
                if is_busy {
                    *response.status_mut() = status;
                    response.headers_mut().insert(RETRY_AFTER, retry_after.parse().unwrap());
                }
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "default")
    }

    fn times(&self) -> Vec<Instant> {
        self.0.lock().unwrap().iter().map(|(time, ..)| *time).collect()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn patch(path: &str) -> Request<Vec<u8>> {
    Request::patch(path).body(b"a change".to_vec()).unwrap()
}

fn code(result: kube::Result<String>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        result => panic!("{result:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn busy_server_gets_the_same_request_again_after_the_time_that_it_asks_for() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let server = BusyServer::default();
        let client = paced_client(server.client(2, status, "4"), &RequestThrottle::default());
        assert_eq!(client.request_text(patch("/a")).await.unwrap(), "{}");
        let pauses: Vec<Duration> = server.times().windows(2).map(|pair| pair[1] - pair[0]).collect();
        let range = Duration::from_secs(4)..Duration::from_millis(6001);
        assert!(pauses.iter().all(|pause| range.contains(pause)), "{pauses:?}");
        let requests = server.0.lock().unwrap();
        let is_same = |(_, method, body): &(Instant, Method, String)| method == Method::PATCH && body == "a change";
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(is_same));
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_stays_busy_is_asked_five_times() {
    let server = BusyServer::default();
    let busy = server.client(99, StatusCode::TOO_MANY_REQUESTS, "3600");
    let client = paced_client(busy, &RequestThrottle::default());
    let start = Instant::now();
    assert_eq!(code(client.request_text(patch("/a")).await), 429);
    assert_eq!(server.len(), 5);
    assert!((120..=180).contains(&start.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn budget_that_refuses_an_eviction_is_not_asked_again() {
    let server = BusyServer::default();
    let busy = server.client(1, StatusCode::TOO_MANY_REQUESTS, "10");
    let client = paced_client(busy, &RequestThrottle::default());
    let eviction = patch("/api/v1/namespaces/ml/pods/train-0/eviction");
    assert_eq!(code(client.request_text(eviction).await), 429);
    assert_eq!(server.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn clients_share_one_rate_and_the_client_below_is_not_held_back() {
    let server = BusyServer::default();
    let direct = server.client(0, StatusCode::OK, "0");
    let throttle = RequestThrottle::new(2, 1);
    let clients = [
        paced_client(direct.clone(), &throttle),
        paced_client(direct.clone(), &throttle),
    ];
    let start = Instant::now();
    for _ in 0..4 {
        for client in &clients {
            client.request_text(patch("/a")).await.unwrap();
        }
    }
    let lease = direct.request_text(patch("/lease"));
    assert!(timeout(Duration::from_millis(1), lease).await.is_ok());
    let seconds: Vec<f32> = server
        .times()
        .iter()
        .map(|time| (*time - start).as_secs_f32())
        .collect();
    for (expected, second) in [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5].into_iter().zip(&seconds) {
        // A timer rounds up to the millisecond.
        assert!((second - expected).abs() < 0.02, "{seconds:?}");
    }
    assert_eq!(seconds.len(), 9);
}

#[tokio::test(start_paused = true)]
async fn waits_of_a_request_do_not_use_up_its_time_limit() {
    let server = BusyServer::default();
    let throttle = RequestThrottle::new(1, 1);
    let client = paced_client(server.client(1, StatusCode::TOO_MANY_REQUESTS, "20"), &throttle);
    let requests = async {
        for _ in 0..5 {
            client.request_text(patch("/a")).await.unwrap();
        }
    };
    assert!(within(Duration::from_secs(1), requests).await.is_some());
    assert_eq!(server.len(), 6);

    let silent = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
    let client = paced_client(Client::new(silent, "default"), &throttle);
    assert!(
        within(Duration::from_secs(9), client.request_text(patch("/a")))
            .await
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn error_of_the_client_below_stays_the_same() {
    let refusing = service_fn(|_: Request<Body>| ready(Err::<Response<Body>, _>(io::Error::other("held back"))));
    let client = paced_client(Client::new(refusing, "default"), &RequestThrottle::default());
    let error = client.request_text(patch("/a")).await.unwrap_err();
    assert!(matches!(error, kube::Error::Service(source) if source.is::<io::Error>()));
}
