//! Dead keys in node status. A kubelet writes 0 for ever for a resource whose plugin has gone, from 5 minutes after it went
//! (`endpointStopGracePeriod`); what is taken out earlier it writes again.

use super::{Removal, requests::request};
use crate::{cluster, output::plural};
use json_patch::{Patch, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, PatchParams},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Names of resources by node.
pub type Resources = BTreeMap<String, BTreeSet<String>>;

/// Time between two looks; a kubelet compares the status of its node every 10 s.
const LOOK: Duration = Duration::from_secs(10);
/// How long a key must stay away: a kubelet that has its own idea has then written it again.
const QUIET: Duration = Duration::from_secs(25);
/// Longest wait: the kubelet's 5 minutes, and time to be sure of it.
const LIMIT: Duration = Duration::from_mins(8);

const STEP: &str = "resources";

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// It is not there.
    Gone,
    /// Somebody serves it, so it is theirs.
    Served,
    /// The plugin that served it has gone, and the kubelet still keeps its devices.
    Grace,
    /// It is there with 0, for ever.
    Dead,
}

impl Removal {
    /// Waits until the keys can be taken out of node status, and takes them out, but for those that somebody else serves.
    pub async fn remove_resources(&mut self, mut awaited: Resources) {
        let end = Instant::now() + LIMIT;
        let mut gone_since: BTreeMap<(String, String), Instant> = BTreeMap::new();
        let mut served = BTreeSet::new();
        loop {
            match cluster::list::<Node>(&self.client).await {
                Ok(nodes) => {
                    awaited.retain(|name, _| nodes.objects.iter().any(|node| node.name_any() == *name));
                    for node in &nodes.objects {
                        let name = node.name_any();
                        let Some(keys) = awaited.get_mut(&name) else { continue };
                        let mut dead = Vec::new();
                        keys.retain(|key| match state(node, key) {
                            Key::Served => {
                                served.insert(format!("{key} on {name}"));
                                false
                            }
                            Key::Gone => {
                                let since = gone_since.entry((name.clone(), key.clone())).or_insert_with(Instant::now);
                                since.elapsed() < QUIET
                            }
                            at => {
                                gone_since.remove(&(name.clone(), key.clone()));
                                dead.extend((at == Key::Dead).then(|| key.clone()));
                                true
                            }
                        });
                        for key in dead {
                            // Where it does not hold any more, the next look tells.
                            let _ = self.take_out(&name, &key).await;
                        }
                    }
                }
                // The next look may succeed.
                Err(error) => self.progress.doing(STEP, &format!("{error:#}")),
            }
            awaited.retain(|_, keys| !keys.is_empty());
            if awaited.is_empty() {
                let others = match served.len() {
                    0 => String::new(),
                    _ => format!("; somebody else serves {}", served.into_iter().collect::<Vec<_>>().join(", ")),
                };
                return self.progress.done(STEP, &format!("no dead one is left in node status{others}"));
            }
            if Instant::now() >= end {
                for (node, keys) in awaited {
                    let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
                    self.leave(
                        &format!("{keys} in the status of node {node}"),
                        "its kubelet still writes it; run this again",
                    );
                }
                return;
            }
            let nodes = plural(awaited.len(), "node", "nodes");
            self.progress.doing(STEP, &format!("waiting for the kubelets of {nodes}, 5 to 7 minutes"));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Says which keys stay where nobody waits for them.
    pub fn note_resources(&mut self, resources: &Resources) {
        let names: BTreeSet<&str> = resources.values().flatten().map(String::as_str).collect();
        let Some(name) = names.first() else { return };
        let pointer = name.replace('~', "~0").replace('/', "~1");
        let patch =
            ["capacity", "allocatable"].map(|list| format!(r#"{{"op":"remove","path":"/status/{list}/{pointer}"}}"#));
        let (names, nodes) = (names.iter().copied().collect::<Vec<_>>().join(", "), resources.keys().cloned());
        self.note(format!(
            "kubelets go on to write {names} with 0 on {}, for which --wait-resources waits; from 5 minutes on it can be taken \
             out, as with `kubectl patch node NODE --subresource=status --type=json -p '[{}]'`",
            nodes.collect::<Vec<_>>().join(", "),
            patch.join(",")
        ));
    }

    async fn take_out(&self, node: &str, key: &str) -> anyhow::Result<()> {
        let nodes: Api<DynamicObject> = Api::all_with(self.client.clone(), &ApiResource::erase::<Node>(&()));
        let patch = kube::api::Patch::<()>::Json(removal(key));
        let params = PatchParams::default();
        request("patch node status", nodes.patch_status(node, &params, &patch)).await.map(|_| ())
    }
}

/// Takes a key out if it still is 0.
fn removal(key: &str) -> Patch {
    let of = |list: &str| PointerBuf::from_tokens(["status", list, key]);
    let test = |list: &str| PatchOperation::Test(TestOperation { path: of(list), value: Value::from("0") });
    let remove = |list: &str| PatchOperation::Remove(RemoveOperation { path: of(list) });
    Patch(vec![test("capacity"), test("allocatable"), remove("capacity"), remove("allocatable")])
}

fn state(node: &Node, key: &str) -> Key {
    let status = node.status.as_ref();
    let of = |list: Option<&BTreeMap<String, Quantity>>| list.and_then(|list| list.get(key)).map(|it| it.0.clone());
    let capacity = of(status.and_then(|status| status.capacity.as_ref()));
    let allocatable = of(status.and_then(|status| status.allocatable.as_ref()));
    match (capacity.as_deref(), allocatable.as_deref()) {
        (None, None) => Key::Gone,
        (Some("0"), Some("0")) => Key::Dead,
        (_, None | Some("0")) => Key::Grace,
        _ => Key::Served,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_key_that_is_0_for_good_is_taken_out() {
        let cases = [
            (json!({}), json!({}), Key::Gone),
            (json!({"a.b/c": "8"}), json!({"a.b/c": "0"}), Key::Grace),
            (json!({"a.b/c": "0"}), json!({"a.b/c": "0"}), Key::Dead),
            (json!({"a.b/c": "1"}), json!({"a.b/c": "1"}), Key::Served),
        ];
        for (capacity, allocatable, expected) in cases {
            let status = json!({"capacity": capacity, "allocatable": allocatable});
            let node: Node = serde_json::from_value(json!({"status": status})).expect("a node");
            assert_eq!(state(&node, "a.b/c"), expected, "{status}");
        }
    }

    #[test]
    fn taking_out_holds_for_0_alone() {
        let status = |count: &str| json!({"status": {"capacity": {"a.b/c": count, "cpu": "1"}, "allocatable": {"a.b/c": count}}});
        let mut dead = status("0");
        json_patch::patch(&mut dead, &removal("a.b/c")).expect("a patch that fits");
        assert_eq!(dead, json!({"status": {"capacity": {"cpu": "1"}, "allocatable": {}}}));
        assert!(json_patch::patch(&mut status("1"), &removal("a.b/c")).is_err());
    }
}
