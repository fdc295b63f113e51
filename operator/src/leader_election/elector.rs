//! Takes, renews and releases the Lease.

use crate::{
    leader_election::{
        cache_state::{CacheState, CacheView},
        installations::{Installations, OtherLeader, VERSION_ANNOTATION},
        leadership::LeadershipOwner,
        lease_durations::LeaseDurations,
        lease_record::{LeaseRecord, ObservedLease},
        lease_watch::watch_lease,
    },
    metrics::ElectionMetrics,
};
use gpunode_process::OnChange;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use std::time::Duration;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

/// Name of the Lease.
const NAME: &str = "gpunode-operator";
/// Time between looks at the caches, for which neither a request nor a lock is needed: a restarted leader writes right
/// after its first lists.
const CACHES_EVERY: Duration = Duration::from_millis(25);
/// Shortest time between attempts of a standby whose Lease changes.
const WAKE_EVERY: Duration = Duration::from_millis(100);
/// The longest that an attempt under way goes on after the leadership has ended. Its answer says what there is to
/// release.
const LAST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the requests that release the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason for which this process no longer leads.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another process took the Lease.
    #[error("renew lease {NAME}: {0} took it")]
    Taken(String),
    /// No renewal succeeded in time.
    #[error("renew lease {NAME}: no renewal within {0:?}; check the connection to the API server")]
    Expired(Duration),
    /// The operator of another installation leads too.
    #[error("give up lease {NAME}: {0}; two installations must not write to one cluster, so uninstall one of them")]
    OtherInstallation(OtherLeader),
    /// This process no longer sees the cluster.
    #[error("give up lease {NAME}: a list or watch failed for a minute; check the operator's permissions and the CRDs")]
    CachesCold,
}

/// Reason for which an attempt to take or renew the Lease failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
}

/// Inputs of an election.
pub struct ElectionSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of this pod.
    pub identity: String,
    pub durations: LeaseDurations,
    pub caches: CacheView,
    pub leadership: LeadershipOwner,
    pub metrics: ElectionMetrics,
}

/// Takes the Lease when it is free and renews it, as client-go's `LeaderElector` does.
pub struct LeaderElector {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    durations: LeaseDurations,
    leadership: LeadershipOwner,
    /// Time before the request of the last renewal; `None` while this process does not lead.
    renewed_at: watch::Sender<Option<Instant>>,
    /// True from before a request that could take the Lease until another holder is seen, or it is given back.
    may_hold: bool,
    /// Time at which the next attempt is due.
    due: Instant,
    heartbeat: watch::Sender<Instant>,
    metrics: ElectionMetrics,
    /// Another holder, as last observed.
    observed: Option<ObservedLease>,
    /// Time since which there is no Lease.
    missing_since: Option<Instant>,
    /// Leases in all namespaces.
    all_leases: Api<Lease>,
    installations: Installations,
    /// The leader of another installation, for which this process does not lead.
    other_leader: watch::Sender<Option<OtherLeader>>,
    caches: CacheView,
    errors: OnChange,
    list_errors: OnChange,
    reasons: OnChange,
}

/// Result of an attempt to take or renew the Lease.
#[derive(Debug, PartialEq)]
enum LeaseAttempt {
    /// This process holds the Lease by a request that was sent after this time.
    Held(Instant),
    /// Another process holds it.
    HeldBy(String),
    /// The operator of another installation leads.
    LedElsewhere(OtherLeader),
    /// It was deleted, and its holder may still lead.
    Deleted,
    /// This process does not see the cluster yet, or no longer.
    CachesCold,
}

impl LeaderElector {
    /// A standby. The client belongs to the runtime that runs the election: another one would delay its requests.
    pub fn new(client: Client, settings: ElectionSettings) -> Self {
        let ElectionSettings {
            namespace,
            identity,
            durations,
            caches,
            leadership,
            metrics,
        } = settings;
        Self {
            leases: Api::namespaced(client.clone(), &namespace),
            all_leases: Api::all(client),
            installations: Installations::default(),
            other_leader: watch::channel(None).0,
            caches,
            missing_since: None,
            list_errors: OnChange::default(),
            reasons: OnChange::default(),
            namespace,
            identity,
            durations,
            leadership,
            renewed_at: watch::channel(None).0,
            may_hold: false,
            due: Instant::now(),
            heartbeat: watch::channel(Instant::now()).0,
            metrics,
            observed: None,
            errors: OnChange::default(),
        }
    }

    /// Returns the time of the last attempt; there is one every few seconds while this process works.
    pub fn heartbeat(&self) -> watch::Receiver<Instant> {
        self.heartbeat.subscribe()
    }

