use super::*;
use crate::leader_election::leadership::MARGIN;
use http::{Request, Response};
use kube::client::Body;

/// An elector whose requests all fail.
fn elector() -> (LeaderElector, Leadership) {
    let service = tower::service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>(std::io::Error::other("no")) });
    LeaderElector::new(Client::new(service, "default"), "ns", "me")
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
