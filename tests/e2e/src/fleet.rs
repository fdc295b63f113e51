//! The objects that policies change, at one moment, and the difference between two moments in the terms of
//! `kubectl gpunode plan -o json`.
//!
//! It leaves out the labels with facts about GPUs, which follow from the reports of agents.

use crate::{
    Lab, NAMESPACE, condition,
    difference::{Difference, Differences},
    is_fact,
};
use anyhow::{Context, Result, ensure};
use gpunode_config::MigStrategy;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Name of a kind of difference, and key.
type Entry = (&'static str, String);

/// Every object that a policy changes.
#[derive(Debug, Default)]
pub struct Fleet {
    /// By node: the subjects of a plan, with their values.
    entries: BTreeMap<String, BTreeMap<Entry, String>>,
    gpu_nodes: BTreeMap<String, Value>,
    policies: BTreeMap<String, Value>,
}

impl Fleet {
    /// Reads the objects.
    pub fn read(lab: &Lab) -> Result<Self> {
        Self::of(&lab.get(&["nodes,gpunodes,gpunodepolicies,daemonsets", "-n", NAMESPACE])?)
    }

    fn of(list: &Value) -> Result<Self> {
        let by_name = |kind: &str| -> BTreeMap<String, Value> {
            let items = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|item| item["kind"] == kind);
            items
                .map(|item| (text(&item["metadata"]["name"]), item.clone()))
                .collect()
        };
        let (gpu_nodes, daemonsets) = (by_name("GpuNode"), by_name("DaemonSet"));
        let image = |daemonset: &str| {
            let container = &daemonsets.get(daemonset)?["spec"]["template"]["spec"]["containers"][0];
            container["image"].as_str().map(str::to_owned)
        };
        let mut entries = BTreeMap::new();
        for (name, node) in by_name("Node") {
            let mut of_node = labels_and_taints(&node);
            if let Some(config) = gpu_nodes.get(&name).and_then(|gpu_node| gpu_node["spec"].get("config")) {
                of_node.extend(configured(config).with_context(|| format!("read the configuration of {name}"))?);
                // An agent runs where its DaemonSet exists; discovery has the operator's own image.
                let own = image(&format!("gpunode-agent-{}", text(&config["policy"])));
                let shown = own.map(|own| {
                    if Some(&own) == image("gpunode-discovery").as_ref() {
                        "default".into()
                    } else {
                        own
                    }
                });
                of_node.extend(shown.map(|image| (("image", String::new()), image)));
            }
            entries.insert(name, of_node);
        }
        Ok(Self {
            entries,
            gpu_nodes,
            policies: by_name("GpuNodePolicy"),
        })
    }

    /// Returns the differences to `after`.
    pub fn difference(&self, after: &Self) -> Differences {
        let mut differences = Differences::new();
        let nodes: BTreeSet<&String> = self.entries.keys().chain(after.entries.keys()).collect();
        for node in nodes {
            let of = |fleet: &Self| fleet.entries.get(node).cloned().unwrap_or_default();
            let (before, after) = (of(self), of(after));
            let entries: BTreeSet<&Entry> = before.keys().chain(after.keys()).collect();
            for entry in entries
                .into_iter()
                .filter(|entry| before.get(*entry) != after.get(*entry))
            {
                let (from, to) = (before.get(entry).cloned(), after.get(entry).cloned());
                differences.insert(Difference::new(node, entry.0, &entry.1, from, to));
            }
        }
        differences
    }

    /// Fails while a policy is progressing, or its status is of an earlier generation.
    pub fn ensure_settled(&self) -> Result<()> {
        for (name, policy) in &self.policies {
            self.ensure_observed(name)?;
            let reconciling = condition(policy, "Reconciling");
            ensure!(reconciling["status"] == "False", "policy {name}: {reconciling}");
        }
        Ok(())
    }

    /// Fails while the status of a policy is of an earlier generation.
    pub fn ensure_observed(&self, policy: &str) -> Result<()> {
        let object = self
            .policies
            .get(policy)
            .with_context(|| format!("there is no policy {policy}"))?;
        let (observed, generation) = (
            &object["status"]["observedGeneration"],
            &object["metadata"]["generation"],
        );
        ensure!(
            observed == generation,
            "policy {policy}: generation {observed} of {generation} is observed"
        );
        Ok(())
    }

    /// Returns the action on a policy: `add`, `change` or `none`.
    pub fn action_on(&self, policy: &str, after: &Self) -> &'static str {
        let generation = |fleet: &Self| {
            fleet
                .policies
                .get(policy)
                .map(|object| object["metadata"]["generation"].clone())
        };
        match generation(self) {
            None => "add",
            same if same == generation(after) => "none",
            Some(_) => "change",
        }
    }

    /// Returns a field of a policy's status.
    pub fn status(&self, policy: &str, field: &str) -> Value {
        self.policies
            .get(policy)
            .map(|object| object["status"][field].clone())
            .unwrap_or_default()
    }

    /// Returns the number of shares of a resource that a node's agent advertises; none if containers hold devices, which may
    /// keep an earlier list.
    pub fn advertised(&self, node: &str, resource: &str) -> Option<u64> {
        let status = &self.gpu_nodes.get(node)?["status"];
        let holders = status["holders"].as_array().map_or(0, Vec::len);
        let resources = status["resources"].as_array().into_iter().flatten();
        let capacity = resources
            .filter(|of| of["name"] == resource)
            .find_map(|of| of["capacity"].as_u64());
        (holders == 0).then_some(capacity.unwrap_or_default())
    }
}

