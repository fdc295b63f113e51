//! Leader election by a `coordination.k8s.io` Lease.
//!
//! A leader's claim ends by this machine's monotonic clock, counted from before the request that renewed it was sent. Any
//! other replica counts the same time from when it saw the renewal, which is later. So a claim has always ended before
//! the Lease can be taken, whatever the wall clocks of the machines say and however long this process was stopped.

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// Name of the Lease.
const NAME: &str = "gpunode-operator";
/// How long a Lease holds without renewal. Client-go's default.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// No other holder is waited for longer, whatever its Lease says.
const MAX_DURATION: Duration = Duration::from_mins(1);
/// How often the leader renews: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How often others look, and how soon a failed request is tried again. Client-go's default retry period.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// No single request may use up the time of the claim.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// A write is not begun this close to the end of a claim, so that it reaches the API server before.
const MARGIN: Duration = Duration::from_secs(3);

/// Why this process leads no longer.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else has the Lease.
    #[error("renew lease {NAME}: {0} has taken it")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("renew lease {NAME}: no renewal within {}s; check the connection to the API server", LEASE_DURATION.as_secs())]
    Expired,
}

/// Whether this process leads, right now.
#[derive(Clone, Debug)]
pub struct Claim(watch::Receiver<Option<Instant>>);

impl Claim {
    /// A claim that was made once and is not renewed.
    #[cfg(test)]
    pub fn until(until: Instant) -> Self {
        Self(watch::channel(Some(until)).1)
    }

    /// Whether a write may begin.
    pub fn is_current(&self) -> bool {
        self.0.borrow().is_some_and(may_write)
    }

