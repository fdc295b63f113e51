//! Extended resources that gpunode served on a node and that nobody wants any more: when their keys are to leave the node's
//! status. The kubelet keeps a key for ever, with 0 of it, and takes its capacity away 5 minutes after the plugin left
//! (`endpointStopGracePeriod`); a key that is removed before comes back.
//!
//! | in the record | in node status | then |
//! |---|---|---|
//! | any, and wanted | any | recorded as wanted |
//! | wanted | any | the moment is recorded |
//! | unwanted | some can be given out | after the grace somebody else serves it: forgotten |
//! | unwanted | gone | forgotten, once the kubelet has had time to show it |
//! | unwanted | 0 | after the grace removed, and the moment recorded |
//! | tried | gone, a minute after the last try | forgotten |
//! | tried | 0, a minute after the last try | removed again, 5 times in all |

use crate::{input::facts::NodeFacts, patch_builder::PatchBuilder};
use gpunode_crds::OWNED_ANNOTATION;
use jiff::{SignedDuration, Timestamp};
use json_patch::Patch;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The kubelet's `endpointStopGracePeriod`, and three of its status updates: the plugin may go a little after the wish.
const GRACE: SignedDuration = SignedDuration::from_secs(5 * 60 + 30);
/// Time in which the kubelet shows a resource that was registered just before it was no longer wanted.
const UNSEEN: SignedDuration = SignedDuration::from_secs(30);
/// Time between two tries, in which a kubelet that has its own idea puts a key back.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);
const TRIES: usize = 5;
/// Longest wait after the grace for a kubelet that still counts devices: nobody's but somebody else's are left by then.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);

/// What is known of a resource that was ever served on a node; moments are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResourceUse {
    /// Somebody wants it; written as `null`.
    InUse,
    /// Since when nobody wants it.
    UnusedSince(i64),
    /// When its key was removed from the node's status, the last moment last.
    RemovalTried(Vec<i64>),
}

/// Resources by name.
pub type ResourceUses = BTreeMap<String, ResourceUse>;

/// What a node's status says of a resource that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourcePresence {
    /// Some of it can be given out.
    Allocatable,
    /// Nothing can be given out, and the kubelet still counts devices that it had, or one of the two keys is missing.
    Draining,
    /// Capacity and allocatable are 0: only the keys are left.
    KeysOnly,
}

impl ResourcePresence {
    /// Looks; `None` where the status does not name the resource.
    pub fn of(node: &Node, name: &str) -> Option<Self> {
        let status = node.status.as_ref()?;
        // The API server writes every zero so.
        let is_zero = |list: &Option<BTreeMap<String, Quantity>>| list.as_ref()?.get(name).map(|count| count.0 == "0");
        match (is_zero(&status.capacity), is_zero(&status.allocatable)) {
            (None, None) => None,
            (_, Some(false)) => Some(Self::Allocatable),
            (Some(true), Some(true)) => Some(Self::KeysOnly),
            _ => Some(Self::Draining),
        }
    }
}

/// What becomes of the resources of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleResources {
    /// What the record is to say before keys are removed.
    pub record: ResourceUses,
    /// Keys to remove from the node's status.
    pub remove: BTreeSet<String>,
    /// When to look again.
    pub recheck: Option<Timestamp>,
}

