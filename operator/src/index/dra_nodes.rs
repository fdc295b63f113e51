//! Nodes whose GPUs NVIDIA's DRA driver serves: it publishes ResourceSlices, and each of a node has the Node as its owner
//! (`kubeletplugin` of kubernetes/dynamic-resource-allocation).

use crate::index::cache::{ObjectCache, Versioned, WatchUpdate};
use gpunode_crds::ConditionType;
use gpunode_plan::{GpuNodeFacts, NodeFacts};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeSet, HashMap};

/// Time for which a node without ResourceSlices still counts as served. The kubelet removes the slices of a driver that is away
/// for 30 s, as while its pod is replaced; gpunode must not give the GPUs out meanwhile.
const GRACE: SignedDuration = SignedDuration::from_mins(2);

/// A ResourceSlice, as far as its metadata tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceOwner {
    pub name: String,
    pub version: String,
    /// The Node that owns it; `None` for devices that no single node has.
    pub node: Option<String>,
}

impl SliceOwner {
    /// Reads the owner of a ResourceSlice.
    pub fn of(metadata: ObjectMeta) -> Self {
        let mut owners = metadata.owner_references.into_iter().flatten();
        let node = owners.find(|owner| owner.api_version == "v1" && owner.kind == "Node");
        Self {
            name: metadata.name.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            node: node.map(|owner| owner.name),
        }
    }
}

impl Versioned for SliceOwner {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> &str {
        &self.version
    }
}

/// Nodes whose GPUs NVIDIA's DRA driver serves.
#[derive(Debug, Default)]
pub struct DraNodes {
    slices: ObjectCache<SliceOwner>,
    /// Number of slices by node.
    served: HashMap<String, usize>,
    /// Moment at which the last slice of a node went.
    left: HashMap<String, Timestamp>,
    /// Moment of the first list.
    known_since: Option<Timestamp>,
}

impl DraNodes {
    /// Number of ResourceSlices.
    pub fn size(&self) -> usize {
        self.slices.size()
    }

    /// True once the first list is in.
    pub fn is_known(&self) -> bool {
        self.slices.has_synced()
    }

    /// Applies news from the watch. Returns the nodes that got or lost a slice; with the first list, all that have one.
    pub fn apply(&mut self, update: WatchUpdate<SliceOwner>, now: Timestamp) -> BTreeSet<String> {
        self.left.retain(|_, left| is_in_grace(*left, now));
        let mut nodes = BTreeSet::new();
        if matches!(update, WatchUpdate::ListCompleted(_)) && self.known_since.is_none() {
            self.known_since = Some(now);
            // Nothing was known when the pages came.
            nodes.extend(self.served.keys().cloned());
        }
        for delta in self.slices.apply_watch(update) {
            let before = delta.before.and_then(|slice| slice.node.clone());
            let after = delta.after.and_then(|slice| slice.node.clone());
            if before == after {
                continue;
            }
            if let Some(node) = before {
                let count = self.served.get(&node).copied().unwrap_or_default().saturating_sub(1);
                if count == 0 {
                    self.served.remove(&node);
                    self.left.insert(node.clone(), now);
                } else {
                    self.served.insert(node.clone(), count);
                }
                nodes.insert(node);
            }
            if let Some(node) = after {
                *self.served.entry(node.clone()).or_default() += 1;
                self.left.remove(&node);
                nodes.insert(node);
            }
        }
        nodes
    }

    /// True if the driver serves the GPUs of a node; `None` before the first list.
    pub fn is_served(&self, node: &NodeFacts, gpu_node: Option<&GpuNodeFacts>, now: Timestamp) -> Option<bool> {
        let is_served = || self.served.contains_key(&node.name) || self.grace_end(node, gpu_node, now).is_some();
        self.is_known().then(is_served)
    }

    /// Returns the end of the time for which a node without slices still counts as served.
    pub fn grace_end(&self, node: &NodeFacts, gpu_node: Option<&GpuNodeFacts>, now: Timestamp) -> Option<Timestamp> {
        if self.served.contains_key(&node.name) {
            return None;
        }
        // The slices of a node that its GpuNode calls served may have gone while no operator watched.
        let served = gpu_node.filter(|gpu_node| gpu_node.spec.served_by_dra);
        let began = served.and_then(|gpu_node| self.known_since.max(up_since(node, gpu_node, now)));
        let began = self.left.get(&node.name).copied().max(began);
        began.filter(|began| is_in_grace(*began, now))?.checked_add(GRACE).ok()
    }
}

