//! Other installations of gpunode in the cluster: operators that hold a Lease in another namespace.

use crate::leader_election::lease_record::{LeaseRecord, ObservedLease};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    jiff::{SignedDuration, Timestamp},
};
use std::{cmp::Ordering, collections::BTreeMap, fmt};
use tokio::time::Instant;

/// Annotation of a Lease with the version of its holder. Versions before it look at no other installation.
pub const VERSION_ANNOTATION: &str = "gpunode.dev/version";
/// A Lease that was not renewed for this time, by the wall clocks, has ended, unless it is seen to be renewed.
const SURELY_ENDED: SignedDuration = SignedDuration::from_mins(5);
/// A Lease that was released within this time, by the wall clocks, is about to be taken by the next replica.
const JUST_RELEASED: SignedDuration = SignedDuration::from_mins(1);
/// Namespace of the kubelets' Leases, which have the names of nodes.
const KUBELETS: &str = "kube-node-lease";
/// Longest text that is taken from another Lease.
const MAX_TEXT: usize = 253;

/// The leader of an installation, seen from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherLeader {
    pub namespace: String,
    /// Name of its pod; empty if it released the Lease.
    pub holder: String,
    /// None for a version that looks at no other installation.
    pub version: Option<String>,
    acquired: Option<Timestamp>,
}

impl fmt::Display for OtherLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("unknown");
        let holder = if self.is_released() {
            "an operator"
        } else {
            &self.holder
        };
        write!(f, "{holder} in namespace {} (version {version}) leads", self.namespace)
    }
}

impl OtherLeader {
    /// A leader of this version.
    #[cfg(test)]
    pub fn sample(namespace: &str, holder: &str, version: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            holder: holder.to_owned(),
            version: Some(version.to_owned()),
            acquired: None,
        }
    }

    /// Reads the leader from its Lease.
    pub fn of(lease: &Lease) -> Option<Self> {
        let (meta, spec) = (&lease.metadata, lease.spec.as_ref()?);
        let annotations = meta.annotations.as_ref();
        let bounded = |text: &String| text.chars().take(MAX_TEXT).collect::<String>();
        Some(Self {
            namespace: meta.namespace.clone()?,
            holder: spec.holder_identity.as_ref().map(bounded).unwrap_or_default(),
            version: annotations.and_then(|all| all.get(VERSION_ANNOTATION)).map(bounded),
            acquired: spec.acquire_time.as_ref().map(|time| time.0),
        })
    }

    fn is_released(&self) -> bool {
        self.holder.is_empty()
    }

    /// Returns true if this leader keeps its Lease beside a leader of the other installation, and that one gives way: the newer
    /// version, then who led first. A version that looks at nobody gives way to nobody.
    pub fn precedes(&self, other: &Self) -> bool {
        if other.is_released() {
            return true;
        }
        let (Some(mine), Some(theirs)) = (&self.version, &other.version) else {
            return self.version.is_none();
        };
        let newer_first = numbers(theirs).cmp(&numbers(mine));
        let earlier_first = || (self.acquired, &self.namespace).cmp(&(other.acquired, &other.namespace));
        newer_first.then_with(earlier_first) == Ordering::Less
    }
}

/// Returns the numbers of a version, without its suffix.
fn numbers(version: &str) -> Vec<u64> {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.').map(|number| number.parse().unwrap_or(0)).collect()
}

/// Leases of other installations, as they were last observed.
#[derive(Debug, Default)]
pub struct Installations {
    observed: BTreeMap<String, (OtherLeader, ObservedLease)>,
}

impl Installations {
    /// Observes all Leases of operators and returns the leaders of other installations whose Lease has not ended. One that was
    /// deleted ends after its duration too, since its holder may still lead.
    pub fn observe(
        &mut self,
        leases: &[Lease],
        own_namespace: &str,
        now: Instant,
        wall: Timestamp,
    ) -> Vec<OtherLeader> {
        for lease in leases {
            let (Some(leader), Some(spec)) = (OtherLeader::of(lease), &lease.spec) else {
                continue;
            };
            if leader.namespace != own_namespace && leader.namespace != KUBELETS {
                self.observe_other(leader, spec, now, wall);
            }
        }
        // A Lease that still exists must stay known, or it would count as new at the next look.
        let is_listed = |name: &String| {
            leases
                .iter()
                .any(|lease| lease.metadata.namespace.as_ref() == Some(name))
        };
        self.observed
            .retain(|namespace, (_, observed)| now < observed.expires || is_listed(namespace));
        let current = self.observed.values().filter(|(_, observed)| now < observed.expires);
        current.map(|(leader, _)| leader.clone()).collect()
    }

    fn observe_other(&mut self, leader: OtherLeader, spec: &LeaseSpec, now: Instant, wall: Timestamp) {
        let record = LeaseRecord::of(spec);
        let observed = match self.observed.remove(&leader.namespace) {
            // One that is released ends after its duration: in an upgrade, the next replica there is about to take it.
            Some(known) if leader.is_released() || known.1.record == record => known,
            before => {
                let mut observed = ObservedLease::next(None, record, spec.lease_duration_seconds, now);
                let ends_after = if leader.is_released() {
                    JUST_RELEASED
                } else {
                    SURELY_ENDED
                };
                let has_ended = match &spec.renew_time {
                    Some(renewed) => wall.duration_since(renewed.0) > ends_after,
                    None => leader.is_released(),
                };
                // One that is renewed while it is observed has not ended, whatever the wall clocks say.
                if before.is_none() && has_ended {
                    observed.expires = now;
                }
                (leader.clone(), observed)
            }
        };
        self.observed.insert(leader.namespace, observed);
    }
}
