//! Extended resources that gpunode served on a node and nobody wants any more: their keys leave the node's status. The kubelet
//! keeps a key for ever, with 0 devices, and drops its capacity 5 minutes after the plugin left (`endpointStopGracePeriod`); a
//! key that is removed earlier comes back.
//!
//! | in the record | in the node's status | result |
//! |---|---|---|
//! | any, and wanted now | any | recorded as in use |
//! | in use | any | the moment is recorded |
//! | unused | allocatable | after the grace period somebody else serves it: forgotten |
//! | unused | absent | forgotten, once the kubelet had time to show it |
//! | unused | 0 | after the grace period removed, and the moment recorded |
//! | removal tried | absent, a minute after the last try | forgotten |
//! | removal tried | 0, a minute after the last try | removed again, 5 times in all |

use crate::{
    input::{facts::NodeFacts, resource_presence::ResourcePresence},
    patch_builder::PatchBuilder,
    record::resource_use::{ResourceUse, ResourceUses},
    time::earliest,
};
use gpunode_crds::OWNED_ANNOTATION;
use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use std::collections::{BTreeMap, BTreeSet};

/// The kubelet's `endpointStopGracePeriod` and three of its status updates: the plugin may leave a little later.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(5 * 60 + 30);
/// Time in which the kubelet shows a resource that registered just before nobody wanted it any more.
const REGISTRATION: SignedDuration = SignedDuration::from_secs(30);
/// Time between two tries, in which a kubelet that disagrees puts a key back.
const RETRY: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of removals of one key.
const MAX_TRIES: usize = 5;
/// Maximum wait after the grace period for a kubelet that still counts devices: later ones are somebody else's.
const MAX_DRAINING: SignedDuration = SignedDuration::from_mins(5);

/// Decision about the recorded resources of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleResources {
    /// Record before the removal of keys.
    pub record: ResourceUses,
    /// Keys to remove from the node's status.
    pub remove: BTreeSet<String>,
    /// Moment to decide again.
    pub recheck: Option<Timestamp>,
}

impl StaleResources {
    /// Returns the record after the removal of keys. It counts the try, whatever the kubelet makes of it.
    pub fn record_after(&self, now: Timestamp) -> ResourceUses {
        let mut record = self.record.clone();
        for name in &self.remove {
            let mut moments = match record.remove(name) {
                Some(ResourceUse::RemovalTried(moments)) => moments,
                _ => Vec::new(),
            };
            moments.push(now.as_second());
            record.insert(name.clone(), ResourceUse::RemovalTried(moments));
        }
        record
    }
}

/// Decides about every resource in the record or in use. `presence` is the state of the recorded ones in the node's status.
pub fn find_stale_resources(
    record: &ResourceUses,
    in_use: &BTreeSet<String>,
    presence: &BTreeMap<String, ResourcePresence>,
    now: Timestamp,
) -> StaleResources {
    let mut stale = StaleResources::default();
    stale
        .record
        .extend(in_use.iter().map(|name| (name.clone(), ResourceUse::InUse)));
    for (name, before) in record.iter().filter(|(name, _)| !in_use.contains(*name)) {
        // Clamps moments that were forged or come from a wrong clock.
        let sane = |moment: &i64| (*moment).max(0).min(now.as_second());
        let before = match before {
            ResourceUse::InUse => ResourceUse::UnusedSince(now.as_second()),
            ResourceUse::UnusedSince(since) => ResourceUse::UnusedSince(sane(since)),
            ResourceUse::RemovalTried(moments) => ResourceUse::RemovalTried(moments.iter().map(sane).collect()),
        };
        let recheck = match next_step(&before, presence.get(name).copied(), now) {
            StaleResourceStep::Forget => continue,
            StaleResourceStep::Wait(until) => until,
            StaleResourceStep::Remove => {
                stale.remove.insert(name.clone());
                now.checked_add(RETRY).ok()
            }
        };
        stale.record.insert(name.clone(), before);
        stale.recheck = earliest([stale.recheck, recheck]);
    }
    stale
}

/// Next step for an unused resource.
enum StaleResourceStep {
    Forget,
    Wait(Option<Timestamp>),
    Remove,
}

