//! Which pods are to be evicted, on all nodes. No IO.

use gpunode_plan::{PodEviction, PodName};
use std::collections::{BTreeMap, HashMap};

/// A pod that holds a broken device of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderKey {
    /// Name of the node.
    pub node: String,
    /// The pod.
    pub pod: PodName,
}

/// Pods that are to be evicted, by node: few nodes have any, and none more than a `GpuNode` has holders.
#[derive(Debug, Default)]
pub struct Wanted(HashMap<String, BTreeMap<PodName, PodEviction>>);

impl Wanted {
    /// Takes in the evictions of one node and returns those that are news. What is left to be done about the others is known.
    pub fn put(&mut self, node: &str, after: BTreeMap<PodName, PodEviction>) -> Vec<HolderKey> {
        let before = self.0.remove(node).unwrap_or_default();
        let news = after.iter().filter(|(pod, eviction)| before.get(pod) != Some(eviction));
        let news = news
            .map(|(pod, _)| HolderKey {
                node: node.to_owned(),
                pod: pod.clone(),
            })
            .collect();
        if !after.is_empty() {
            self.0.insert(node.to_owned(), after);
        }
        news
    }

    /// Why a pod is to be evicted, if it still is.
    pub fn get(&self, key: &HolderKey) -> Option<&PodEviction> {
        self.0.get(&key.node)?.get(&key.pod)
    }

    /// Forgets all, so that everything is news.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
                    device,
                    resource,
                    since,
                    trouble: "x".to_owned(),
                },
            )
        };
        pods.iter().map(eviction).collect()
    }

    fn names(news: &[HolderKey]) -> Vec<&str> {
        news.iter().map(|key| key.pod.name.as_str()).collect()
    }

    #[test]
    fn only_what_is_new_about_a_pod_asks_for_a_look_at_it() {
        let mut wanted = Wanted::default();
        assert_eq!(names(&wanted.put("n", evictions(&[("a", 1), ("b", 1)]))), ["a", "b"]);
        assert_eq!(
            names(&wanted.put("n", evictions(&[("a", 1), ("b", 2), ("c", 1)]))),
            ["b", "c"]
        );
        assert!(wanted.put("n", evictions(&[("c", 1)])).is_empty());
        assert_eq!(
            names(&wanted.put("n", evictions(&[("a", 1), ("c", 1)]))),
            ["a"],
            "it was over meanwhile"
        );
        wanted.clear();
        assert_eq!(names(&wanted.put("n", evictions(&[("c", 1)]))), ["c"]);
    }

    #[test]
    fn eviction_is_over_when_the_node_says_so() {
        let mut wanted = Wanted::default();
        let key = wanted.put("n", evictions(&[("a", 1)])).remove(0);
        assert!(wanted.get(&key).is_some());
        assert!(
            wanted
                .get(&HolderKey {
                    node: "m".to_owned(),
                    ..key.clone()
                })
                .is_none()
        );
        wanted.put("n", BTreeMap::new());
        assert!(wanted.get(&key).is_none() && wanted.0.is_empty());
    }
}
