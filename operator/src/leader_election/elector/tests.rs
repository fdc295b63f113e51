use super::*;
use crate::leader_election::{leadership::MARGIN, lease_record::MAX_DURATION};
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

const FIRST_INSTALL: CacheState = CacheState::Warm { is_first_install: true };
const WARM: CacheState = CacheState::Warm {
    is_first_install: false,
};

/// An elector whose requests all fail.
fn elector() -> (LeaderElector, Leadership) {
    let service = tower::service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>(std::io::Error::other("no")) });
    LeaderElector::new(Client::new(service, "default"), "ns", "me", Box::new(|| WARM))
}

/// The Leases of an API server, by namespace, and how it answers lists.
#[derive(Clone, Default)]
struct Leases(Arc<Mutex<BTreeMap<String, Value>>>, Arc<Mutex<Lists>>);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Lists {
    #[default]
    Answered,
    Failing,
    Hanging,
    /// From a cache that does not have the Leases of the electors yet.
    Lagging,
}

impl Leases {
    /// An elector of this namespace.
    fn elector(&self, namespace: &str, caches: CacheState) -> LeaderElector {
        let leases = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let leases = leases.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                let lists = *leases.1.lock().unwrap();
                if lists == Lists::Hanging && !head.uri.path().contains("/namespaces/") {
                    std::future::pending::<()>().await;
                }
                let (code, answer) = leases.answer(&head.method, head.uri.path(), body);
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
            }
        });
        LeaderElector::new(
            Client::new(service, "default"),
            namespace,
            "me",
            Box::new(move || caches),
        )
        .0
    }

    fn answer(&self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        let mut leases = self.0.lock().unwrap();
        let failure = |code: u16, reason: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}),
            )
        };
        let Some((_, path)) = path.split_once("/namespaces/") else {
            let lists = *self.1.lock().unwrap();
            if lists == Lists::Failing {
                return failure(429, "TooManyRequests");
            }
            let is_listed = |lease: &&Value| lists != Lists::Lagging || lease["spec"]["holderIdentity"] != "me";
            let items: Vec<_> = leases.values().filter(is_listed).cloned().collect();
            return (
                200,
                json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": items}),
            );
        };
        let namespace = path.split('/').next().unwrap_or_default().to_owned();
        let known = leases.get(&namespace).cloned();
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
                leases.insert(namespace, body.clone());
                (200, body)
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
        self.0.lock().unwrap().insert(namespace.to_owned(), lease);
    }

    /// Empties the Lease of a namespace, as an operator that ends does.
    fn release(&self, namespace: &str) {
        let mut leases = self.0.lock().unwrap();
        let lease = leases.get_mut(namespace).unwrap();
        lease["spec"]["holderIdentity"] = Value::Null;
    }

    /// Renews the Lease of a namespace by a clock that is so many seconds behind.
    fn renew(&self, namespace: &str, seconds_behind: i64) {
        let at = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(seconds_behind);
        self.0.lock().unwrap().get_mut(namespace).unwrap()["spec"]["renewTime"] = json!(MicroTime(at));
    }

    fn delete(&self, namespace: &str) {
        self.0.lock().unwrap().remove(namespace);
    }

    fn holder(&self, namespace: &str) -> Option<String> {
        let leases = self.0.lock().unwrap();
        leases[namespace]["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }
}

impl LeaderElector {
    /// One attempt, as `run` makes it.
    async fn attempt_once(&mut self) -> LeaseAttempt {
        let attempt = self.attempt().await.unwrap();
        self.tell(&attempt);
        if let LeaseAttempt::Held(until) = &attempt {
            self.until.send_replace(Some(*until));
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
    let (mut elector, _leadership) = elector();
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
    let (mut elector, _leadership) = elector();
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
async fn lease_of_absurd_duration_is_taken_after_a_minute() {
    let (mut elector, _leadership) = elector();
    let mut lease = lease("other", 1);
    lease.spec.as_mut().unwrap().lease_duration_seconds = Some(i32::MAX);
    let start = Instant::now();
    assert!(elector.valid_holder(Some(&lease), start).is_some());
    assert!(elector.valid_holder(Some(&lease), start + MAX_DURATION / 2).is_some());
    assert_eq!(elector.valid_holder(Some(&lease), start + MAX_DURATION), None);
}

#[tokio::test(start_paused = true)]
async fn lease_that_is_free_or_mine_is_taken_at_once() {
    let (mut elector, _leadership) = elector();
    for lease in [None, Some(lease("", 1)), Some(lease("me", 1)), Some(Lease::default())] {
        assert_eq!(elector.valid_holder(lease.as_ref(), Instant::now()), None);
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_keeps_the_version_and_counts_transitions() {
    let (elector, _leadership) = elector();
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
    let (elector, mut leadership) = elector();
    assert!(!leadership.is_current());
    elector.until.send_replace(Some(Instant::now() + LEASE_DURATION));
    leadership.acquired().await;
    assert!(leadership.is_current());
    tokio::time::advance(LEASE_DURATION.saturating_sub(MARGIN)).await;
    assert!(!leadership.is_current());
}

#[tokio::test(start_paused = true)]
async fn leader_that_cannot_renew_stops() {
    let (mut elector, _leadership) = elector();
    elector.until.send_replace(Some(Instant::now() + LEASE_DURATION));
    assert!(matches!(elector.run().await, LeaseError::Expired));
}

#[tokio::test(start_paused = true)]
async fn leader_goes_on_while_lists_fail_or_hang_and_nobody_else_begins() {
    for lists in [Lists::Failing, Lists::Hanging] {
        let leases = Leases::default();
        let mut leader = leases.elector("a", FIRST_INSTALL);
        assert!(matches!(leader.attempt_once().await, LeaseAttempt::Held(_)));
        *leases.1.lock().unwrap() = lists;
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
            *leases.1.lock().unwrap() = lists;
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
    assert!(leases.0.lock().unwrap().is_empty());
    elector.until.send_replace(Some(Instant::now() + LEASE_DURATION));
    assert!(matches!(elector.run().await, LeaseError::CachesCold));
}