/// Returns the labels and taints of a node, without facts and Kubernetes' own taints.
fn labels_and_taints(node: &Value) -> BTreeMap<Entry, String> {
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let labels = labels
        .filter(|(key, _)| !is_fact(key))
        .map(|(key, value)| (("label", key.clone()), text(value)));
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    // Kubernetes sets and removes its own with the state of a node.
    let taints = taints.filter(|taint| !text(&taint["key"]).starts_with("node.kubernetes.io/"));
    let taints = taints.map(|taint| {
        (
            ("taint", format!("{}:{}", text(&taint["key"]), text(&taint["effect"]))),
            text(&taint["value"]),
        )
    });
    labels.chain(taints).collect()
}

/// Returns the settings in `GpuNode.spec.config`. A resource stands for itself, since a plan describes it in words.
fn configured(config: &Value) -> Result<Vec<(Entry, String)>> {
    let document = gpunode_config::load(config["document"].as_str().unwrap_or_default())?;
    let mig = document.mig_strategy();
    let mut entries = vec![
        (("governing", String::new()), text(&config["policy"])),
        (("configuration", String::new()), text(&config["hash"])),
    ];
    for resource in document.effective_resources() {
        let settings = format!(
            "{}, MIG single: {}",
            serde_json::to_string(&resource)?,
            mig == MigStrategy::Single
        );
        entries.push((("resource", resource.advertised_name()), settings));
    }
    for companion in &document.companions {
        let settings = serde_json::to_string(companion)?;
        entries.push((("resource", companion.resource.clone()), settings));
    }
    let switches = [
        ("passDeviceSpecs", document.pass_device_specs()),
        ("failOnInitError", document.fail_on_init_error()),
        ("gds", document.gds()),
        ("mofed", document.mofed()),
        ("gdrcopy", document.gdrcopy()),
    ];
    let switches = switches
        .into_iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| (name, "true".to_owned()));
    let mig = (mig != MigStrategy::None).then(|| ("mig.strategy", format!("{mig:?}")));
    let strategies: Vec<String> = document
        .device_list_strategy
        .iter()
        .map(|strategy| format!("{strategy:?}"))
        .collect();
    let strategies = (!strategies.is_empty()).then(|| ("deviceListStrategy", strategies.join(", ")));
    let usage = document.usage();
    let usage = [
        ("usage.interval", usage.interval),
        ("usage.idleAfter", usage.idle_after),
    ];
    let usage = usage.into_iter().filter_map(|(name, value)| Some((name, value?)));
    entries.extend(
        switches
            .chain(mig)
            .chain(strategies)
            .chain(usage)
            .map(|(name, value)| (("setting", name.to_owned()), value)),
    );
    Ok(entries)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
