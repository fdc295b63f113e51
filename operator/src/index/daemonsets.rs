//! DaemonSets of the operator's namespace: the live ones, the desired ones, and the write that leads from one to the other.
//!
//! | module | what it does |
//! |---|---|
//! | `replacement` | progress of a DaemonSet whose pods are replaced |

mod replacement;

use crate::index::{
    cache::{ObjectCache, Versioned, WatchUpdate, WriteKind},
    daemonsets::replacement::PodReplacement,
    outcomes::OutcomeIndex,
    work::DaemonSetWrite,
};
use gpunode_crds::PolicyMode;
use gpunode_plan::{
    AgentPodSettings, AgentUpdate, DISCOVERY_NAME, MPS_NAME, Policy, PolicySet, ReplacedNodes, daemonset_has_drifted,
    desired_discovery, desired_for_policy, desired_mps, is_same_daemonset, policy_daemonset_name, policy_of_daemonset,
    repaired_daemonset, without_policy_owner,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use std::collections::{BTreeSet, HashMap};

/// DaemonSets that exist without any policy.
pub const ALWAYS: [&str; 2] = [DISCOVERY_NAME, MPS_NAME];

/// Time from the deletion of a DaemonSet to the next one of its name. The DaemonSet controller keeps by name what it expects of
/// pods, and forgets that when it looks for the DaemonSet and finds none. With the next one there already, it may wait for
/// pods of the old one and create none for 5 minutes (`syncDaemonSet` in `pkg/controller/daemon/daemon_controller.go`).
const AFTER_DELETION: SignedDuration = SignedDuration::from_secs(3);

/// The DaemonSets of the operator's namespace.
#[derive(Debug)]
pub struct DaemonSets {
    pods: AgentPodSettings,
    /// Nodes on which discovery runs and that are down.
    discovery_down: BTreeSet<String>,
    live: ObjectCache<DaemonSet>,
    /// Times from which on deleted ones may be created again, by name.
    creatable: HashMap<String, Timestamp>,
    /// Repairs that something else in the cluster undid, by name; they are not repeated.
    futile: HashMap<String, FutileRepair>,
    /// Reason for which the API server refused the last write, by name.
    refusals: HashMap<String, String>,
    /// Progress of the replacement of pods, by name.
    replacements: HashMap<String, PodReplacement>,
}

/// A write that the API server returned changed.
#[derive(Debug)]
struct FutileRepair {
    returned: DaemonSet,
    /// The repair of what came back.
    repaired: DaemonSet,
}

impl FutileRepair {
    /// True if `next` would only repeat it.
    fn repeats(&self, live: &DaemonSet, next: &DaemonSet) -> bool {
        is_same_daemonset(&self.returned, live) && is_same_daemonset(&self.repaired, next)
    }
}

impl DaemonSets {
    /// An empty index of DaemonSets; `pods` says how agents run.
    pub fn new(pods: AgentPodSettings) -> Self {
        Self {
            pods,
            discovery_down: BTreeSet::new(),
            live: ObjectCache::default(),
            creatable: HashMap::new(),
            futile: HashMap::new(),
            refusals: HashMap::new(),
            replacements: HashMap::new(),
        }
    }

    /// Number of live DaemonSets.
    pub fn size(&self) -> usize {
        self.live.size()
    }

    /// True once the first list is in.
    pub fn has_synced(&self) -> bool {
        self.live.has_synced()
    }

    /// Applies news from the watch and returns the names of the DaemonSets that changed.
    pub fn apply_watch(&mut self, update: WatchUpdate<DaemonSet>, now: Timestamp) -> Vec<String> {
        let deltas = self.live.apply_watch(update);
        self.creatable.retain(|_, from| *from > now);
        for deleted in deltas.iter().filter(|delta| delta.after.is_none()) {
            self.futile.remove(&deleted.name);
            self.refusals.remove(&deleted.name);
            let from = now.saturating_add(AFTER_DELETION).unwrap_or(now);
            self.creatable.insert(deleted.name.clone(), from);
        }
        deltas.into_iter().map(|delta| delta.name).collect()
    }

    /// Returns the time for which the creation of a DaemonSet waits after the deletion of another one of its name.
    pub fn waits_until(&self, name: &str, now: Timestamp) -> Option<Timestamp> {
        // A clock that was set back makes nobody wait for longer.
        let is_near = |from: &Timestamp| from.duration_since(now) <= AFTER_DELETION;
        self.creatable
            .get(name)
            .copied()
            .filter(|from| *from > now && is_near(from))
    }

    /// Applies a DaemonSet that a write of `sent` returned.
    pub fn apply_write(&mut self, returned: DaemonSet, kind: WriteKind, sent: &DaemonSet) {
        let name = returned.name().to_owned();
        if daemonset_has_drifted(&returned, sent) {
            tracing::warn!(
                name,
                "a DaemonSet came back changed from a write; something in the cluster rewrites it"
            );
            let repair = FutileRepair {
                repaired: repaired_daemonset(&returned, sent),
                returned: returned.clone(),
            };
            self.futile.insert(name, repair);
        } else {
            self.futile.remove(&name);
        }
        self.live.apply_write(returned, kind);
    }

    /// Returns the desired DaemonSet of a name; `None` if no policy wants it.
    pub fn desired(&self, name: &str, set: &PolicySet, outcomes: &OutcomeIndex) -> Option<DaemonSet> {
        match name {
            DISCOVERY_NAME => return Some(desired_discovery(&self.pods, self.replaced_discovery())),
            MPS_NAME => return Some(desired_mps(&self.pods)),
            _ => {}
        }
        let policy = set
            .of_daemonset(name)
            .filter(|policy| policy.mode == PolicyMode::Enforce)?;
        // Without a replacement under way the surge is the policy's own, also for a rollout that somebody else starts.
        let rollout = outcomes
            .tally(&policy.name)
            .map(|tally| &tally.rollout)
            .filter(|_| self.is_behind(name));
        let surge = rollout.map_or_else(|| policy.pace.max_unavailable(), |rollout| rollout.surge(&policy.pace));
        desired_for_policy(&self.pods, policy, surge)
    }

    /// Returns the write that turns the live DaemonSet of a name into the desired one. Those of policies that are paused, that cannot
    /// be read or whose image is refused stay, but for the owner that an earlier version wrote.
    pub fn planned_write(&self, name: &str, set: &PolicySet, outcomes: &OutcomeIndex) -> Option<DaemonSetWrite> {
        let desired = self.desired(name, set, outcomes);
        let Some(live) = self.live.get(name) else {
            return desired.map(|desired| DaemonSetWrite::Create(Box::new(desired)));
        };
        if live.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let policy = set.of_daemonset(name);
        let is_paused = policy.is_some_and(|policy| policy.mode == PolicyMode::Paused);
        let plugin = policy.and_then(|policy| policy.device_plugin.as_ref());
        let keeps_image = desired.is_some() && plugin.is_some_and(|plugin| plugin.is_image_refused);
        let next = match desired {
            _ if is_paused || keeps_image || set.keeps_daemonset(name) => without_policy_owner(live),
            Some(desired) => repaired_daemonset(live, &desired),
            None => {
                return policy_of_daemonset(live).map(|_| DaemonSetWrite::Delete {
                    uid: live.metadata.uid.clone().unwrap_or_default(),
                    version: live.version().to_owned(),
                });
            }
        };
        let is_futile = self.futile.get(name).is_some_and(|futile| futile.repeats(live, &next));
        (!is_futile && !is_same_daemonset(live, &next)).then(|| DaemonSetWrite::Replace(Box::new(next)))
    }

    /// Records whether the API server refused a write. Returns true if that changed.
    pub fn set_refusal(&mut self, name: &str, refusal: Option<&str>) -> bool {
        let before = match refusal {
            Some(refusal) => self.refusals.insert(name.to_owned(), refusal.to_owned()),
            None => self.refusals.remove(name),
        };
        before.as_deref() != refusal
    }

    /// Observes the progress of a replacement of pods; the rollout does not wait for `outside` nodes.
    pub fn observe_replacement(&mut self, name: &str, outside: i32, now: Timestamp) {
        let Some(live) = self.live.get(name) else {
            self.replacements.remove(name);
            return;
        };
        if let Some(known) = self.replacements.get_mut(name).filter(|known| known.is_of(live)) {
            known.observe(live, outside, now);
        } else {
            let replacement = PodReplacement::start(live, outside, now);
            self.replacements.insert(name.to_owned(), replacement);
        }
    }

    /// Records whether discovery runs on a node that is down. Returns true if its DaemonSet depends on that now.
    pub fn set_discovery_down(&mut self, node: &str, is_down: bool) -> bool {
        let has_changed = if is_down {
            self.discovery_down.insert(node.to_owned())
        } else {
            self.discovery_down.remove(node)
        };
        has_changed && self.is_behind(DISCOVERY_NAME)
    }

    /// Nodes on which discovery is being replaced; none at rest.
    fn replaced_discovery(&self) -> Option<ReplacedNodes> {
        let live = self
            .live
            .get(DISCOVERY_NAME)
            .filter(|_| self.is_behind(DISCOVERY_NAME))?;
        Some(ReplacedNodes {
            all: live.status.as_ref().map_or(0, |status| status.desired_number_scheduled),
            down: i32::try_from(self.discovery_down.len()).unwrap_or(i32::MAX),
        })
    }

    /// Nodes whose discovery pod is of an earlier template.
    pub fn outdated_discovery(&self) -> i32 {
        self.behind(DISCOVERY_NAME)
    }

    /// True while pods of a DaemonSet are being replaced.
    pub fn is_behind(&self, name: &str) -> bool {
        self.behind(name) > 0
    }

    fn behind(&self, name: &str) -> i32 {
        self.replacements.get(name).map_or(0, PodReplacement::behind)
    }

    /// Returns the deadline for the next replaced agent of a policy; `None` if the rollout waits for no node.
    pub fn deadline(&self, policy: &Policy) -> Option<Timestamp> {
        let since = self
            .replacements
            .get(&policy_daemonset_name(&policy.name))?
            .waits_since()?;
        since.checked_add(policy.pace.progress_deadline()).ok()
    }

    /// Returns the state of a policy's agents, for its status. `next` is the planned write of their DaemonSet, if any.
    pub fn agents(&self, policy: &Policy, next: Option<&DaemonSetWrite>, outside: i32, now: Timestamp) -> AgentUpdate {
        let name = policy_daemonset_name(&policy.name);
        let refusal = self.refusals.get(&name).cloned();
        let Some(live) = self.live.get(&name) else {
            return AgentUpdate {
                refusal,
                ..AgentUpdate::default()
            };
        };
        let template = |daemonset: &DaemonSet| daemonset.spec.as_ref().map(|spec| spec.template.clone());
        let is_of_template = match next {
            None => true,
            Some(DaemonSetWrite::Replace(next)) => template(next) == template(live),
            Some(DaemonSetWrite::Create(_) | DaemonSetWrite::Delete { .. }) => false,
        };
        let all = live.status.as_ref().map_or(0, |status| status.desired_number_scheduled);
        let behind = if is_of_template { self.behind(&name) } else { all };
        let is_late = is_of_template && self.deadline(policy).is_some_and(|deadline| deadline <= now);
        AgentUpdate {
            refusal,
            behind,
            waited_for: (behind - outside).max(0),
            all,
            is_late,
        }
    }

    /// Returns the policies of all live DaemonSets that are not being deleted.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        let remaining = self
            .live
            .iter()
            .filter(|live| live.metadata.deletion_timestamp.is_none());
        remaining.filter_map(|live| policy_of_daemonset(live))
    }

    /// Returns the live DaemonSet of a name.
    #[cfg(test)]
    pub fn live(&self, name: &str) -> Option<&std::sync::Arc<DaemonSet>> {
        self.live.get(name)
    }

    /// Returns the names of all live DaemonSets.
    pub fn names(&self) -> Vec<String> {
        self.live.names()
    }
}
