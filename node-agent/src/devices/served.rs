//! Detects that another plugin serves a resource that this agent has registered. When a second plugin registers the
//! resource, the kubelet allocates from that one and keeps the stream of the first open, without a word to the first.
//! Pure.

use gpunode_gpu::{AdvertisedResource, KubeletObservation};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

/// Minimum time between two observations that count as two, and from a sent list to an observation of its ids.
const APART: Duration = Duration::from_secs(1);
/// Longest time for which lists are held back without proof of another plugin: a fault must reach the kubelet. It covers two
/// observations, and a new registration with a kubelet that lacks the resource.
const MAX_DOUBT: Duration = Duration::from_secs(3);
/// Longest time for which lists are held back after the last observation, if another plugin was proven.
const MAX_PROVEN: Duration = Duration::from_secs(30);
/// Time from a registration in which every new holder is taken for one from before it.
const BASELINE: Duration = Duration::from_secs(2);

/// Evidence that the kubelet has a resource from another plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherPluginEvidence {
    /// A healthy id in the kubelet that this agent does not advertise.
    ForeignId(String),
    /// A healthy id in the kubelet that this agent advertises as unhealthy.
    UnhealthyId(String),
    /// A held id that the kubelet never asked this agent for. The ids alone prove nothing: NVIDIA's plugin has the same.
    UnknownHolder {
        /// Held id.
        id: String,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
}

impl fmt::Display for OtherPluginEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignId(id) => write!(f, "the kubelet has device {id}, which gpunode does not advertise"),
            Self::UnhealthyId(id) => {
                write!(
                    f,
                    "the kubelet allocates device {id}, which gpunode advertises as unhealthy"
                )
            }
            Self::UnknownHolder { id, pod } => {
                write!(
                    f,
                    "pod {pod} holds device {id}, and the kubelet did not ask gpunode for it"
                )
            }
        }
    }
}

/// Reason to send no list until a time: up to 1.36 a kubelet takes a list on an open stream for that of the newest plugin, and
/// then nothing shows that plugin, or its end, any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListHold {
    /// End of the hold, whatever the kubelet does.
    pub until: Instant,
    /// True if there is evidence of another plugin, false if there may be one.
    pub is_proven: bool,
}

/// An id and a pod that holds it, as hashes: a node can have thousands.
type Holding = (u64, u64);

/// A registered resource: the advertised list, and what the kubelet makes of it.
#[derive(Debug)]
pub struct ServedResource {
    registered: Instant,
    /// List that the kubelet was sent last, and when.
    sent: Option<(Arc<AdvertisedResource>, Instant)>,
    /// Ids that the kubelet asked for, and when, until a pod is observed that holds them.
    requested: BTreeMap<String, Instant>,
    /// Holders whose ids come from gpunode.
    known: BTreeSet<Holding>,
    has_baseline: bool,
    /// Start of the first of the latest observations in a row that have evidence.
    suspected_since: Option<Instant>,
    /// First and last time at which another plugin may have begun to register the resource, until an observation that would
    /// show it.
    doubted: Option<(Instant, Instant)>,
    /// Start of the first of the latest observations in a row that miss it. The kubelet had the time to take the list in.
    missing: Option<Instant>,
    /// Start of the first of the latest observations in a row that agree with the list.
    agreed_since: Option<Instant>,
    /// Start of the last observation.
    observed: Instant,
    other: Option<OtherPluginEvidence>,
}

