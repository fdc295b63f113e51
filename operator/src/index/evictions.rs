//! Pods to evict, on all nodes. No IO.

use gpunode_plan::{PodEviction, PodName};
use std::collections::{BTreeMap, HashMap};

/// A pod that holds an unhealthy device of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvictionKey {
    pub node: String,
    pub pod: PodName,
}

/// Pods to evict, by node. Few nodes have any, and none has more than its `GpuNode` has holders.
#[derive(Debug, Default)]
pub struct PendingEvictions(HashMap<String, BTreeMap<PodName, PodEviction>>);

impl PendingEvictions {
    /// Replaces the evictions of one node and returns those that are new or changed.
    pub fn put(&mut self, node: &str, after: BTreeMap<PodName, PodEviction>) -> Vec<EvictionKey> {
        let before = self.0.remove(node).unwrap_or_default();
        let changed = after.iter().filter(|(pod, eviction)| before.get(pod) != Some(eviction));
        let changed = changed
            .map(|(pod, _)| EvictionKey {
                node: node.to_owned(),
                pod: pod.clone(),
            })
            .collect();
        if !after.is_empty() {
            self.0.insert(node.to_owned(), after);
        }
        changed
    }

    /// Returns the reason to evict a pod; `None` if there is none any more.
    pub fn get(&self, key: &EvictionKey) -> Option<&PodEviction> {
        self.0.get(&key.node)?.get(&key.pod)
    }

    /// Forgets all, so that the next `put` returns every eviction.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_plan::EvictionCause;
    use jiff::Timestamp;

    fn evictions(pods: &[(&str, i64)]) -> BTreeMap<PodName, PodEviction> {
        let eviction = |(name, since): &(&str, i64)| {
            let pod = PodName {
                namespace: "ml".to_owned(),
                name: (*name).to_owned(),
            };
            let since = Timestamp::from_second(*since).unwrap();
            let (device, resource) = ("GPU-0".to_owned(), "nvidia.com/gpu".to_owned());
            (
                pod,
                PodEviction {
                    policy: "p".to_owned(),
                    cause: EvictionCause::Broken {
                        device,
                        resource,
                        since,
                        fault: "x".to_owned(),
                    },
                    grace_seconds: None,
                },
            )
        };
        pods.iter().map(eviction).collect()
    }

    fn names(keys: &[EvictionKey]) -> Vec<&str> {
        keys.iter().map(|key| key.pod.name.as_str()).collect()
    }

    #[test]
    fn only_a_new_or_changed_eviction_is_returned() {
        let mut pending = PendingEvictions::default();
        assert_eq!(names(&pending.put("n", evictions(&[("a", 1), ("b", 1)]))), ["a", "b"]);
        assert_eq!(
            names(&pending.put("n", evictions(&[("a", 1), ("b", 2), ("c", 1)]))),
            ["b", "c"]
        );
        assert!(pending.put("n", evictions(&[("c", 1)])).is_empty());
        assert_eq!(
            names(&pending.put("n", evictions(&[("a", 1), ("c", 1)]))),
            ["a"],
            "it had ended meanwhile"
        );
        pending.clear();
        assert_eq!(names(&pending.put("n", evictions(&[("c", 1)]))), ["c"]);
    }

    #[test]
    fn eviction_ends_when_the_plan_of_the_node_drops_it() {
        let mut pending = PendingEvictions::default();
        let key = pending.put("n", evictions(&[("a", 1)])).remove(0);
        assert!(pending.get(&key).is_some());
        assert!(
            pending
                .get(&EvictionKey {
                    node: "m".to_owned(),
                    ..key.clone()
                })
                .is_none()
        );
        pending.put("n", BTreeMap::new());
        assert!(pending.get(&key).is_none() && pending.0.is_empty());
    }
}
