//! The DaemonSets as they are and as they are to be.

use crate::index::{
    cache::{Cache, Cached, Change, Write},
    outcomes::Outcomes,
    work::DaemonSetWork,
};
use gpunode_crds::{GpuNodePolicy, Mode};
use gpunode_plan::{
    AgentPodSettings, AgentUpdate, DISCOVERY_NAME, MPS_NAME, Policy, PolicySet, daemonset_has_drifted,
    desired_discovery, desired_for_policy, desired_mps, is_daemonset_observed, is_same_daemonset, outdated_agents,
    policy_daemonset_name, policy_of_daemonset, repaired_daemonset,
};
use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::PodTemplateSpec};
use std::collections::HashMap;

/// Those that no policy wants and that are always there.
pub const ALWAYS: [&str; 2] = [DISCOVERY_NAME, MPS_NAME];

/// The DaemonSets of the operator's namespace.
#[derive(Debug)]
pub struct DaemonSets {
    pods: AgentPodSettings,
    live: Cache<DaemonSet>,
    /// What a repair could not put right, by name: something else in the cluster insists. It is not tried for ever.
    futile: HashMap<String, Futile>,
    /// Why the API server did not take the last write, by name.
    refusals: HashMap<String, String>,
    /// How far the replacement of pods has come, by name.
    progress: HashMap<String, Progress>,
}

/// How far the replacement of pods by those of a template has come.
#[derive(Debug)]
struct Progress {
    template: Option<PodTemplateSpec>,
    /// On how many nodes the pod is yet to be replaced, by the last status that is of the template.
    behind: i32,
    /// The fewest of them that there were.
    fewest: i32,
    /// How many of them are waited for.
    waited_for: i32,
    since: Timestamp,
}

/// A write that came back changed.
#[derive(Debug)]
struct Futile {
    returned: DaemonSet,
    /// What would put that right.
    repaired: DaemonSet,
}

impl Futile {
    /// Whether it would be the same write again.
    fn is_again(&self, live: &DaemonSet, next: &DaemonSet) -> bool {
        is_same_daemonset(&self.returned, live) && is_same_daemonset(&self.repaired, next)
    }
}

impl DaemonSets {
    /// None known yet.
    pub fn new(pods: AgentPodSettings) -> Self {
        Self {
            pods,
            live: Cache::default(),
            futile: HashMap::new(),
            refusals: HashMap::new(),
            progress: HashMap::new(),
        }
    }

    /// Whether the first list has come in.
    pub fn is_warm(&self) -> bool {
        self.live.is_warm()
    }

    /// Takes in what a watch says and returns the names of what is different.
    pub fn take(&mut self, change: Change<DaemonSet>) -> Vec<String> {
        let changed = self.live.take(change);
        for gone in changed.iter().filter(|changed| changed.after.is_none()) {
            self.futile.remove(&gone.name);
            self.refusals.remove(&gone.name);
        }
        changed.into_iter().map(|changed| changed.name).collect()
    }

    /// Takes in what a write returned.
    pub fn update(&mut self, daemonset: DaemonSet, write: Write, written: &DaemonSet) {
        let name = daemonset.name().to_owned();
        if daemonset_has_drifted(&daemonset, written) {
            tracing::warn!(
                name,
                "a DaemonSet came back changed from a write; something in the cluster rewrites it"
            );
            let repaired = repaired_daemonset(&daemonset, written);
            self.futile.insert(
                name,
                Futile {
                    returned: daemonset.clone(),
                    repaired,
                },
            );
        } else {
            self.futile.remove(&name);
        }
        self.live.update(daemonset, write);
    }

    /// What the DaemonSet of a name is to be; none where nobody wants it.
    pub fn desired(
        &self,
        name: &str,
        set: &PolicySet,
        objects: &Cache<GpuNodePolicy>,
        outcomes: &Outcomes,
    ) -> Option<DaemonSet> {
        match name {
            DISCOVERY_NAME => return Some(desired_discovery(&self.pods)),
            MPS_NAME => return Some(desired_mps(&self.pods)),
            _ => {}
        }
        let policy = set.of_daemonset(name).filter(|policy| policy.mode == Mode::Enforce)?;
        // At rest the plain pace: a rollout that somebody else begins has it too.
        let rollout = outcomes
            .tally(&policy.name)
            .map(|tally| &tally.rollout)
            .filter(|_| self.is_behind(name));
        let surge = rollout.map_or_else(|| policy.pace.max_unavailable(), |rollout| rollout.surge(&policy.pace));
        desired_for_policy(&self.pods, policy, objects.get(&policy.name)?, surge)
    }