fn next_step(before: &ResourceUse, presence: Option<ResourcePresence>, now: Timestamp) -> StaleResourceStep {
    let (moment, wait, tries) = match before {
        ResourceUse::InUse => return StaleResourceStep::Wait(None),
        ResourceUse::UnusedSince(since) if presence.is_none() => (since, REGISTRATION, 0),
        ResourceUse::UnusedSince(since) => (since, GRACE_PERIOD, 0),
        ResourceUse::RemovalTried(moments) => match moments.last() {
            Some(last) => (last, RETRY, moments.len()),
            None => return StaleResourceStep::Forget,
        },
    };
    let Ok(moment) = Timestamp::from_second(*moment) else {
        return StaleResourceStep::Forget;
    };
    let age = now.duration_since(moment);
    match presence {
        _ if age < wait => StaleResourceStep::Wait(moment.checked_add(wait).ok()),
        Some(ResourcePresence::KeysOnly) if tries < MAX_TRIES => StaleResourceStep::Remove,
        Some(ResourcePresence::Draining) if tries < MAX_TRIES && age < GRACE_PERIOD + MAX_DRAINING => {
            StaleResourceStep::Wait(now.checked_add(RETRY).ok())
        }
        _ => StaleResourceStep::Forget,
    }
}

/// Returns the patch of the status that removes keys and records it, refused unless the node has the version that was read.
pub fn stale_resources_patch(node: &NodeFacts, remove: &BTreeSet<String>, record: Option<&str>) -> Option<Patch> {
    let mut patch = PatchBuilder::guarded_by(&node.resource_version);
    for name in remove {
        for list in ["capacity", "allocatable"] {
            patch.remove(&["status", list, name]);
        }
    }
    // A status patch may carry metadata, so keys and record change together.
    if let Some(record) = record.filter(|_| !remove.is_empty()) {
        patch.add(&["metadata", "annotations", OWNED_ANNOTATION], record);
    }
    patch.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn served(of: ResourceUse) -> ResourceUses {
        ResourceUses::from([(GPU.to_owned(), of)])
    }

    fn look(wanted: &[&str], of: ResourceUse, seen: Option<ResourcePresence>, now: i64) -> StaleResources {
        let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
        let seen = seen.into_iter().map(|seen| (GPU.to_owned(), seen)).collect();
        find_stale_resources(&served(of), &wanted, &seen, at(now))
    }

    fn unwanted(of: ResourceUse, seen: Option<ResourcePresence>, now: i64) -> StaleResources {
        look(&[], of, seen, now)
    }

    #[test]
    fn wanted_resource_is_recorded_before_it_is_there_and_as_long_as_it_is_wanted() {
        for of in [
            ResourceUse::InUse,
            ResourceUse::UnusedSince(7),
            ResourceUse::RemovalTried(vec![7]),
        ] {
            let expected = StaleResources {
                record: served(ResourceUse::InUse),
                ..StaleResources::default()
            };
            assert_eq!(look(&[GPU], of, Some(ResourcePresence::KeysOnly), 9999), expected);
        }
        let wanted = BTreeSet::from([GPU.to_owned()]);
        assert_eq!(
            find_stale_resources(&ResourceUses::new(), &wanted, &BTreeMap::new(), at(0)).record,
            served(ResourceUse::InUse)
        );
    }

    #[test]
    fn key_is_removed_when_the_kubelet_lets_it() {
        let first = unwanted(ResourceUse::InUse, Some(ResourcePresence::Allocatable), 1000);
        assert_eq!(
            (first.record, first.recheck),
            (served(ResourceUse::UnusedSince(1000)), Some(at(1330)))
        );
        assert!(
            unwanted(ResourceUse::UnusedSince(1000), Some(ResourcePresence::KeysOnly), 1329)
                .remove
                .is_empty()
        );
        let due = unwanted(ResourceUse::UnusedSince(1000), Some(ResourcePresence::KeysOnly), 1330);
        assert_eq!((due.remove.len(), due.recheck), (1, Some(at(1390))));
        assert_eq!(
            due.record_after(at(1330)),
            served(ResourceUse::RemovalTried(vec![1330]))
        );
        assert_eq!(
            unwanted(ResourceUse::UnusedSince(1000), Some(ResourcePresence::KeysOnly), 99_999)
                .remove
                .len(),
            1,
            "nobody was there to look"
        );
    }

    #[test]
    fn kubelet_that_puts_a_key_back_is_met_once_a_minute_and_five_times_in_all() {
        let (mut record, mut removed) = (served(ResourceUse::UnusedSince(1000)), Vec::new());
        // Whatever happens meanwhile, and as often as it happens.
        for now in 1000..3000 {
            let seen = BTreeMap::from([(GPU.to_owned(), ResourcePresence::KeysOnly)]);
            let stale = find_stale_resources(&record, &BTreeSet::new(), &seen, at(now));
            removed.extend((!stale.remove.is_empty()).then_some(now));
            record = stale.record_after(at(now));
        }
        assert_eq!(
            (removed, record),
            (vec![1330, 1390, 1450, 1510, 1570], ResourceUses::new())
        );
    }

    #[test]
    fn key_that_stays_away_for_a_minute_after_a_try_is_forgotten() {
        let waiting = unwanted(ResourceUse::RemovalTried(vec![1330]), None, 1389);
        assert_eq!(
            (waiting.record, waiting.recheck),
            (served(ResourceUse::RemovalTried(vec![1330])), Some(at(1390)))
        );
        assert_eq!(
            unwanted(ResourceUse::RemovalTried(vec![1330]), None, 1390),
            StaleResources::default()
        );
    }

    #[test]
    fn key_with_capacity_left_waits_for_the_kubelet_but_not_for_ever() {
        for of in [ResourceUse::UnusedSince(1000), ResourceUse::RemovalTried(vec![1000])] {
            let waiting = unwanted(of.clone(), Some(ResourcePresence::Draining), 1330);
            assert!(waiting.remove.is_empty() && waiting.recheck == Some(at(1390)));
            assert_eq!(
                unwanted(of, Some(ResourcePresence::Draining), 1630),
                StaleResources::default()
            );
        }
    }

    #[test]
    fn key_that_is_gone_or_served_by_somebody_else_is_forgotten() {
        let (since, tried) = (ResourceUse::UnusedSince(1000), ResourceUse::RemovalTried(vec![1000]));
        assert_eq!(unwanted(since.clone(), None, 1030), StaleResources::default());
        assert_eq!(
            unwanted(since.clone(), None, 1029).record,
            served(since.clone()),
            "it may yet be shown"
        );
        assert_eq!(
            unwanted(since.clone(), Some(ResourcePresence::Allocatable), 1330),
            StaleResources::default()
        );
        assert_eq!(
            unwanted(since.clone(), Some(ResourcePresence::Allocatable), 1329).record,
            served(since),
            "it may yet be our own"
        );
        assert_eq!(
            unwanted(tried, Some(ResourcePresence::Allocatable), 1060),
            StaleResources::default()
        );
    }

    #[test]
    fn forged_moments_cost_a_wait_at_most() {
        let forged = unwanted(
            ResourceUse::UnusedSince(i64::MAX),
            Some(ResourcePresence::KeysOnly),
            1000,
        );
        assert_eq!(
            (forged.record, forged.recheck),
            (served(ResourceUse::UnusedSince(1000)), Some(at(1330)))
        );
        let forged = unwanted(
            ResourceUse::RemovalTried(vec![i64::MIN, i64::MAX]),
            Some(ResourcePresence::KeysOnly),
            1000,
        );
        assert_eq!(
            (forged.record, forged.recheck),
            (served(ResourceUse::RemovalTried(vec![0, 1000])), Some(at(1060)))
        );
        assert_eq!(
            unwanted(
                ResourceUse::UnusedSince(i64::MIN),
                Some(ResourcePresence::KeysOnly),
                1000
            )
            .remove
            .len(),
            1
        );
        assert_eq!(
            unwanted(
                ResourceUse::RemovalTried(Vec::new()),
                Some(ResourcePresence::KeysOnly),
                1000
            ),
            StaleResources::default()
        );
    }

    #[test]
    fn patch_is_refused_where_the_node_changed_and_counts_the_try() {
        let node = NodeFacts {
            resource_version: "7".to_owned(),
            ..NodeFacts::default()
        };
        let patch = stale_resources_patch(&node, &BTreeSet::from([GPU.to_owned()]), Some("{}")).unwrap();
        assert_eq!(
            serde_json::to_string(&patch).unwrap(),
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"remove","path":"/status/capacity/nvidia.com~1gpu"},{"op":"remove","path":"/status/allocatable/nvidia.com~1gpu"},{"op":"add","path":"/metadata/annotations/gpunode.dev~1owned","value":"{}"}]"#
        );
        assert_eq!(stale_resources_patch(&node, &BTreeSet::new(), Some("{}")), None);
    }
}
