use super::*;
use crate::{
    leader_election::lease_durations::{LEASE_DURATION, MAX_LEASE_DURATION},
    metrics::OperatorMetrics,
};
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// The retry period of the electors.
const RETRY_EVERY: Duration = Duration::from_secs(2);
const FIRST_INSTALL: CacheState = CacheState::Warm { is_first_install: true };
const WARM: CacheState = CacheState::Warm {
    is_first_install: false,
};

/// Settings of an election in this namespace.
fn settings(namespace: &str, caches: CacheState) -> ElectionSettings {
    ElectionSettings {
        namespace: namespace.to_owned(),
        identity: "me".to_owned(),
        durations: LeaseDurations::default(),
        caches: Box::new(move || caches),
        leadership: LeadershipOwner::default(),
        metrics: OperatorMetrics::new().election,
    }
}

/// An elector whose requests all fail.
fn elector() -> LeaderElector {
    let service = tower::service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>(std::io::Error::other("no")) });
    LeaderElector::new(Client::new(service, "default"), settings("ns", WARM))
}

/// The Leases of an API server, and how it answers.
#[derive(Clone, Default)]
struct Leases {
    by_namespace: Arc<Mutex<BTreeMap<String, Value>>>,
    lists: Arc<Mutex<Lists>>,
    /// Number of lists.
    listed: Arc<Mutex<usize>>,
    /// Times of the requests that changed a Lease.
    written: Arc<Mutex<Vec<Instant>>>,
    /// Time from a request to its effect.
    delay: Arc<Mutex<Duration>>,
    /// `None` refuses watches.
    watches: Arc<Mutex<Option<Vec<LeaseFollower>>>>,
}

/// The other end of a watch.
struct LeaseFollower {
    namespace: String,
    events: mpsc::UnboundedSender<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Lists {
    #[default]
    Answered,
    Failing,
    Hanging,
    /// Hang from when an elector has taken a Lease.
    HangingOnceTaken,
    /// From a cache that does not have the Leases of the electors yet.
    Lagging,
}

/// Body of an answer: whole, or the events of a watch as they come.
enum AnswerBody {
    Whole(Option<Vec<u8>>),
    Events(mpsc::UnboundedReceiver<Vec<u8>>),
}

impl HttpBody for AnswerBody {
    type Data = <Body as HttpBody>::Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Events(events) => events.poll_recv(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes.into()))))
    }
}

fn answer_of((code, answer): (u16, Value)) -> Response<AnswerBody> {
    let body = AnswerBody::Whole(Some(answer.to_string().into_bytes()));
    Response::builder().status(code).body(body).unwrap()
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
    )
}

/// A line of a watch.
fn event(type_: &str, lease: &Value) -> Vec<u8> {
    format!("{}\n", json!({"type": type_, "object": lease})).into_bytes()
}

/// Returns the namespace in the path of a request; `None` for all namespaces.
fn namespace_of(path: &str) -> Option<&str> {
    path.split_once("/namespaces/")?.1.split('/').next()
}

impl Leases {
    /// Leases of an API server that lets a standby watch its own.
    fn watchable() -> Self {
        let leases = Self::default();
        *leases.watches.lock().unwrap() = Some(Vec::new());
        leases
    }