/// Returns the moment since which a DRA driver can publish the GPUs of a node: the node is Ready and NVIDIA's driver answers. That is
/// `now` until then.
fn up_since(node: &NodeFacts, gpu_node: &GpuNodeFacts, now: Timestamp) -> Option<Timestamp> {
    let driver = ConditionType::DriverAvailable.find(&gpu_node.conditions);
    if !node.ready || driver.is_some_and(|driver| driver.status != "True") {
        return Some(now);
    }
    node.ready_since.max(driver.map(|driver| driver.last_transition_time.0))
}

fn is_in_grace(left: Timestamp, now: Timestamp) -> bool {
    // A clock that was set back prolongs nothing.
    now.duration_since(left).abs() < GRACE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::cache::DeletedObject;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    fn slice(name: &str, version: &str, node: Option<&str>) -> SliceOwner {
        SliceOwner {
            name: name.to_owned(),
            version: version.to_owned(),
            node: node.map(str::to_owned),
        }
    }

    fn deleted(name: &str) -> WatchUpdate<SliceOwner> {
        WatchUpdate::Deleted(DeletedObject {
            name: name.to_owned(),
            version: "9".to_owned(),
        })
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(name: &str) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            ready: true,
            ..NodeFacts::default()
        }
    }

    /// Says if a node is served that its `GpuNode` says nothing about, and until when it is without slices.
    fn state(nodes: &DraNodes, name: &str, second: i64) -> (Option<bool>, Option<Timestamp>) {
        let (node, now) = (node(name), at(second));
        (nodes.is_served(&node, None, now), nodes.grace_end(&node, None, now))
    }

    fn list(nodes: &mut DraNodes, slices: Vec<SliceOwner>, second: i64) {
        for update in WatchUpdate::list(slices) {
            nodes.apply(update, at(second));
        }
    }

    fn names(nodes: &BTreeSet<String>) -> Vec<&str> {
        nodes.iter().map(String::as_str).collect()
    }

    #[test]
    fn slice_belongs_to_the_node_that_owns_it() {
        let owner = |api_version: &str, kind: &str| OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: "n".to_owned(),
            ..OwnerReference::default()
        };
        for (owners, node) in [
            (None, None),
            (Some(vec![owner("apps/v1", "Deployment")]), None),
            (Some(vec![owner("gpunode.dev/v1alpha1", "Node")]), None),
            (
                Some(vec![owner("apps/v1", "Deployment"), owner("v1", "Node")]),
                Some("n"),
            ),
        ] {
            let metadata = ObjectMeta {
                name: Some("s".to_owned()),
                owner_references: owners,
                ..ObjectMeta::default()
            };
            assert_eq!(SliceOwner::of(metadata), slice("s", "", node));
        }
    }

    #[test]
    fn nothing_is_known_before_the_first_list() {
        let mut nodes = DraNodes::default();
        assert_eq!(state(&nodes, "n", 0), (None, None));
        nodes.apply(WatchUpdate::ListStarted, at(0));
        nodes.apply(WatchUpdate::ListPage(vec![slice("s", "1", Some("n"))]), at(0));
        assert_eq!(state(&nodes, "n", 0), (None, None), "the list is not whole");
        let found = nodes.apply(WatchUpdate::ListCompleted(None), at(0));
        assert_eq!(names(&found), ["n"]);
        assert_eq!(
            [state(&nodes, "n", 0), state(&nodes, "other", 0)],
            [(Some(true), None), (Some(false), None)]
        );
    }

    #[test]
    fn node_is_served_until_two_minutes_after_its_last_slice() {
        let mut nodes = DraNodes::default();
        let both = vec![slice("a", "1", Some("n")), slice("b", "2", Some("n"))];
        list(&mut nodes, both, 0);
        nodes.apply(deleted("a"), at(10));
        assert_eq!(state(&nodes, "n", 500), (Some(true), None));
        assert_eq!(names(&nodes.apply(deleted("b"), at(1000))), ["n"]);
        assert_eq!(state(&nodes, "n", 1119), (Some(true), Some(at(1120))));
        assert_eq!(state(&nodes, "n", 1120), (Some(false), None));
    }

    #[test]
    fn driver_that_is_replaced_changes_nothing_and_one_that_publishes_again_plans_nothing() {
        let mut nodes = DraNodes::default();
        list(&mut nodes, vec![slice("a", "1", Some("n"))], 0);
        assert!(
            nodes
                .apply(WatchUpdate::applied(slice("a", "2", Some("n"))), at(1))
                .is_empty()
        );
        list(&mut nodes, vec![], 10);
        assert_eq!(state(&nodes, "n", 60), (Some(true), Some(at(130))));
        nodes.apply(WatchUpdate::applied(slice("b", "3", Some("n"))), at(60));
        assert_eq!(state(&nodes, "n", 61), (Some(true), None));
        assert_eq!(state(&nodes, "n", 500), (Some(true), None));
    }
}
