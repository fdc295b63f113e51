//! Stale resources in node status. From 5 minutes after a plugin ends (`endpointStopGracePeriod`) a kubelet reports its
//! resource as 0 for ever; a key that is removed earlier comes back. The operator's own function decides when to remove it.

use super::{removal::Removal, requests::request};
use crate::{cluster, output::plural};
use gpunode_plan::{PatchBuilder, ResourcePresence, ResourceUses, StaleResources, find_stale_resources};
use jiff::Timestamp;
use json_patch::Patch;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, PatchParams},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Resources that agents served, by node.
pub type ServedResources = BTreeMap<String, ResourceUses>;

/// Time between two checks; a kubelet compares the status of its node every 10 s.
const LOOK: Duration = Duration::from_secs(10);
/// Longest wait: the kubelet's 5 minutes, and time to confirm.
const LIMIT: Duration = Duration::from_mins(8);

const STEP: &str = "resources";

/// Waits until the kubelets allow it and removes the keys from node status, except those that another plugin serves.
pub async fn remove_resources(removal: &mut Removal, mut awaited: ServedResources) {
    let end = Instant::now() + LIMIT;
    let mut others = BTreeSet::new();
    loop {
        match cluster::list::<Node>(&removal.requests.client).await {
            Ok(nodes) => {
                awaited.retain(|name, _| nodes.objects.iter().any(|node| node.name_any() == *name));
                // A node that cannot be read may still have the resource.
                let is_readable = |name: &String| !nodes.unreadable.iter().any(|it| it.name == *name);
                for node in &nodes.objects {
                    let name = node.name_any();
                    let Some(served) = awaited.get_mut(&name).filter(|_| is_readable(&name)) else {
                        continue;
                    };
                    others.extend(retire_on(removal, node, &name, served).await);
                }
            }
            // The next check may succeed.
            Err(error) => removal.progress.doing(STEP, &format!("{error:#}")),
        }
        awaited.retain(|_, served| !served.is_empty());
        if awaited.is_empty() {
            let others = match others.len() {
                0 => String::new(),
                _ => format!(
                    "; another plugin serves {}",
                    others.into_iter().collect::<Vec<_>>().join(", ")
                ),
            };
            return removal
                .progress
                .done(STEP, &format!("no stale resource left in node status{others}"));
        }
        if Instant::now() >= end {
            for (node, served) in awaited {
                leave_resources(removal, &node, served.keys());
            }
            return;
        }
        let nodes = plural(awaited.len(), "node", "nodes");
        removal
            .progress
            .doing(STEP, &format!("waiting for the kubelets of {nodes}, 5 to 7 minutes"));
        tokio::time::sleep(LOOK).await;
    }
}

/// Removes the keys of one node that can be removed now, and returns those that another plugin serves.
async fn retire_on(removal: &mut Removal, node: &Node, name: &str, served: &mut ResourceUses) -> Vec<String> {
    let now = Timestamp::now();
    let seen = served
        .keys()
        .filter_map(|key| Some((key.clone(), ResourcePresence::of(node, key)?)))
        .collect();
    let mut retirement = find_stale_resources(served, &BTreeSet::new(), &seen, now);
    let mut taken = BTreeSet::new();
    for key in &retirement.remove {
        // A patch whose test fails is tried again at the next check.
        if take_out(removal, name, key).await.is_ok() {
            taken.insert(key.clone());
        }
    }
    retirement.remove = taken;
    let (others, left) = given_up(&retirement, &seen);
    leave_resources(removal, name, left.into_iter());
    *served = retirement.record_after(now);
    others.into_iter().map(|key| format!("{key} on {name}")).collect()
}

fn leave_resources<'a>(removal: &mut Removal, node: &str, keys: impl Iterator<Item = &'a String>) {
    let keys: Vec<&str> = keys.map(String::as_str).collect();
    let Some(key) = keys.first() else { return };
    let what = format!("{} in the status of node {node}", keys.join(", "));
    removal.leave(
        &what,
        format!(
            "the kubelet still reports it; once it is 0, remove it with `{}`",
            by_hand(node, key)
        ),
    );
}