impl ServedResource {
    /// Returns a resource that is registered at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            registered: now,
            sent: None,
            requested: BTreeMap::new(),
            known: BTreeSet::new(),
            has_baseline: false,
            suspected_since: None,
            doubted: None,
            missing: None,
            agreed_since: None,
            observed: now,
            other: None,
        }
    }

    /// Returns the evidence that another plugin serves the resource.
    pub fn other(&self) -> Option<&OtherPluginEvidence> {
        self.other.as_ref()
    }

    /// Returns true if the next observation must follow soon.
    pub fn is_doubtful(&self) -> bool {
        self.list_hold().is_some()
    }

    /// Returns the reason to send no list, if any. It may be over.
    pub fn list_hold(&self) -> Option<ListHold> {
        let is_proven = self.other.is_some();
        let doubted = self.doubted.map(|(first, _)| first);
        let since = [self.suspected_since, doubted, self.missing]
            .into_iter()
            .flatten()
            .max();
        let until = if is_proven {
            Some(self.observed + MAX_PROVEN)
        } else {
            since.map(|since| since + MAX_DOUBT)
        };
        until.map(|until| ListHold { until, is_proven })
    }

    /// Returns true if the kubelet has nothing of the resource, though it had the time to take the list in.
    pub fn is_missing(&self) -> bool {
        self.missing.is_some()
    }

    /// Takes in that another plugin may have begun to register the resource at `now`.
    pub fn doubt(&mut self, now: Instant) {
        let first = self.doubted.map_or(now, |(first, _)| first);
        self.doubted = Some((first, now));
    }

    /// Takes in a list that the kubelet is sent at `now`.
    pub fn send(&mut self, list: &Arc<AdvertisedResource>, now: Instant) {
        self.sent = Some((list.clone(), now));
    }

    /// Takes in a request of the kubelet for `ids` at `now`: it has the resource from this agent.
    pub fn request(&mut self, ids: &[String], now: Instant) {
        self.requested.extend(ids.iter().map(|id| (id.clone(), now)));
        (self.other, self.suspected_since, self.agreed_since) = (None, None, None);
    }

    /// Takes in an observation of the kubelet, which has the resource under `name`.
    pub fn observe(&mut self, name: &str, observation: &KubeletObservation) {
        let unknown_holder = self.unknown_holder(name, observation);
        let found = unknown_holder.or_else(|| self.disagreement(name, observation));
        let now = observation.started;
        self.observed = now;
        self.doubted = self.doubted.filter(|(_, last)| now < *last + APART);
        let is_listed = observation.allocatable.iter().any(|(resource, _)| resource == name);
        self.observe_listed(now, is_listed);
        let is_second = |first: &mut Option<Instant>| {
            let since = *first.get_or_insert(now);
            now.saturating_duration_since(since) >= APART
        };
        self.other = match (found, self.other.take()) {
            (None, None) => {
                self.suspected_since = None;
                None
            }
            (Some(found), None) => {
                let is_sure = is_second(&mut self.suspected_since);
                self.agreed_since = None;
                is_sure.then_some(found)
            }
            (Some(found @ OtherPluginEvidence::UnknownHolder { .. }), Some(_)) => Some(found),
            (Some(_), Some(other)) => {
                self.agreed_since = None;
                Some(other)
            }
            // The pod has ended; the ids are the same in both plugins.
            (None, Some(other @ OtherPluginEvidence::UnknownHolder { .. })) => Some(other),
            // A kubelet that was slow to take the list in has it now.
            (None, Some(other)) => {
                let agrees = is_listed && is_second(&mut self.agreed_since);
                (!agrees).then_some(other)
            }
        };
    }

    /// Takes in at `now` that the kubelet has healthy devices of the resource, or none. The holders may be unknown.
    pub fn observe_listed(&mut self, now: Instant, is_listed: bool) {
        let is_advertised = |list: &AdvertisedResource| list.shares.iter().any(|share| share.healthy);
        let is_due = |(list, at): &(Arc<AdvertisedResource>, Instant)| now >= *at + APART && is_advertised(list);
        let is_missing = !is_listed && self.sent.as_ref().is_some_and(is_due);
        self.missing = is_missing.then(|| self.missing.unwrap_or(now));
    }

    /// Returns a holder whose id the kubelet never asked for. Notes all other holders.
    fn unknown_holder(&mut self, name: &str, observation: &KubeletObservation) -> Option<OtherPluginEvidence> {
        let is_baseline = !self.has_baseline || observation.started < self.registered + BASELINE;
        self.has_baseline = true;
        let (mut unknown, mut listed, mut listed_ids) = (None, BTreeSet::new(), BTreeSet::new());
        for holder in observation.holders.iter().filter(|holder| holder.resource == name) {
            for id in &holder.ids {
                let holding = (hash(id), hash(&(&holder.namespace, &holder.pod)));
                let requested = self.requested.get(id).copied();
                listed_ids.insert(holding.0);
                if is_baseline || requested.is_some() || self.known.contains(&holding) || listed.contains(&holding) {
                    listed.insert(holding);
                } else if unknown.is_none() {
                    unknown = Some(OtherPluginEvidence::UnknownHolder {
                        id: id.clone(),
                        pod: format!("{}/{}", holder.namespace, holder.pod),
                    });
                }
                // A request during the observation may be for the next holder.
                if requested.is_some_and(|at| at <= observation.started) {
                    self.requested.remove(id);
                }
            }
        }
        let remembered = move || {
            observation
                .checkpoint
                .iter()
                .filter(move |(resource, _)| resource == name)
        };
        if is_baseline {
            // Init containers, and pods that a restarted kubelet does not list yet.
            let unlisted = remembered().filter(|(_, id)| !listed_ids.contains(&hash(id)));
            self.requested
                .extend(unlisted.map(|(_, id)| (id.clone(), observation.started)));
        }
        let remembered_ids: BTreeSet<u64> = remembered().map(|(_, id)| hash(id)).collect();
        self.known.retain(|(id, _)| remembered_ids.contains(id));
        self.known.append(&mut listed);
        unknown
    }

    /// Returns a healthy id of the kubelet that is not a healthy id of the list.
    fn disagreement(&self, name: &str, observation: &KubeletObservation) -> Option<OtherPluginEvidence> {
        let (sent, at) = self.sent.as_ref()?;
        if observation.started < *at + APART {
            return None;
        }
        let shares = sent.shares.iter().map(|share| (share.id.as_str(), share.healthy));
        let shares: HashMap<&str, bool> = shares.collect();
        let healthy = observation.allocatable.iter().filter(|(resource, _)| resource == name);
        let mut evidence = healthy.filter_map(|(_, id)| match shares.get(id.as_str()) {
            Some(true) => None,
            Some(false) => Some(OtherPluginEvidence::UnhealthyId(id.clone())),
            None => Some(OtherPluginEvidence::ForeignId(id.clone())),
        });
        evidence.next()
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