    /// An elector of this namespace.
    fn elector(&self, namespace: &str, caches: CacheState) -> LeaderElector {
        let leases = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let leases = leases.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                let namespace = namespace_of(head.uri.path());
                let delay = *leases.delay.lock().unwrap();
                sleep(delay).await;
                let Some(namespace) = namespace else {
                    *leases.listed.lock().unwrap() += 1;
                    if leases.do_lists_hang() {
                        std::future::pending::<()>().await;
                    }
                    return Ok::<_, Infallible>(answer_of(leases.list()));
                };
                if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
                    return Ok(leases.watch(namespace));
                }
                let answer = leases.answer(&head.method, namespace, body);
                if head.method != Method::GET {
                    leases.written.lock().unwrap().push(Instant::now());
                    leases.tell(namespace);
                }
                Ok(answer_of(answer))
            }
        });
        LeaderElector::new(Client::new(service, "default"), settings(namespace, caches))
    }

    fn do_lists_hang(&self) -> bool {
        let leases = self.by_namespace.lock().unwrap();
        let is_taken = leases.values().any(|lease| lease["spec"]["holderIdentity"] == "me");
        match *self.lists.lock().unwrap() {
            Lists::Hanging => true,
            Lists::HangingOnceTaken => is_taken,
            Lists::Answered | Lists::Failing | Lists::Lagging => false,
        }
    }

    fn list(&self) -> (u16, Value) {
        let lists = *self.lists.lock().unwrap();
        if lists == Lists::Failing {
            return failure(429, "TooManyRequests");
        }
        let leases = self.by_namespace.lock().unwrap();
        let is_listed = |lease: &&Value| lists != Lists::Lagging || lease["spec"]["holderIdentity"] != "me";
        let items: Vec<_> = leases.values().filter(is_listed).cloned().collect();
        (
            200,
            json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": items}),
        )
    }

    fn answer(&self, method: &Method, namespace: &str, mut body: Value) -> (u16, Value) {
        let mut leases = self.by_namespace.lock().unwrap();
        let known = leases.get(namespace).cloned();
        let version = |lease: &Value| {
            lease["metadata"]["resourceVersion"]
                .as_str()
                .and_then(|it| it.parse::<u64>().ok())
        };
        match (method, known) {
            (&Method::GET, Some(lease)) => (200, lease),
            (&Method::GET, None) => failure(404, "NotFound"),
            (&Method::POST, Some(_)) => failure(409, "AlreadyExists"),
            (&Method::PUT, Some(lease)) if version(&lease) != version(&body) => failure(409, "Conflict"),
            (_, known) => {
                let next = known.as_ref().and_then(version).unwrap_or(0) + 1;
                body["metadata"]["resourceVersion"] = json!(next.to_string());
                leases.insert(namespace.to_owned(), body.clone());
                (200, body)
            }
        }
    }

    /// Begins a watch with the Lease as it is.
    fn watch(&self, namespace: &str) -> Response<AnswerBody> {
        let mut watches = self.watches.lock().unwrap();
        let Some(watches) = watches.as_mut() else {
            return answer_of(failure(403, "Forbidden"));
        };
        let (events, received) = mpsc::unbounded_channel();
        if let Some(lease) = self.by_namespace.lock().unwrap().get(namespace) {
            events.send(event("ADDED", lease)).unwrap();
        }
        let namespace = namespace.to_owned();
        watches.push(LeaseFollower { namespace, events });
        Response::new(AnswerBody::Events(received))
    }

    /// Tells the watches of a namespace about its Lease.
    fn tell(&self, namespace: &str) {
        let gone = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME}});
        let event = match self.by_namespace.lock().unwrap().get(namespace) {
            Some(lease) => event("MODIFIED", lease),
            None => event("DELETED", &gone),
        };
        for follower in self.watches.lock().unwrap().iter().flatten() {
            if follower.namespace == namespace {
                // Fails for a watch that has ended.
                let _ = follower.events.send(event.clone());
            }
        }
    }

    /// Sets the Lease of a namespace, renewed so many seconds ago.
    fn set(&self, namespace: &str, version: Option<&str>, seconds_ago: i64) {
        let at = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(seconds_ago);
        let annotations = version.map(|version| json!({VERSION_ANNOTATION: version}));
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": NAME, "namespace": namespace, "resourceVersion": "1", "annotations": annotations},
            "spec": {"holderIdentity": format!("pod-{namespace}"), "leaseDurationSeconds": 15,
                "acquireTime": MicroTime(at), "renewTime": MicroTime(at)}});
        self.by_namespace.lock().unwrap().insert(namespace.to_owned(), lease);
        self.tell(namespace);
    }

    /// Empties the Lease of a namespace, as an operator that ends does.
    fn release(&self, namespace: &str) {
        self.by_namespace.lock().unwrap().get_mut(namespace).unwrap()["spec"]["holderIdentity"] = Value::Null;
        self.tell(namespace);
    }

    /// Renews the Lease of a namespace by a clock that is so many seconds behind.
    fn renew(&self, namespace: &str, seconds_behind: i64) {
        let at = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(seconds_behind);
        self.by_namespace.lock().unwrap().get_mut(namespace).unwrap()["spec"]["renewTime"] = json!(MicroTime(at));
        self.tell(namespace);
    }

    fn delete(&self, namespace: &str) {
        self.by_namespace.lock().unwrap().remove(namespace);
        self.tell(namespace);
    }

    fn holder(&self, namespace: &str) -> Option<String> {
        let leases = self.by_namespace.lock().unwrap();
        leases.get(namespace)?["spec"]["holderIdentity"]
            .as_str()
            .map(str::to_owned)
    }
}