/// Notes which keys stay when the removal does not wait for them.
pub fn note_resources(removal: &mut Removal, resources: &ServedResources) {
    let names: BTreeSet<&str> = resources
        .values()
        .flat_map(ResourceUses::keys)
        .map(String::as_str)
        .collect();
    let Some(name) = names.first() else { return };
    let by_hand = by_hand("NODE", name);
    let (names, nodes) = (
        names.iter().copied().collect::<Vec<_>>().join(", "),
        resources.keys().cloned(),
    );
    removal.notes.push(format!(
        "kubelets keep {names} at 0 in the status of {}; --wait-resources would have waited to remove it. After 5 minutes, \
         remove it with `{by_hand}`",
        nodes.collect::<Vec<_>>().join(", "),
    ));
}

async fn take_out(removal: &Removal, node: &str, key: &str) -> anyhow::Result<()> {
    let nodes: Api<DynamicObject> = Api::all_with(removal.requests.client.clone(), &ApiResource::erase::<Node>(&()));
    let patch = kube::api::Patch::<()>::Json(take_out_patch(key));
    let params = PatchParams::default();
    request("patch node status", nodes.patch_status(node, &params, &patch))
        .await
        .map(|_| ())
}

/// Returns a patch that removes a key if it is still 0.
fn take_out_patch(key: &str) -> Patch {
    let mut patch = PatchBuilder::default();
    let keys = ["capacity", "allocatable"].map(|list| ["status", list, key]);
    for path in &keys {
        patch.test(path, "0");
    }
    for path in &keys {
        patch.remove(path);
    }
    patch.build().unwrap_or_default()
}

/// Returns a command that removes a key.
fn by_hand(node: &str, key: &str) -> String {
    let pointer = key.replace('~', "~0").replace('/', "~1");
    let patch =
        ["capacity", "allocatable"].map(|list| format!(r#"{{"op":"remove","path":"/status/{list}/{pointer}"}}"#));
    format!(
        "kubectl patch node {node} --subresource=status --type=json -p '[{}]'",
        patch.join(",")
    )
}

/// Splits the keys that are present but no longer awaited: those of another plugin, and those that a kubelet keeps restoring.
fn given_up<'a>(
    retirement: &StaleResources,
    seen: &'a BTreeMap<String, ResourcePresence>,
) -> (Vec<&'a String>, Vec<&'a String>) {
    let dropped = seen.iter().filter(|(key, _)| !retirement.record.contains_key(*key));
    let (others, left): (Vec<_>, Vec<_>) = dropped.partition(|(_, seen)| **seen == ResourcePresence::Allocatable);
    let keys = |of: Vec<(&'a String, &ResourcePresence)>| of.into_iter().map(|(key, _)| key).collect();
    (keys(others), keys(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_plan::ResourceUse;
    use serde_json::json;

    #[test]
    fn what_others_serve_is_theirs_and_what_is_put_back_five_times_is_left() {
        let tried = |times: &[i64]| ResourceUse::RemovalTried(times.to_vec());
        let served = ResourceUses::from([
            ("a.b/gone".to_owned(), tried(&[0])),
            ("a.b/back".to_owned(), tried(&[0, 60, 120, 180, 240])),
            ("a.b/theirs".to_owned(), ResourceUse::UnusedSince(0)),
            ("a.b/waits".to_owned(), ResourceUse::UnusedSince(900)),
        ]);
        let seen = [
            ("a.b/back", ResourcePresence::KeysOnly),
            ("a.b/theirs", ResourcePresence::Allocatable),
            ("a.b/waits", ResourcePresence::Allocatable),
        ];
        let seen = seen.map(|(key, seen)| (key.to_owned(), seen)).into();
        let now = Timestamp::from_second(1000).expect("a time");
        let retirement = find_stale_resources(&served, &BTreeSet::new(), &seen, now);
        let (theirs, back) = ("a.b/theirs".to_owned(), "a.b/back".to_owned());
        assert_eq!(given_up(&retirement, &seen), (vec![&theirs], vec![&back]));
        assert_eq!(retirement.record.keys().collect::<Vec<_>>(), ["a.b/waits"]);
    }

    #[test]
    fn taking_out_holds_for_0_alone() {
        let status = |count: &str| json!({"status": {"capacity": {"a.b/c": count, "cpu": "1"}, "allocatable": {"a.b/c": count}}});
        let mut dead = status("0");
        json_patch::patch(&mut dead, &take_out_patch("a.b/c")).expect("a patch that fits");
        assert_eq!(dead, json!({"status": {"capacity": {"cpu": "1"}, "allocatable": {}}}));
        assert!(json_patch::patch(&mut status("1"), &take_out_patch("a.b/c")).is_err());
    }
}
