//! A Lease that another process holds, as it was observed: it ends when nobody renewed it for its duration by this machine's clock.

use crate::leader_election::lease_durations::{LEASE_DURATION, MAX_LEASE_DURATION};
use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};
use std::time::Duration;
use tokio::time::Instant;

/// Fields that change with each renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    pub holder: Option<String>,
    renewed: Option<MicroTime>,
    transitions: Option<i32>,
}

impl LeaseRecord {
    /// Reads the fields.
    pub fn of(spec: &LeaseSpec) -> Self {
        Self {
            holder: spec.holder_identity.clone(),
            renewed: spec.renew_time.clone(),
            transitions: spec.lease_transitions,
        }
    }
}

/// A Lease of another holder.
#[derive(Debug)]
pub struct ObservedLease {
    pub record: LeaseRecord,
    /// Time of the first read of this record.
    since: Instant,
    /// Time from which on the Lease may be taken.
    pub expires: Instant,
}

impl ObservedLease {
    /// Returns the Lease as it is observed now; `before` is how it was observed last.
    pub fn next(before: Option<Self>, record: LeaseRecord, duration_seconds: Option<i32>, now: Instant) -> Self {
        let since = before
            .filter(|before| before.record == record)
            .map_or(now, |before| before.since);
        let duration = duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0)
            .map_or(LEASE_DURATION, Duration::from_secs);
        let expires = since + duration.min(MAX_LEASE_DURATION);
        Self { record, since, expires }
    }
}