    /// What is to be written so that the DaemonSet of a name is as it is to be. That of a paused policy stays as it is.
    pub fn work(
        &self,
        name: &str,
        set: &PolicySet,
        objects: &Cache<GpuNodePolicy>,
        outcomes: &Outcomes,
    ) -> Option<DaemonSetWork> {
        if set.of_daemonset(name).is_some_and(|policy| policy.mode == Mode::Paused) {
            return None;
        }
        let desired = self.desired(name, set, objects, outcomes);
        let Some(live) = self.live.get(name) else {
            return desired.map(|desired| DaemonSetWork::Create(Box::new(desired)));
        };
        if live.metadata.deletion_timestamp.is_some() {
            return None;
        }
        match desired {
            Some(desired) => {
                let next = repaired_daemonset(live, &desired);
                let is_futile = self.futile.get(name).is_some_and(|futile| futile.is_again(live, &next));
                (!is_futile && !is_same_daemonset(live, &next)).then(|| DaemonSetWork::Replace(Box::new(next)))
            }
            None => policy_of_daemonset(live).map(|_| DaemonSetWork::Delete {
                uid: live.metadata.uid.clone().unwrap_or_default(),
                version: live.version().to_owned(),
            }),
        }
    }

    /// Remembers whether the API server refused a write; whether that is news.
    pub fn written(&mut self, name: &str, refusal: Option<&str>) -> bool {
        let before = match refusal {
            Some(refusal) => self.refusals.insert(name.to_owned(), refusal.to_owned()),
            None => self.refusals.remove(name),
        };
        before.as_deref() != refusal
    }

    /// Takes in how far the replacement of the pods has come, where nobody waits for so many nodes. Neither nodes that join or go
    /// down nor writes of anything but the template are progress; where none was waited for, it begins anew.
    pub fn look_at_progress(&mut self, name: &str, outside: i32, now: Timestamp) {
        let Some(live) = self.live.get(name) else {
            return drop(self.progress.remove(name));
        };
        let template = live.spec.as_ref().map(|spec| &spec.template);
        let behind = outdated_agents(live);
        let known = self
            .progress
            .get_mut(name)
            .filter(|known| known.template.as_ref() == template);
        let Some(known) = known else {
            let waited_for = (behind - outside).max(0);
            let progress = Progress {
                template: template.cloned(),
                behind,
                fewest: behind,
                waited_for,
                since: now,
            };
            return drop(self.progress.insert(name.to_owned(), progress));
        };
        if is_daemonset_observed(live) {
            known.behind = behind;
        }
        let waited_for = (known.behind - outside).max(0);
        if known.behind < known.fewest || (known.waited_for == 0 && waited_for > 0) {
            (known.fewest, known.since) = (known.behind, now);
        }
        known.waited_for = waited_for;
    }

    /// Whether pods of a DaemonSet are being replaced.
    pub fn is_behind(&self, name: &str) -> bool {
        self.progress.get(name).is_some_and(|progress| progress.behind > 0)
    }

    /// From when on the replacement of a policy's agents is late, unless it goes on; nothing where none is waited for.
    pub fn late_at(&self, policy: &Policy) -> Option<Timestamp> {
        let progress = self
            .progress
            .get(&policy_daemonset_name(&policy.name))
            .filter(|progress| progress.waited_for > 0)?;
        progress.since.checked_add(policy.pace.progress_deadline()).ok()
    }

    /// What is known of the DaemonSet of a policy. `next` is what is to be written, if anything.
    pub fn agents(&self, policy: &Policy, next: Option<&DaemonSetWork>, outside: i32, now: Timestamp) -> AgentUpdate {
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
            Some(DaemonSetWork::Replace(next)) => template(next) == template(live),
            Some(DaemonSetWork::Create(_) | DaemonSetWork::Delete { .. }) => false,
        };
        let all = live.status.as_ref().map_or(0, |status| status.desired_number_scheduled);
        let known = self.progress.get(&name).map_or(0, |progress| progress.behind);
        let behind = if is_of_template { known } else { all };
        let is_late = is_of_template && self.late_at(policy).is_some_and(|late| late <= now);
        AgentUpdate {
            refusal,
            behind,
            waited_for: (behind - outside).max(0),
            all,
            is_late,
        }
    }

    /// The DaemonSet of a name as it is.
    #[cfg(test)]
    pub fn live(&self, name: &str) -> Option<&std::sync::Arc<DaemonSet>> {
        self.live.get(name)
    }

    /// The names of all that exist.
    pub fn names(&self) -> Vec<String> {
        self.live.names()
    }
}