impl StaleResources {
    /// What the record is to say once the keys were removed: the number of tries and the time between them hold whatever
    /// the kubelet makes of it.
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

/// Decides about every resource that is in the record or wanted. `seen` is what the node's status says of those in the record.
pub fn find_stale_resources(
    record: &ResourceUses,
    wanted: &BTreeSet<String>,
    seen: &BTreeMap<String, ResourcePresence>,
    now: Timestamp,
) -> StaleResources {
    let mut retirement = StaleResources::default();
    retirement
        .record
        .extend(wanted.iter().map(|name| (name.clone(), ResourceUse::InUse)));
    for (name, before) in record.iter().filter(|(name, _)| !wanted.contains(*name)) {
        // A moment out of range or in the future was forged, or a clock was wrong.
        let sane = |moment: &i64| (*moment).max(0).min(now.as_second());
        let before = match before {
            ResourceUse::InUse => ResourceUse::UnusedSince(now.as_second()),
            ResourceUse::UnusedSince(since) => ResourceUse::UnusedSince(sane(since)),
            ResourceUse::RemovalTried(moments) => ResourceUse::RemovalTried(moments.iter().map(sane).collect()),
        };
        let recheck = match next(&before, seen.get(name).copied(), now) {
            Next::Forget => continue,
            Next::Wait(until) => until,
            Next::Remove => {
                retirement.remove.insert(name.clone());
                now.checked_add(AGAIN).ok()
            }
        };
        retirement.record.insert(name.clone(), before);
        retirement.recheck = [retirement.recheck, recheck].into_iter().flatten().min();
    }
    retirement
}

enum Next {
    Forget,
    Wait(Option<Timestamp>),
    Remove,
}

fn next(before: &ResourceUse, seen: Option<ResourcePresence>, now: Timestamp) -> Next {
    let (moment, wait, tries) = match before {
        ResourceUse::InUse => return Next::Wait(None),
        ResourceUse::UnusedSince(since) if seen.is_none() => (since, UNSEEN, 0),
        ResourceUse::UnusedSince(since) => (since, GRACE, 0),
        ResourceUse::RemovalTried(moments) => match moments.last() {
            Some(last) => (last, AGAIN, moments.len()),
            None => return Next::Forget,
        },
    };
    let Ok(moment) = Timestamp::from_second(*moment) else {
        return Next::Forget;
    };
    let age = now.duration_since(moment);
    match seen {
        _ if age < wait => Next::Wait(moment.checked_add(wait).ok()),
        Some(ResourcePresence::KeysOnly) if tries < TRIES => Next::Remove,
        Some(ResourcePresence::Draining) if tries < TRIES && age < GRACE + PATIENCE => {
            Next::Wait(now.checked_add(AGAIN).ok())
        }
        _ => Next::Forget,
    }
}

/// The patch of the status that removes keys and notes that in the record, refused unless the node is as it was read.
pub fn status_patch(node: &NodeFacts, remove: &BTreeSet<String>, record: Option<&str>) -> Option<Patch> {
    let mut patch = PatchBuilder::guarded_by(&node.resource_version);
    for name in remove {
        for list in ["capacity", "allocatable"] {
            patch.remove(&["status", list, name]);
        }
    }
    // The API server takes metadata along with the status of a node, so the two are never at odds.
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
            let retirement = find_stale_resources(&record, &BTreeSet::new(), &seen, at(now));
            removed.extend((!retirement.remove.is_empty()).then_some(now));
            record = retirement.record_after(at(now));
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
    fn only_a_key_that_is_0_for_good_is_dead() {
        let (none, of) = (serde_json::json!({}), |count: &str| serde_json::json!({GPU: count}));
        for (capacity, allocatable, expected) in [
            (none.clone(), none.clone(), None),
            (of("8"), of("8"), Some(ResourcePresence::Allocatable)),
            (none.clone(), of("8"), Some(ResourcePresence::Allocatable)),
            (of("8"), of("0"), Some(ResourcePresence::Draining)),
            (of("0"), none, Some(ResourcePresence::Draining)),
            (of("0"), of("0"), Some(ResourcePresence::KeysOnly)),
        ] {
            let status = serde_json::json!({"status": {"capacity": capacity, "allocatable": allocatable}});
            assert_eq!(
                ResourcePresence::of(&serde_json::from_value(status.clone()).unwrap(), GPU),
                expected,
                "{status}"
            );
        }
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
        let patch = status_patch(&node, &BTreeSet::from([GPU.to_owned()]), Some("{}")).unwrap();
        assert_eq!(
            serde_json::to_string(&patch).unwrap(),
            r#"[{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"remove","path":"/status/capacity/nvidia.com~1gpu"},{"op":"remove","path":"/status/allocatable/nvidia.com~1gpu"},{"op":"add","path":"/metadata/annotations/gpunode.dev~1owned","value":"{}"}]"#
        );
        assert_eq!(status_patch(&node, &BTreeSet::new(), Some("{}")), None);
    }
}
