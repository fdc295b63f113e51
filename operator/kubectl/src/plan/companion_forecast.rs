//! The effect of a new configuration on the companions of one node, as far as the agent's last report tells. Pure.

use super::{resource_forecast::ResourceForecast, simulation::configuration_of};
use crate::output::plural;
use gpunode_config::{AgentConfig, CompanionConfig};
use gpunode_crds::{GpuNode, GpuNodeStatus, named};
use gpunode_gpu::is_companion;
use std::collections::BTreeSet;

/// Most pods named for one resource.
const MAX_PODS: usize = 3;

/// The effect of a new configuration on a node's companions.
#[derive(Debug, Default)]
pub struct CompanionForecast {
    pub offers: Vec<ResourceForecast>,
    pub notes: Vec<String>,
    /// Held devices that stay with their pods until these end.
    pub waiting: Vec<String>,
    /// Those pods, as `NAMESPACE/NAME`.
    pub held_by: BTreeSet<String>,
}

/// Compares the companions of a node as it is with those of `config`. Only the agent knows the files that other globs match.
pub fn companion_forecast(before: Option<&GpuNode>, config: &AgentConfig) -> CompanionForecast {
    let now = before.and_then(configuration_of).unwrap_or_default();
    let unknown = GpuNodeStatus::default();
    let status = before.and_then(|before| before.status.as_ref()).unwrap_or(&unknown);
    let mut forecast = CompanionForecast::default();
    for companion in &config.companions {
        let name = &companion.resource;
        let known = status.resources.iter().find(|of| of.companion && of.name == *name);
        let same = now
            .companions
            .iter()
            .find(|of| of.resource == *name && has_same_files(of, companion));
        let Some((known, _)) = known.zip(same) else {
            let paths = companion.paths.join(", ");
            forecast.notes.push(format!(
                "{name}: its devices are not counted; the agent looks for {paths} once it has the configuration"
            ));
            continue;
        };
        let shares = u64::from(companion.shares());
        let devices = known.devices.len();
        let count = plural(devices, "device", "devices");
        let then = shares.saturating_mul(devices as u64);
        let words = if shares == 1 {
            count
        } else {
            format!("{count} x {shares} shares = {then}")
        };
        let now = u64::try_from(known.capacity).unwrap_or_default();
        forecast.offers.push(offer(name, now, then, words, status));
    }
    let is_kept = |name: &str| {
        let of = |config: &AgentConfig| config.companions.iter().find(|of| of.resource == name).cloned();
        of(config)
            .zip(of(&now))
            .is_some_and(|(then, now)| has_same_devices(&now, &then))
    };
    let holders = || status.holders.iter().filter(|holder| is_companion(&holder.device));
    let changing: BTreeSet<&str> = holders()
        .map(|holder| holder.resource.as_str())
        .filter(|name| !is_kept(name))
        .collect();
    for name in changing {
        let pods: BTreeSet<String> = holders()
            .filter(|holder| holder.resource == name)
            .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
            .collect();
        let (pod, end) = if pods.len() == 1 {
            ("pod", "ends")
        } else {
            ("pods", "end")
        };
        let names = named(&pods, MAX_PODS);
        forecast
            .waiting
            .push(format!("devices of {name} stay unchanged until {pod} {names} {end}"));
        forecast.held_by.extend(pods);
        if !config.companions.iter().any(|of| of.resource == name) {
            let now = status
                .resources
                .iter()
                .find(|of| of.name == name)
                .map_or(0, |of| of.capacity);
            let words = "nothing: the configuration does not name it".to_owned();
            forecast
                .offers
                .push(offer(name, u64::try_from(now).unwrap_or_default(), 0, words, status));
        }
    }
    forecast
}

fn offer(name: &str, now: u64, then: u64, words: String, status: &GpuNodeStatus) -> ResourceForecast {
    let holders = status.holders.iter().filter(|holder| holder.resource == name);
    let held: u64 = holders
        .map(|holder| u64::try_from(holder.count).unwrap_or_default())
        .sum();
    ResourceForecast {
        resource: name.to_owned(),
        now,
        then,
        held,
        at_least: status.holders_truncated,
        would_not_fit: held.saturating_sub(then),
        words,
    }
}

/// Returns true if both match the same files and group them alike.
fn has_same_files(one: &CompanionConfig, other: &CompanionConfig) -> bool {
    (&one.paths, one.group()) == (&other.paths, other.group())
}

/// Returns true if a held device waits for nobody: it changes when files are grouped otherwise, and when it becomes shared, or whole.
/// Only the agent knows whether other globs still match its file.
fn has_same_devices(one: &CompanionConfig, other: &CompanionConfig) -> bool {
    (one.group(), one.shares() == 1) == (other.group(), other.shares() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::ConfigDocument;
    use serde_json::json;

    const SHARED: &str = "companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together, shares: 64}]";

    fn node() -> GpuNode {
        let config = ConfigDocument::of(&gpunode_config::load(SHARED).unwrap());
        serde_json::from_value(json!({
            "apiVersion": "gpunode.dev/v1alpha1",
            "kind": "GpuNode",
            "metadata": {"name": "n"},
            "spec": {"config": {"policy": "p", "version": 1, "hash": config.hash, "document": config.text}},
            "status": {
                "resources": [{"name": "rdma/hca", "companion": true, "capacity": 64, "allocatable": 64, "registered": true,
                    "devices": [{"device": "path-1", "name": "/dev/infiniband/uverbs0", "shares": 64, "healthy": 64}]}],
                "holders": [{"namespace": "team", "pod": "a", "container": "main", "resource": "rdma/hca", "device": "path-1", "count": 3}],
            },
        }))
        .unwrap()
    }

    fn forecast(config: &str) -> CompanionForecast {
        companion_forecast(Some(&node()), &gpunode_config::load(config).unwrap())
    }

    #[test]
    fn another_number_of_shares_is_counted_and_waits_for_nobody() {
        let fewer =
            forecast("companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together, shares: 2}]");
        let offer = &fewer.offers[0];
        assert_eq!((offer.now, offer.then, offer.would_not_fit), (64, 2, 1));
        assert_eq!(offer.words, "1 device x 2 shares = 2");
        assert!(fewer.waiting.is_empty() && fewer.notes.is_empty());
    }

    #[test]
    fn held_devices_of_other_files_wait_for_their_pods() {
        for config in [
            "companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], shares: 64}]",
            "companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together}]",
        ] {
            let regrouped = forecast(config);
            assert_eq!(
                regrouped.waiting,
                ["devices of rdma/hca stay unchanged until pod team/a ends"],
                "{config}"
            );
        }
        let none = forecast("{}");
        assert_eq!(none.held_by, ["team/a".to_owned()].into());
        assert_eq!((none.offers[0].then, none.offers[0].would_not_fit), (0, 3));
    }

    #[test]
    fn files_of_new_globs_are_not_guessed() {
        let new = forecast(
            "companions: [{resource: rdma/hca, paths: [/dev/infiniband/uverbs*], group: Together, shares: 64}]",
        );
        assert!(new.offers.is_empty() && new.waiting.is_empty());
        assert_eq!(
            new.notes,
            [
                "rdma/hca: its devices are not counted; the agent looks for /dev/infiniband/uverbs* once it has the configuration"
            ]
        );
        let unknown = companion_forecast(None, &gpunode_config::load(SHARED).unwrap());
        assert_eq!((unknown.notes.len(), unknown.waiting.len()), (1, 0));
    }
}
