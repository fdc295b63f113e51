//! Takes, renews and releases the Lease.

use crate::leader_election::leadership::{LEASE_DURATION, Leadership};
use gpunode_process::OnChange;
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
/// The longest wait for another holder, whatever duration its Lease says.
const MAX_DURATION: Duration = Duration::from_mins(1);
/// Time between renewals: two may fail in a row.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Time between reads of a Lease that another holds, and before the retry of a failed request. Client-go's default.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// Timeout of one request, so that none uses up the leadership.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// Reason for which this process no longer leads.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process took the Lease.
    #[error("renew lease {NAME}: {0} took it")]
    Taken(String),
    /// No renewal succeeded in time.
    #[error("renew lease {NAME}: no renewal within {}s; check the connection to the API server", LEASE_DURATION.as_secs())]
    Expired,
}

/// Takes the Lease when it is free and renews it, as client-go's `LeaderElector` does.
pub struct LeaderElector {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    /// End of the leadership.
    until: watch::Sender<Option<Instant>>,
    heartbeat: watch::Sender<Instant>,
    /// Another holder, as last observed.
    observed: Option<ObservedHolder>,
    errors: OnChange,
}

/// Another holder of the Lease.
struct ObservedHolder {
    record: LeaderRecord,
    /// Time of the first read of this record.
    since: Instant,
    /// Time from which on its Lease may be taken.
    expires: Instant,
}

/// Fields that change with each renewal: holder, time of renewal, number of transitions.
type LeaderRecord = (Option<String>, Option<MicroTime>, Option<i32>);

/// Result of an attempt to take or renew the Lease.
#[derive(Debug, PartialEq)]
enum LeaseAttempt {
    /// This process holds the Lease until then.
    Held(Instant),
    /// Another process holds it.
    HeldBy(String),
}

impl LeaderElector {
    /// Makes an elector of this identity, and the view of its leadership.
    pub fn new(client: Client, namespace: &str, identity: &str) -> (Self, Leadership) {
        let (until, leadership) = watch::channel(None);
        let elector = Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            until,
            heartbeat: watch::channel(Instant::now()).0,
            observed: None,
            errors: OnChange::default(),
        };
        (elector, Leadership::new(leadership))
    }

    /// Returns the time of the last attempt; there is one every few seconds while this process works.
    pub fn heartbeat(&self) -> watch::Receiver<Instant> {
        self.heartbeat.subscribe()
    }

    /// Takes the Lease when it is free and keeps it. Returns only when it is lost, and the process must end then: all state
    /// that a leader gathered goes with it, and the kubelet starts a fresh process.
    pub async fn run(&mut self) -> LeaseError {
        loop {
            self.heartbeat.send_replace(Instant::now());
            let attempt = timeout(REQUEST_TIMEOUT, self.attempt()).await;
            let error = match &attempt {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {}s", REQUEST_TIMEOUT.as_secs())),
            };
            if let Some(error) = self.errors.set(error) {
                tracing::warn!(error, "cannot get lease {NAME}; retrying");
            }
            let pause = match attempt {
                Ok(Ok(LeaseAttempt::Held(until))) => {
                    if self.until.send_replace(Some(until)).is_none() {
                        tracing::info!(identity = self.identity, "leading");
                    }
                    RENEW_EVERY
                }
                Ok(Ok(LeaseAttempt::HeldBy(holder))) => {
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

    /// Releases the Lease if this process holds it, so that another replica need not wait. All writes must have ended.
    pub async fn release(&mut self) {
        if self.until.send_replace(None).is_none() {
            return;
        }
        let request = async {
            let mut lease = self.leases.get(NAME).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_ref() == Some(&self.identity) {
                spec.holder_identity = None;
                spec.renew_time = Some(MicroTime(Timestamp::now()));
                self.leases.replace(NAME, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(REQUEST_TIMEOUT / 2, request).await {
            Ok(Ok(())) => tracing::info!("released lease {NAME}"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release lease {NAME}"),
            Err(_) => tracing::warn!("cannot release lease {NAME}: no answer in time"),
        }
    }

    async fn attempt(&mut self) -> kube::Result<LeaseAttempt> {
        let lease = self.leases.get_opt(NAME).await?;
        let now = Instant::now();
        if let Some(holder) = self.valid_holder(lease.as_ref(), now) {
            return Ok(LeaseAttempt::HeldBy(holder));
        }
        let renewed = self.renewed(lease.as_ref(), Timestamp::now());
        // Counted from here, before the request is sent.
        let until = Instant::now() + LEASE_DURATION;
        let params = PostParams::default();
        match lease {
            Some(_) => self.leases.replace(NAME, &params, &renewed).await?,
            None => self.leases.create(&params, &renewed).await?,
        };
        self.observed = None;
        Ok(LeaseAttempt::Held(until))
    }

    /// Returns the other holder while its Lease may not be taken: while its record changed within the last lease duration, by
    /// this machine's clock. A released Lease has no holder. A Lease that does not exist was deleted, and its holder may
    /// still lead.
    fn valid_holder(&mut self, lease: Option<&Lease>, now: Instant) -> Option<String> {
        if let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) {
            let holder = spec
                .holder_identity
                .clone()
                .filter(|holder| !holder.is_empty() && *holder != self.identity)?;
            let record = (Some(holder), spec.renew_time.clone(), spec.lease_transitions);
            let since = self
                .observed
                .take()
                .filter(|observed| observed.record == record)
                .map_or(now, |observed| observed.since);
            let theirs = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or_default();
            let expires = since + Duration::from_secs(theirs).clamp(LEASE_DURATION, MAX_DURATION);
            self.observed = Some(ObservedHolder { record, since, expires });
        }
        self.observed
            .as_ref()
            .filter(|observed| now < observed.expires)
            .and_then(|observed| observed.record.0.clone())
    }

    /// Returns the Lease as this process holds it from now on, with the resourceVersion that was read.
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