    /// Returns when a write may begin: at once, when this process begins to lead, or when a late renewal succeeds. Never
    /// returns where the election has ended, for the process ends too.
    pub async fn current(&mut self) {
        if self.0.wait_for(|until| until.is_some_and(may_write)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn may_write(until: Instant) -> bool {
    Instant::now() + MARGIN < until
}

/// One who wants to lead.
pub struct Candidate {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    until: watch::Sender<Option<Instant>>,
    alive: watch::Sender<Instant>,
    /// What was last seen of another holder.
    seen: Option<Seen>,
    /// Why the last attempt failed.
    failure: Option<String>,
}

/// Another holder.
struct Seen {
    record: Record,
    since: Instant,
    /// When its Lease may be taken.
    until: Instant,
}

/// What a holder changes with each renewal.
type Record = (Option<String>, Option<MicroTime>, Option<i32>);

/// What an attempt came to.
#[derive(Debug, PartialEq)]
enum Attempt {
    /// The Lease is ours until then.
    Held(Instant),
    /// It is somebody else's.
    Other(String),
}

impl Candidate {
    /// A candidate of this identity, and the view of its claim.
    pub fn new(client: Client, namespace: &str, identity: &str) -> (Self, Claim) {
        let (until, claim) = watch::channel(None);
        let candidate = Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            until,
            alive: watch::channel(Instant::now()).0,
            seen: None,
            failure: None,
        };
        (candidate, Claim(claim))
    }

    /// When the election last went round; it does so every few seconds while this process works.
    pub fn heartbeat(&self) -> watch::Receiver<Instant> {
        self.alive.subscribe()
    }

    /// Takes the Lease when it is free and keeps it. Returns only when it is lost, and the process must end then: every
    /// bit of state that a leader gathered goes with it, and the kubelet starts a fresh candidate.
    pub async fn run(&mut self) -> LeaseError {
        loop {
            self.alive.send_replace(Instant::now());
            let attempt = timeout(REQUEST_TIMEOUT, self.attempt()).await;
            let failure = match &attempt {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {}s", REQUEST_TIMEOUT.as_secs())),
            };
            if let Some(error) = failure.as_ref().filter(|_| failure != self.failure) {
                tracing::warn!(error, "request lease {NAME}; trying again");
            }
            self.failure = failure;
            let pause = match attempt {
                Ok(Ok(Attempt::Held(until))) => {
                    if self.until.send_replace(Some(until)).is_none() {
                        tracing::info!(identity = self.identity, "leading");
                    }
                    RENEW_EVERY
                }
                Ok(Ok(Attempt::Other(holder))) => {
                    if self.until.send_replace(None).is_some() {
                        return LeaseError::Taken(holder);
                    }
                    RETRY_EVERY
                }
                Ok(Err(_)) | Err(_) => RETRY_EVERY,
            };
            if self.until.borrow().is_some_and(|until| Instant::now() >= until) {
                self.until.send_replace(None);
                return LeaseError::Expired;
            }
            sleep(pause).await;
        }
    }

    /// Lets go of the Lease where it is held, so that another replica need not wait. Writes must have ended before.
    pub async fn vacate(&mut self) {
        if self.until.send_replace(None).is_none() {
            return;
        }
        let released = async {
            let mut lease = self.leases.get(NAME).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_ref() == Some(&self.identity) {
                spec.holder_identity = None;
                spec.renew_time = Some(MicroTime(Timestamp::now()));
                self.leases.replace(NAME, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(REQUEST_TIMEOUT / 2, released).await {
            Ok(Ok(())) => tracing::info!("released lease {NAME}"),
            Ok(Err(error)) => tracing::warn!(%error, "release lease {NAME}"),
            Err(_) => tracing::warn!("release lease {NAME}: no answer in time"),
        }
    }

    async fn attempt(&mut self) -> kube::Result<Attempt> {
        let lease = self.leases.get_opt(NAME).await?;
        let now = Instant::now();
        if let Some(holder) = self.valid_holder(lease.as_ref(), now) {
            return Ok(Attempt::Other(holder));
        }
        let wanted = self.renewed(lease.as_ref(), Timestamp::now());
        // Counted from here, before the request is sent.
        let until = Instant::now() + LEASE_DURATION;
        let params = PostParams::default();
        match lease {
            Some(_) => self.leases.replace(NAME, &params, &wanted).await?,
            None => self.leases.create(&params, &wanted).await?,
        };
        self.seen = None;
        Ok(Attempt::Held(until))
    }

    /// Who else holds the Lease, if it may not be taken yet: its record changed within the last lease duration, by this
    /// machine's clock. One who lets go leaves a Lease without holder; where the Lease is gone, somebody deleted it while
    /// its holder may still lead.
    fn valid_holder(&mut self, lease: Option<&Lease>, now: Instant) -> Option<String> {
        if let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) {
            let holder = spec
                .holder_identity
                .clone()
                .filter(|holder| !holder.is_empty() && *holder != self.identity)?;
            let record = (Some(holder), spec.renew_time.clone(), spec.lease_transitions);
            let since = self
                .seen
                .take()
                .filter(|seen| seen.record == record)
                .map_or(now, |seen| seen.since);
            let theirs = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or_default();
            let until = since + Duration::from_secs(theirs).clamp(LEASE_DURATION, MAX_DURATION);
            self.seen = Some(Seen { record, since, until });
        }
        self.seen
            .as_ref()
            .filter(|seen| now < seen.until)
            .and_then(|seen| seen.record.0.clone())
    }

    /// The Lease as it is when this candidate holds it from now on. Its resourceVersion is the one that was read.
    fn renewed(&self, lease: Option<&Lease>, now: Timestamp) -> Lease {
        let mut lease = lease.cloned().unwrap_or_default();
        lease.metadata.name = Some(NAME.to_owned());
        lease.metadata.namespace = Some(self.namespace.clone());
        let before = lease.spec.take().unwrap_or_default();
        let is_mine = before.holder_identity.as_ref() == Some(&self.identity);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: before.acquire_time.filter(|_| is_mine).or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(
                before
                    .lease_transitions
                    .map_or(0, |changes| changes.saturating_add((!is_mine).into())),
            ),
            ..LeaseSpec::default()
        });
        lease
    }
}

#[cfg(test)]
mod tests;
