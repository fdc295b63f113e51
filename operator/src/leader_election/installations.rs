//! Other installations of gpunode in the cluster: operators that hold a Lease in another namespace.

use crate::leader_election::lease_record::{LeaseRecord, ObservedLease};
use k8s_openapi::{
    api::coordination::v1::Lease,
    jiff::{SignedDuration, Timestamp},
};
use std::{cmp::Ordering, collections::BTreeMap, fmt};
use tokio::time::Instant;

/// Annotation of a Lease with the version of its holder. Versions before it look at no other installation.
pub const VERSION_ANNOTATION: &str = "gpunode.dev/version";
/// A Lease that was not renewed for this time, by the wall clocks, has ended however much they differ.
const SURELY_ENDED: SignedDuration = SignedDuration::from_mins(5);

/// The leader of another installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherLeader {
    pub namespace: String,
    /// Name of its pod.
    pub holder: String,
    /// None for a version that looks at no other installation.
    pub version: Option<String>,
    acquired: Option<Timestamp>,
}

impl fmt::Display for OtherLeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("unknown");
        write!(
            f,
            "{} in namespace {} (version {version}) leads",
            self.holder, self.namespace
        )
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

    fn of(lease: &Lease) -> Option<Self> {
        let (meta, spec) = (&lease.metadata, lease.spec.as_ref()?);
        let annotations = meta.annotations.as_ref();
        Some(Self {
            namespace: meta.namespace.clone()?,
            holder: spec.holder_identity.clone().filter(|holder| !holder.is_empty())?,
            version: annotations.and_then(|all| all.get(VERSION_ANNOTATION)).cloned(),
            acquired: spec.acquire_time.as_ref().map(|time| time.0),
        })
    }

    /// Returns true if this leader keeps its Lease beside a leader of the other installation, and that one gives way: the newer
    /// version, then who led first. A version that looks at nobody gives way to nobody.
    pub fn precedes(&self, other: &Self) -> bool {
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

/// Leaders of all installations.
#[derive(Debug)]
pub struct Leaders {
    /// That of this installation.
    pub own: Option<OtherLeader>,
    /// Those of others whose Lease has not ended.
    pub others: Vec<OtherLeader>,
}

impl Installations {
    /// Observes all Leases of operators. One that was deleted ends after its duration too, since its holder may still lead.
    pub fn observe(&mut self, leases: &[Lease], own_namespace: &str, now: Instant, wall: Timestamp) -> Leaders {
        let mut own = None;
        for lease in leases {
            let (Some(namespace), Some(spec)) = (&lease.metadata.namespace, &lease.spec) else {
                continue;
            };
            let leader = OtherLeader::of(lease);
            if namespace == own_namespace {
                own = leader;
                continue;
            }
            // One that was released ends after its duration: in an upgrade, the next replica there is about to take it.
            let Some(leader) = leader else { continue };
            let before = self.observed.remove(namespace).map(|(_, before)| before);
            let renewed = spec.renew_time.as_ref().map(|time| time.0);
            let has_ended = renewed.is_some_and(|renewed| wall.duration_since(renewed) > SURELY_ENDED);
            if !has_ended {
                let observed = ObservedLease::next(before, LeaseRecord::of(spec), spec.lease_duration_seconds, now);
                self.observed.insert(namespace.clone(), (leader, observed));
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
        let others = current.map(|(leader, _)| leader.clone()).collect();
        Leaders { own, others }
    }
}