impl LeaderElector {
    /// One attempt, as `run` makes it.
    async fn attempt_once(&mut self) -> LeaseAttempt {
        let attempt = self.attempt().await.unwrap();
        self.tell(&attempt);
        if let LeaseAttempt::Held(renewed) = &attempt {
            self.hold(*renewed);
        }
        attempt
    }
}

fn lease(holder: &str, renewed: i64) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        renew_time: Timestamp::from_second(renewed).ok().map(MicroTime),
        lease_transitions: Some(3),
        lease_duration_seconds: Some(15),
        ..LeaseSpec::default()
    };
    Lease {
        spec: Some(spec),
        ..Lease::default()
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_is_taken_only_after_its_duration_without_renewal() {
    let mut elector = elector();
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let other = Some("other".to_owned());
    assert_eq!(elector.valid_holder(Some(&lease("other", 1)), after(0)), other);
    assert_eq!(elector.valid_holder(Some(&lease("other", 1)), after(14)), other);
    assert_eq!(
        elector.valid_holder(Some(&lease("other", 2)), after(16)),
        other,
        "it was renewed"
    );
    assert_eq!(elector.valid_holder(Some(&lease("other", 2)), after(30)), other);
    assert_eq!(elector.valid_holder(Some(&lease("other", 2)), after(31)), None);
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_taken_after_its_duration_and_a_released_one_at_once() {
    let mut elector = elector();
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let other = Some("other".to_owned());
    assert_eq!(elector.valid_holder(Some(&lease("other", 1)), after(0)), other);
    assert_eq!(elector.valid_holder(None, after(2)), other);
    assert_eq!(elector.valid_holder(Some(&lease("", 2)), after(3)), None);
    assert_eq!(elector.valid_holder(None, after(14)), other);
    assert_eq!(elector.valid_holder(None, after(15)), None);
}

#[tokio::test(start_paused = true)]
async fn lease_of_absurd_duration_is_taken_after_five_minutes() {
    let mut elector = elector();
    let mut lease = lease("other", 1);
    lease.spec.as_mut().unwrap().lease_duration_seconds = Some(i32::MAX);
    let start = Instant::now();
    assert!(elector.valid_holder(Some(&lease), start).is_some());
    assert!(
        elector
            .valid_holder(Some(&lease), start + MAX_LEASE_DURATION / 2)
            .is_some()
    );
    assert_eq!(elector.valid_holder(Some(&lease), start + MAX_LEASE_DURATION), None);
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_free_or_mine_is_taken_at_once() {
    let mut elector = elector();
    for lease in [None, Some(lease("", 1)), Some(lease("me", 1)), Some(Lease::default())] {
        assert_eq!(elector.valid_holder(lease.as_ref(), Instant::now()), None);
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_the_version_and_counts_transitions() {
    let elector = elector();
    let mut mine = lease("me", 1);
    mine.metadata.resource_version = Some("9".to_owned());
    let renewed = elector.renewed(Some(&mine), Timestamp::UNIX_EPOCH);
    assert_eq!(renewed.metadata.resource_version.as_deref(), Some("9"));
    assert_eq!(renewed.spec.unwrap().lease_transitions, Some(3));
    let taken = elector
        .renewed(Some(&lease("other", 1)), Timestamp::UNIX_EPOCH)
        .spec
        .unwrap();
    assert_eq!(
        (taken.lease_transitions, taken.holder_identity.as_deref()),
        (Some(4), Some("me"))
    );
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_before_the_lease_can_be_taken() {
    let mut elector = elector();
    let mut leadership = elector.leadership.follow();
    assert!(!leadership.is_current());
    elector.hold(Instant::now());
    leadership.acquired().await;
    assert!(leadership.is_current());
    let durations = LeaseDurations::default();
    tokio::time::advance(durations.renew_deadline()).await;
    assert!(!leadership.is_current());
    assert!(durations.renew_deadline() < durations.lease());
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_renew_stops() {
    let mut elector = elector();
    elector.hold(Instant::now());
    assert!(matches!(elector.run().await, Err(LeaseError::Expired(_))));
}

/// Runs a standby and lets `change` happen to its Lease after 4.5 s, between two reads. Returns the time from then
/// until the standby may write.
async fn time_to_lead(leases: &Leases, change: impl FnOnce(&Leases)) -> Duration {
    let mut standby = leases.elector("a", WARM);
    let mut leadership = standby.leadership.follow();
    let scene = async {
        sleep(Duration::from_millis(4500)).await;
        change(leases);
        let start = Instant::now();
        leadership.acquired().await;
        start.elapsed()
    };
    tokio::select! {
        ended = standby.run() => panic!("the election ended: {ended:?}"),
        time = scene => time,
    }
}

#[tokio::test(start_paused = true)]
async fn standby_that_watches_its_lease_takes_it_at_once_when_it_is_released() {
    let leases = Leases::watchable();
    leases.set("a", Some("0.1.0"), 0);
    let time = time_to_lead(&leases, |leases| leases.release("a")).await;
    assert!(time <= WAKE_EVERY, "{time:?}");
    assert_eq!(leases.holder("a").as_deref(), Some("me"));
}

#[tokio::test(start_paused = true)]
async fn standby_that_cannot_watch_its_lease_takes_a_released_one_at_its_next_read() {
    let leases = Leases::default();
    leases.set("a", Some("0.1.0"), 0);
    let time = time_to_lead(&leases, |leases| leases.release("a")).await;
    assert!(
        time > WAKE_EVERY && time <= LeaseDurations::default().retry_period(),
        "{time:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn standby_takes_the_lease_of_a_dead_leader_when_it_ends_by_the_last_renewal_that_it_saw() {
    for leases in [Leases::watchable(), Leases::default()] {
        let is_watched = leases.watches.lock().unwrap().is_some();
        leases.set("a", Some("0.1.0"), 0);
        let time = time_to_lead(&leases, |leases| leases.renew("a", 0)).await;
        // Without a watch, the next read sees the renewal 1.5 s later.
        let limit = if is_watched { 15_050 } else { 16_550 };
        assert!(
            time >= LEASE_DURATION && time <= Duration::from_millis(limit),
            "{is_watched} {time:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn standby_that_watches_waits_for_the_holder_of_a_lease_that_was_deleted() {
    let leases = Leases::watchable();
    leases.set("a", Some("0.1.0"), 0);
    let time = time_to_lead(&leases, |leases| leases.delete("a")).await;
    assert!(
        time >= LEASE_DURATION && time <= LEASE_DURATION + WAKE_EVERY,
        "{time:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn standby_takes_and_keeps_the_lease_although_each_request_takes_long() {
    for (milliseconds, keeps) in [(1_100, true), (1_900, true), (3_500, false)] {
        let delay = Duration::from_millis(milliseconds);
        let leases = Leases::default();
        leases.set("a", Some("0.1.0"), 0);
        *leases.delay.lock().unwrap() = delay;
        let mut standby = leases.elector("a", WARM);
        let leadership = standby.leadership.follow();
        leases.release("a");
        let mut acquired = leadership.clone();
        tokio::select! {
            ended = standby.run() => panic!("{delay:?}: the election ended: {ended:?}"),
            () = acquired.acquired() => {}
            () = sleep(RETRY_EVERY + 4 * delay) => panic!("{delay:?}: nobody leads"),
        }
        if keeps {
            let ended = timeout(LEASE_DURATION * 4, standby.run()).await;
            assert!(ended.is_err() && leadership.is_current(), "{delay:?}: {ended:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_that_took_the_lease_and_was_cut_off_is_repeated_with_one_look_at_others() {
    let leases = Leases::default();
    *leases.lists.lock().unwrap() = Lists::HangingOnceTaken;
    let mut elector = leases.elector("a", FIRST_INSTALL);
    let attempt = elector.attempt().await;
    assert!(matches!(attempt, Err(AttemptError::NoAnswer(_))), "{attempt:?}");
    assert_eq!(leases.holder("a").as_deref(), Some("me"));
    *leases.lists.lock().unwrap() = Lists::Answered;
    let before = *leases.listed.lock().unwrap();
    assert!(matches!(elector.attempt_once().await, LeaseAttempt::Held(_)));
    assert_eq!(*leases.listed.lock().unwrap(), before + 1);
    // A process that has just started has not looked at others yet.
    let mut restarted = leases.elector("a", WARM);
    assert!(matches!(restarted.attempt_once().await, LeaseAttempt::Held(_)));
    assert_eq!(*leases.listed.lock().unwrap(), before + 3);
}

#[tokio::test(start_paused = true)]
async fn lease_renewals_and_take_over_follow_the_flags() {
    let [lease, renew, retry] = [5, 3, 1].map(Duration::from_secs);
    let durations = LeaseDurations::new(lease, renew, retry).unwrap();
    let leases = Leases::default();
    let mut leader = leases.elector("a", FIRST_INSTALL);
    leader.durations = durations;
    let ended = timeout(Duration::from_secs(8), leader.run()).await;
    assert!(ended.is_err(), "{ended:?}");
    let seconds = leases.by_namespace.lock().unwrap()["a"]["spec"]["leaseDurationSeconds"].clone();
    assert_eq!(seconds, 5);
    let written = leases.written.lock().unwrap().clone();
    let pauses: Vec<Duration> = written.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [renew / 2; 5]);

    // It is gone.
    let mut standby = leases.elector("a", WARM);
    (standby.durations, standby.identity) = (durations, "other".to_owned());
    let (start, mut leadership) = (Instant::now(), standby.leadership.follow());
    tokio::select! {
        ended = standby.run() => panic!("the election ended: {ended:?}"),
        () = leadership.acquired() => {}
    }
    let time = start.elapsed();
    assert!(time >= lease && time <= lease + WAKE_EVERY, "{time:?}");
    assert_eq!(leases.holder("a").as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn restarted_container_takes_its_own_lease_at_once() {
    let leases = Leases::default();
    let mut killed = leases.elector("a", FIRST_INSTALL);
    assert!(matches!(killed.attempt_once().await, LeaseAttempt::Held(_)));
    drop(killed);
    let transitions = |leases: &Leases| leases.by_namespace.lock().unwrap()["a"]["spec"]["leaseTransitions"].clone();
    let before = transitions(&leases);
    let mut restarted = leases.elector("a", WARM);
    assert!(matches!(restarted.attempt_once().await, LeaseAttempt::Held(_)));
    assert_eq!(transitions(&leases), before);
}

#[tokio::test(start_paused = true)]
async fn leader_begins_as_soon_as_its_caches_are_warm() {
    let leases = Leases::default();
    let (caches, state) = watch::channel(CacheState::Cold);
    let mut elector = leases.elector("a", WARM);
    elector.caches = Box::new(move || *state.borrow());
    let mut leadership = elector.leadership.follow();
    let scene = async {
        sleep(Duration::from_millis(1010)).await;
        caches.send_replace(FIRST_INSTALL);
        let start = Instant::now();
        leadership.acquired().await;
        start.elapsed()
    };
    let time = tokio::select! {
        ended = elector.run() => panic!("the election ended: {ended:?}"),
        time = scene => time,
    };
    assert!(time <= CACHES_EVERY * 2, "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_that_was_taken_while_the_process_was_stopped_is_released() {
    for lists in [Lists::Answered, Lists::HangingOnceTaken] {
        let leases = Leases::default();
        *leases.lists.lock().unwrap() = lists;
        let mut elector = leases.elector("a", FIRST_INSTALL);
        let (leadership, owner) = (elector.leadership.follow(), elector.leadership.clone());
        let stop = async {
            while leases.holder("a").is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            owner.end();
            let stopped = Instant::now();
            sleep(LEASE_DURATION).await;
            panic!("still running {:?} after the stop", stopped.elapsed());
        };
        let ended = tokio::select! {
            ended = timeout(LAST_ATTEMPT_TIMEOUT * 2, elector.run()) => ended,
            () = stop => return,
        };
        assert!(matches!(ended, Ok(Ok(()))), "{lists:?}: {ended:?}");
        assert!(!leadership.is_current());
        assert!(leases.holder("a").is_some());
        elector.release().await;
        assert_eq!(leases.holder("a"), None, "{lists:?}");
        assert!(leases.by_namespace.lock().unwrap().contains_key("a"));
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_is_not_released() {
    let leases = Leases::default();
    let mut elector = leases.elector("a", FIRST_INSTALL);
    assert!(matches!(elector.attempt_once().await, LeaseAttempt::Held(_)));
    leases.set("a", Some("0.1.0"), 0);
    elector.release().await;
    assert_eq!(leases.holder("a").as_deref(), Some("pod-a"));
}

#[tokio::test(start_paused = true)]
async fn leader_goes_on_while_lists_fail_or_hang_and_nobody_else_begins() {
    for lists in [Lists::Failing, Lists::Hanging] {
        let leases = Leases::default();
        let mut leader = leases.elector("a", FIRST_INSTALL);
        assert!(matches!(leader.attempt_once().await, LeaseAttempt::Held(_)));
        *leases.lists.lock().unwrap() = lists;
        let ended = timeout(LEASE_DURATION * 4, leader.run()).await;
        assert!(ended.is_err(), "{lists:?}: {ended:?}");
        let mut fresh = leases.elector("b", FIRST_INSTALL);
        let ended = timeout(LEASE_DURATION * 4, fresh.run()).await;
        assert!(ended.is_err() && !fresh.is_leading(), "{lists:?}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn second_installation_does_not_lead_and_names_the_leader_until_that_ends() {
    let leases = Leases::default();
    let mut first = leases.elector("a", FIRST_INSTALL);
    assert!(matches!(first.attempt_once().await, LeaseAttempt::Held(_)));
    let mut second = leases.elector("b", WARM);
    for _ in 0..10 {
        let attempt = second.attempt_once().await;
        assert!(
            matches!(attempt, LeaseAttempt::LedElsewhere(_) | LeaseAttempt::Deleted),
            "{attempt:?}"
        );
        tokio::time::advance(RETRY_EVERY).await;
        assert!(
            matches!(first.attempt_once().await, LeaseAttempt::Held(_)),
            "the first one goes on"
        );
    }
    let leader = second
        .other_leader()
        .borrow()
        .clone()
        .expect("another installation leads");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        leader.to_string(),
        format!("me in namespace a (version {version}) leads")
    );
    // The first one is uninstalled.
    leases.delete("a");
    let attempt = second.attempt_once().await;
    assert!(
        matches!(attempt, LeaseAttempt::LedElsewhere(_)),
        "it may still lead: {attempt:?}"
    );
    tokio::time::advance(LEASE_DURATION).await;
    assert!(matches!(second.attempt_once().await, LeaseAttempt::Held(_)));
    assert_eq!(*second.other_leader().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn installation_whose_operator_is_replaced_keeps_its_place() {
    let leases = Leases::default();
    let mut first = leases.elector("a", FIRST_INSTALL);
    assert!(matches!(first.attempt_once().await, LeaseAttempt::Held(_)));
    let mut second = leases.elector("b", FIRST_INSTALL);
    assert!(matches!(second.attempt_once().await, LeaseAttempt::LedElsewhere(_)));
    leases.release("a");
    tokio::time::advance(RETRY_EVERY).await;
    let attempt = second.attempt_once().await;
    assert!(
        matches!(attempt, LeaseAttempt::LedElsewhere(_)),
        "its next replica is about to lead: {attempt:?}"
    );
    let mut next = leases.elector("a", WARM);
    assert!(matches!(next.attempt_once().await, LeaseAttempt::Held(_)));
    tokio::time::advance(LEASE_DURATION.saturating_sub(RETRY_EVERY)).await;
    assert!(matches!(second.attempt_once().await, LeaseAttempt::LedElsewhere(_)));
    leases.release("a");
    tokio::time::advance(LEASE_DURATION).await;
    assert!(matches!(second.attempt_once().await, LeaseAttempt::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn installation_that_was_just_released_keeps_its_place_before_an_operator_that_starts_then() {
    let leases = Leases::default();
    leases.set("a", Some("0.1.0"), 30);
    leases.release("a");
    let mut second = leases.elector("b", FIRST_INSTALL);
    let attempt = second.attempt_once().await;
    let LeaseAttempt::LedElsewhere(leader) = &attempt else {
        panic!("{attempt:?}")
    };
    assert_eq!(
        leader.to_string(),
        "an operator in namespace a (version 0.1.0) leads",
        "its next replica is about to lead"
    );
    tokio::time::advance(LEASE_DURATION).await;
    assert!(matches!(second.attempt_once().await, LeaseAttempt::Held(_)));
    // Who leads keeps the Lease.
    leases.set("c", None, 0);
    leases.release("c");
    assert!(matches!(second.attempt_once().await, LeaseAttempt::Held(_)));
    // Released long ago.
    let leases = Leases::default();
    leases.set("a", Some("0.1.0"), 90);
    leases.release("a");
    let mut second = leases.elector("b", FIRST_INSTALL);
    assert!(matches!(second.attempt_once().await, LeaseAttempt::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn leader_whose_clock_is_behind_is_seen_by_its_renewals() {
    let leases = Leases::default();
    leases.set("a", Some("99.0.0"), 600);
    let mut elector = leases.elector("b", FIRST_INSTALL);
    assert!(
        matches!(elector.attempt_once().await, LeaseAttempt::Held(_)),
        "nobody renewed it for ten minutes"
    );
    for _ in 0..2 {
        leases.renew("a", 595);
        for _ in 0..2 {
            let attempt = elector.attempt_once().await;
            assert!(matches!(attempt, LeaseAttempt::LedElsewhere(_)), "{attempt:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lease_of_a_kubelet_is_none_of_an_operator_and_long_texts_are_cut() {
    let leases = Leases::default();
    leases.set("kube-node-lease", None, 0);
    let mut elector = leases.elector("b", FIRST_INSTALL);
    assert!(matches!(elector.attempt_once().await, LeaseAttempt::Held(_)));
    leases.set("a", Some(&"9".repeat(10_000)), 0);
    let attempt = leases.elector("c", FIRST_INSTALL).attempt_once().await;
    let LeaseAttempt::LedElsewhere(leader) = &attempt else {
        panic!("{attempt:?}")
    };
    assert_eq!(leader.version.as_ref().map(String::len), Some(253));
}

#[tokio::test(start_paused = true)]
async fn lease_elsewhere_that_nobody_renews_blocks_nobody() {
    let leases = Leases::default();
    leases.set("crashed", Some("0.1.0"), 0);
    leases.set("forgotten", None, 3600);
    let mut elector = leases.elector("b", FIRST_INSTALL);
    assert!(
        matches!(elector.attempt_once().await, LeaseAttempt::LedElsewhere(leader) if leader.namespace == "crashed")
    );
    tokio::time::advance(LEASE_DURATION).await;
    assert!(matches!(elector.attempt_once().await, LeaseAttempt::Held(_)));
    let mut elector = leases.elector("c", FIRST_INSTALL);
    leases.delete("crashed");
    leases.delete("b");
    assert!(
        matches!(elector.attempt_once().await, LeaseAttempt::Held(_)),
        "it ended an hour ago"
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_leaders_the_older_version_gives_way_then_who_came_later() {
    for (version, seconds_ago, gives_way) in [
        (Some("99.0.0"), 0, true),
        (Some("0.0.1"), 60, false),
        (Some(env!("CARGO_PKG_VERSION")), 60, true),
        (Some(env!("CARGO_PKG_VERSION")), -60, false),
        // A version that looks at no other installation.
        (None, 0, true),
    ] {
        for lists in [Lists::Answered, Lists::Lagging] {
            let leases = Leases::default();
            let mut elector = leases.elector("b", FIRST_INSTALL);
            assert!(matches!(elector.attempt_once().await, LeaseAttempt::Held(_)));
            leases.set("a", version, seconds_ago);
            *leases.lists.lock().unwrap() = lists;
            let attempt = elector.attempt_once().await;
            let has_given_way = matches!(attempt, LeaseAttempt::LedElsewhere(_));
            assert_eq!(
                has_given_way, gives_way,
                "{version:?} {seconds_ago} {lists:?}: {attempt:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn installation_that_sees_another_after_it_took_its_lease_hands_it_back() {
    let leases = Leases::default();
    let elector = leases.elector("b", FIRST_INSTALL);
    let held = elector.renewed(None, Timestamp::now());
    let held = elector.leases.create(&PostParams::default(), &held).await.unwrap();
    elector.hand_back(held).await.unwrap();
    assert_eq!(leases.holder("b"), None);
}

#[tokio::test(start_paused = true)]
async fn fresh_replica_takes_a_lease_that_is_missing_after_its_duration_and_at_once_on_a_first_install() {
    let leases = Leases::default();
    let mut fresh = leases.elector("a", WARM);
    assert!(
        matches!(fresh.attempt_once().await, LeaseAttempt::Deleted),
        "its holder may still lead"
    );
    tokio::time::advance(LEASE_DURATION.saturating_sub(RETRY_EVERY)).await;
    assert!(matches!(fresh.attempt_once().await, LeaseAttempt::Deleted));
    tokio::time::advance(RETRY_EVERY).await;
    assert!(matches!(fresh.attempt_once().await, LeaseAttempt::Held(_)));
    // The leader itself makes its Lease again at once.
    leases.delete("a");
    assert!(matches!(fresh.attempt_once().await, LeaseAttempt::Held(_)));

    let leases = Leases::default();
    let mut first = leases.elector("a", FIRST_INSTALL);
    assert!(matches!(first.attempt_once().await, LeaseAttempt::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn standby_takes_a_lease_that_was_deleted_after_one_duration() {
    let leases = Leases::default();
    leases.set("a", Some("0.1.0"), 0);
    let mut standby = leases.elector("a", WARM);
    assert!(matches!(standby.attempt_once().await, LeaseAttempt::HeldBy(_)));
    leases.delete("a");
    assert!(matches!(standby.attempt_once().await, LeaseAttempt::HeldBy(_)));
    tokio::time::advance(LEASE_DURATION).await;
    assert!(matches!(standby.attempt_once().await, LeaseAttempt::Held(_)));
}

#[tokio::test(start_paused = true)]
async fn lease_is_taken_with_warm_caches_alone_and_given_up_without_them() {
    let leases = Leases::default();
    let mut elector = leases.elector("a", CacheState::Cold);
    assert!(matches!(elector.attempt_once().await, LeaseAttempt::CachesCold));
    assert!(leases.by_namespace.lock().unwrap().is_empty());
    elector.hold(Instant::now());
    assert!(matches!(elector.run().await, Err(LeaseError::CachesCold)));
}