    /// Follows the time of the last renewal; `None` while this process does not lead.
    pub fn renewed_at(&self) -> watch::Receiver<Option<Instant>> {
        self.renewed_at.subscribe()
    }

    /// Follows the leader of another installation, for which this process does not lead.
    pub fn other_leader(&self) -> watch::Receiver<Option<OtherLeader>> {
        self.other_leader.subscribe()
    }

    /// Takes the Lease when it is free and keeps it. Returns when the leadership is ended from outside, or with an
    /// error when the Lease is lost. The process must end then: all state that a leader gathered goes with it, and the
    /// kubelet starts a fresh process.
    pub async fn run(&mut self) -> Result<(), LeaseError> {
        let (sightings, mut sighted) = watch::channel(None);
        let mut watches = JoinSet::new();
        watches.spawn(watch_lease(
            self.leases.clone(),
            NAME,
            self.durations.retry_period(),
            sightings,
        ));
        self.due = Instant::now();
        loop {
            let start = Instant::now();
            self.heartbeat.send_replace(start);
            let leadership = self.leadership.clone();
            let last_moment = async {
                leadership.ended().await;
                sleep(LAST_ATTEMPT_TIMEOUT).await;
            };
            let attempt = tokio::select! {
                attempt = self.attempt() => attempt,
                () = last_moment => return Ok(()),
            };
            let pause = self.conclude(attempt)?;
            // A slow attempt is followed at once, and the next one is not late for that.
            self.due = Instant::now().max(start + pause);
            if self.is_leading() {
                watches.abort_all();
            }
            if !self.wait(start, &mut sighted).await {
                return Ok(());
            }
        }
    }

    /// Draws the consequences of an attempt. Returns the time from its start to the next one.
    fn conclude(&mut self, attempt: Result<LeaseAttempt, AttemptError>) -> Result<Duration, LeaseError> {
        if let Some(error) = self.errors.set(attempt.as_ref().err().map(ToString::to_string)) {
            tracing::warn!(error, "cannot get lease {NAME}; retrying");
        }
        if let Ok(attempt) = &attempt {
            self.tell(attempt);
        }
        let next = match attempt {
            Ok(LeaseAttempt::Held(renewed)) => {
                if !self.is_leading() {
                    tracing::info!(identity = self.identity, "leading");
                }
                self.hold(renewed);
                self.durations.renew_every()
            }
            Ok(LeaseAttempt::HeldBy(holder)) => {
                self.may_hold = false;
                if self.is_leading() {
                    return Err(LeaseError::Taken(holder));
                }
                self.durations.retry_period()
            }
            // The Lease is released after all writes have ended.
            Ok(LeaseAttempt::LedElsewhere(leader)) if self.is_leading() => {
                return Err(LeaseError::OtherInstallation(leader));
            }
            Ok(LeaseAttempt::CachesCold) => CACHES_EVERY,
            Ok(LeaseAttempt::LedElsewhere(_) | LeaseAttempt::Deleted) | Err(_) => self.durations.retry_period(),
        };
        if self.is_leading() && (self.caches)() == CacheState::Cold {
            return Err(LeaseError::CachesCold);
        }
        let lease = self.durations.lease();
        if self
            .renewed_at
            .borrow()
            .is_some_and(|renewed| Instant::now() >= renewed + lease)
        {
            self.may_hold = false;
            return Err(LeaseError::Expired(lease));
        }
        Ok(next)
    }

    /// Waits until the next attempt is due; a standby also until it sees that the Lease is free, and until that of
    /// another holder ends. `start` is the start of the last attempt. Returns false when the leadership was ended.
    async fn wait(&mut self, start: Instant, sighted: &mut watch::Receiver<Option<Lease>>) -> bool {
        loop {
            if !self.is_leading() {
                let observed = self.observed.as_ref().map(|observed| observed.expires);
                let missing = self.missing_since.map(|since| since + self.durations.lease());
                let ends = observed.into_iter().chain(missing).filter(|ends| *ends > start);
                self.due = ends.fold(self.due, Instant::min);
            }
            tokio::select! {
                biased;
                () = self.leadership.ended() => return false,
                () = sleep_until(self.due) => return true,
                Ok(()) = sighted.changed(), if !self.is_leading() => {
                    let lease = sighted.borrow_and_update().clone();
                    let now = Instant::now();
                    // The wait after a deletion begins with the attempt that finds it.
                    if self.valid_holder(lease.as_ref(), now).is_none() || lease.is_none() {
                        self.due = self.due.min(now.max(start + WAKE_EVERY));
                    }
                }
            }
        }
    }

    /// Leads by a request that renewed the Lease and was sent after this time.
    fn hold(&mut self, renewed: Instant) {
        self.renewed_at.send_replace(Some(renewed));
        self.leadership.extend(renewed + self.durations.renew_deadline());
    }

    /// Releases the Lease if this process holds it or may just have taken it, so that another replica need not wait.
    /// All writes must have ended. Takes at most 2 s.
    pub async fn release(&mut self) {
        self.leadership.end();
        self.renewed_at.send_replace(None);
        if !std::mem::take(&mut self.may_hold) {
            return;
        }
        let requests = async {
            match self.release_once().await {
                // A renewal was still under way.
                Err(kube::Error::Api(status)) if status.code == 409 => self.release_once().await,
                result => result,
            }
        };
        match timeout(RELEASE_TIMEOUT, requests).await {
            Ok(Ok(())) => tracing::info!("released lease {NAME}"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release lease {NAME}"),
            Err(_) => tracing::warn!("cannot release lease {NAME}: no answer in time"),
        }
    }

    async fn release_once(&self) -> kube::Result<()> {
        let Some(mut lease) = self.leases.get_opt(NAME).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        // Where nobody holds it, a request that takes it may still be under way. It fails at the new version of the
        // Lease.
        if holder.is_empty() || holder == self.identity {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.leases.replace(NAME, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    fn is_leading(&self) -> bool {
        self.renewed_at.borrow().is_some()
    }

    /// Says why this process does not lead, once for each reason.
    fn tell(&mut self, attempt: &LeaseAttempt) {
        let (reason, other_leader) = match attempt {
            LeaseAttempt::Held(_) | LeaseAttempt::HeldBy(_) => (None, None),
            LeaseAttempt::LedElsewhere(leader) => {
                (Some(format!("{leader} another installation")), Some(leader.clone()))
            }
            LeaseAttempt::Deleted => (
                Some("the lease was deleted, and its holder may still lead".to_owned()),
                None,
            ),
            LeaseAttempt::CachesCold => (Some("the caches do not follow the cluster yet".to_owned()), None),
        };
        if let Some(reason) = self.reasons.set(reason) {
            tracing::info!(reason, "not leading");
        }
        self.other_leader.send_if_modified(|known| {
            let is_new = *known != other_leader;
            *known = other_leader;
            is_new
        });
    }

    /// Limits a request of an attempt that began then. Those of a renewal have the time of one together, so that another try
    /// fits into the deadline. A standby has nothing to lose, and takes the Lease of a slow API server in four requests: each has
    /// its own time. The last two, after which it leads, fit into the deadline.
    async fn in_time<T>(
        &self,
        began: Instant,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, AttemptError> {
        let limit = self.durations.request_timeout();
        let from = if self.is_leading() { began } else { Instant::now() };
        let answer = timeout_at(from + limit, request).await;
        Ok(answer.map_err(|_| AttemptError::NoAnswer(limit))??)
    }

    async fn attempt(&mut self) -> Result<LeaseAttempt, AttemptError> {
        let began = Instant::now();
        let caches = (self.caches)();
        if !self.is_leading() && caches == CacheState::Cold {
            return Ok(LeaseAttempt::CachesCold);
        }
        self.metrics
            .attempt_began(Instant::now().saturating_duration_since(self.due));
        let lease = self.in_time(began, self.leases.get_opt(NAME)).await?;
        let now = Instant::now();
        let is_first_install = caches == CacheState::Warm { is_first_install: true };
        let may_still_be_held = self.may_still_be_held(lease.as_ref(), is_first_install, now);
        if let Some(holder) = self.valid_holder(lease.as_ref(), now) {
            return Ok(LeaseAttempt::HeldBy(holder));
        }
        if !self.is_leading() {
            if may_still_be_held {
                return Ok(LeaseAttempt::Deleted);
            }
            // Who comes second does not lead, whatever its version. An earlier attempt that took the Lease has looked, and this
            // one looks before it leads.
            let has_looked = self.may_hold && lease.as_ref().is_some_and(|lease| self.is_mine(lease));
            if !has_looked && let Some(leader) = self.other_leaders(began).await?.into_iter().next() {
                return Ok(LeaseAttempt::LedElsewhere(leader));
            }
        }
        let renewed = self.renewed(lease.as_ref(), Timestamp::now());
        // Counted from here, before the request is sent.
        let renewed_at = Instant::now();
        self.may_hold = true;
        let params = PostParams::default();
        let held = match lease {
            Some(_) => {
                self.in_time(began, self.leases.replace(NAME, &params, &renewed))
                    .await?
            }
            None => self.in_time(began, self.leases.create(&params, &renewed)).await?,
        };
        self.observed = None;
        self.missing_since = None;
        let is_leading = self.is_leading();
        // Renewed, even if the look at others fails or takes too long.
        if is_leading {
            self.hold(renewed_at);
        }
        // Looks again with the Lease in hand: of two installations that take theirs at the same time, one sees the other.
        let others = self.other_leaders(began).await?;
        // The list may lag behind this renewal.
        let own = OtherLeader::of(&held);
        let stays = |other: &OtherLeader| is_leading && own.as_ref().is_some_and(|own| own.precedes(other));
        if let Some(leader) = others.into_iter().find(|other| !stays(other)) {
            if !is_leading {
                self.in_time(began, self.hand_back(held)).await?;
                self.may_hold = false;
            }
            return Ok(LeaseAttempt::LedElsewhere(leader));
        }
        Ok(LeaseAttempt::Held(renewed_at))
    }

    /// Returns the leaders of other installations whose Lease has not ended.
    async fn other_leaders(&mut self, began: Instant) -> Result<Vec<OtherLeader>, AttemptError> {
        let named = ListParams::default().fields(&format!("metadata.name={NAME}"));
        // The API server filters the Leases of all nodes, so renewals are content with its cache.
        let named = if self.is_leading() { named.match_any() } else { named };
        let leases = match self.in_time(began, self.all_leases.list(&named)).await {
            Ok(leases) => leases.items,
            // Who leads keeps the Lease: others look at it before they lead.
            Err(error) if self.is_leading() || is_forbidden(&error) => {
                if let Some(error) = self.list_errors.changed(error) {
                    tracing::warn!(
                        error,
                        "cannot list the leases of other installations; a second one goes unnoticed"
                    );
                }
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        self.list_errors.clear();
        let now = (Instant::now(), Timestamp::now());
        Ok(self.installations.observe(&leases, &self.namespace, now.0, now.1))
    }

    /// Gives the Lease back at once. Without a time, other installations do not wait for the next holder.
    async fn hand_back(&self, mut held: Lease) -> kube::Result<()> {
        let spec = held.spec.get_or_insert_default();
        (spec.holder_identity, spec.renew_time) = (None, None);
        self.leases.replace(NAME, &PostParams::default(), &held).await.map(drop)
    }

    /// Returns true for a missing Lease whose holder may still lead.
    fn may_still_be_held(&mut self, lease: Option<&Lease>, is_first_install: bool, now: Instant) -> bool {
        if lease.is_some() || is_first_install {
            self.missing_since = None;
            return false;
        }
        let since = *self.missing_since.get_or_insert(now);
        now < since + self.durations.lease()
    }

    /// Returns the other holder while its Lease may not be taken: while its record changed within the last lease duration, by
    /// this machine's clock. A released Lease has no holder. A Lease that does not exist was deleted, and its holder may
    /// still lead.
    fn valid_holder(&mut self, lease: Option<&Lease>, now: Instant) -> Option<String> {
        if let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) {
            let is_another = |holder: &String| !holder.is_empty() && *holder != self.identity;
            spec.holder_identity.as_ref().filter(|holder| is_another(holder))?;
            let before = self.observed.take();
            let observed = ObservedLease::next(before, LeaseRecord::of(spec), spec.lease_duration_seconds, now);
            self.observed = Some(observed);
        }
        self.observed
            .as_ref()
            .filter(|observed| now < observed.expires)
            .and_then(|observed| observed.record.holder.clone())
    }

    /// True for a Lease that names this pod as its holder.
    fn is_mine(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(&self.identity)
    }

    /// Returns the Lease as this process holds it from now on, with the resourceVersion that was read.
    fn renewed(&self, lease: Option<&Lease>, now: Timestamp) -> Lease {
        let mut lease = lease.cloned().unwrap_or_default();
        lease.metadata.name = Some(NAME.to_owned());
        lease.metadata.namespace = Some(self.namespace.clone());
        let version = (VERSION_ANNOTATION.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        lease.metadata.annotations.get_or_insert_default().extend([version]);
        let is_mine = self.is_mine(&lease);
        let before = lease.spec.take().unwrap_or_default();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.durations.lease().as_secs()).ok(),
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

fn is_forbidden(error: &AttemptError) -> bool {
    matches!(error, AttemptError::Request(kube::Error::Api(status)) if status.code == 403)
}

#[cfg(test)]
mod tests;
