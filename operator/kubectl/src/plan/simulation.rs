//! One node and its `GpuNode` in memory, as they are and after the operator's plan is carried out. Pure.

use super::change::ChangeSubject;
use crate::configuration;
use anyhow::Context;
use gpunode_config::AgentConfig;
use gpunode_crds::{DrainRules, GpuNode, SERVED_BY_DRA};
use gpunode_plan::{
    GpuNodeChange, GpuNodeFacts, NodeContext, NodeFacts, NodePlan, PolicySet, RolloutPermit, configuration_obstacle,
    plan_node_with_permit,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Stands for the image that the operator was installed with; no object names it.
pub const OPERATORS_IMAGE: &str = "default";

/// A node as it is, or after its plan is carried out.
pub struct SimulatedNode {
    node: Node,
    gpu_node: Option<GpuNode>,
    pub entries: BTreeMap<(ChangeSubject, String), String>,
    /// Names of its resources, in the order of the policy.
    pub resources: Vec<String>,
    pub obstacles: BTreeSet<String>,
    /// Configuration that the node does not get.
    pub blocked: Option<BlockedConfiguration>,
    /// Policies that match the node.
    pub matched: Vec<String>,
    /// Labels and taints that are set only until the agent has followed.
    pub meanwhile: BTreeSet<String>,
    /// True where nothing is written to the node.
    pub held: bool,
    /// Rules by which pods on devices that change are evicted; none where the change waits for them, or does not come.
    pub drain: Option<DrainRules>,
}

/// Configuration that a node does not get, and why.
#[derive(Debug, PartialEq)]
pub struct BlockedConfiguration {
    hash: String,
    /// The obstacle in the operator's words.
    pub obstacle: String,
}

impl SimulatedNode {
    /// Takes a node as it is, with the cluster's policies.
    pub fn of(mut node: Node, gpu_node: Option<GpuNode>, policies: &PolicySet) -> Self {
        // A hand-written file may lack these two fields; the planner's patches test the version.
        node.spec.get_or_insert_default();
        node.metadata.resource_version.get_or_insert_default();
        let configuration = gpu_node.as_ref().and_then(|gpu_node| gpu_node.spec.config.as_ref());
        let governing = configuration.map(|config| config.policy.clone());
        Self::collect(node, gpu_node, governing.as_deref(), policies)
    }

    pub fn name(&self) -> String {
        self.node.name_any()
    }

    #[cfg(test)]
    pub fn node(&self) -> &Node {
        &self.node
    }

    pub fn gpu_node(&self) -> Option<&GpuNode> {
        self.gpu_node.as_ref()
    }

    /// Returns the node after the plan for `policies` is carried out.
    ///
    /// # Errors
    /// When the planner's own patch does not fit the node, which is a fault of this program.
    pub fn carried_out(&self, policies: &PolicySet, now: Timestamp) -> anyhow::Result<Self> {
        let facts = NodeFacts::of(&self.node);
        let gpu_facts = self.gpu_node.clone().map(GpuNodeFacts::of);
        let context = NodeContext::new(&facts, gpu_facts.as_ref(), now);
        let plan = |permit| plan_node_with_permit(permit, policies, context);
        let at_once = patched(&self.node, &plan(RolloutPermit::Granted))?;
        let plan = plan(RolloutPermit::Simulated);
        let node = patched(&self.node, &plan)?;
        let meanwhile = meanwhile(&at_once, &node);
        let gpu_node = changed(self.gpu_node.as_ref(), &plan.gpu_node);
        let held = plan.hold.is_some();
        let blocked = blocked_configuration(&plan, policies, context);
        let keeps_configuration = held || blocked.is_some() || plan.is_configuration_disputed();
        // A node that keeps its configuration is governed by the policy of it.
        let mut after = if keeps_configuration || plan.governing.is_none() {
            Self::of(node, gpu_node, policies)
        } else {
            Self::collect(node, gpu_node, plan.governing.as_deref(), policies)
        };
        // Agents keep their image while their policy has one that the operator refuses.
        let image = (ChangeSubject::Image, String::new());
        let governing = plan.governing.as_deref().and_then(|name| policies.get(name));
        if governing
            .and_then(|policy| policy.device_plugin.as_ref())
            .is_some_and(|it| it.is_image_refused)
            && let Some(kept) = self.entries.get(&image)
        {
            after.entries.insert(image, kept.clone());
        }
        Ok(Self {
            drain: governing
                .and_then(|policy| policy.drain.clone())
                .filter(|_| !keeps_configuration),
            held,
            meanwhile,
            obstacles: obstacles(&plan, self.gpu_node.as_ref()),
            blocked,
            matched: plan.outcomes.into_keys().collect(),
            ..after
        })
    }

    /// Collects the entries of a node that `governing` governs.
    fn collect(node: Node, gpu_node: Option<GpuNode>, governing: Option<&str>, policies: &PolicySet) -> Self {
        let facts = NodeFacts::of(&node);
        let labels = facts
            .labels
            .to_map()
            .into_iter()
            .map(|(key, value)| ((ChangeSubject::Label, key), value));
        let taints = facts.taints.into_iter().map(|taint| {
            (
                (ChangeSubject::Taint, format!("{}:{}", taint.id.key, taint.id.effect)),
                taint.value,
            )
        });
        let config = gpu_node.as_ref().and_then(configuration_of);
        let configuration = gpu_node.as_ref().and_then(|gpu_node| gpu_node.spec.config.as_ref());
        let image = governing
            .and_then(|name| policies.get(name)?.device_plugin.as_ref())
            .filter(|plugin| !plugin.is_image_refused)
            .map(|plugin| {
                (
                    (ChangeSubject::Image, String::new()),
                    plugin.image.clone().unwrap_or_else(|| OPERATORS_IMAGE.to_owned()),
                )
            });
        let governing = governing.map(|name| ((ChangeSubject::Governing, String::new()), name.to_owned()));
        let configuration = configuration.map(|configuration| {
            (
                (ChangeSubject::Configuration, String::new()),
                configuration.hash.clone(),
            )
        });
        Self {
            entries: labels
                .chain(taints)
                .chain(governing)
                .chain(configuration)
                .chain(config.iter().flat_map(configured))
                .chain(image)
                .collect(),
            resources: config
                .iter()
                .flat_map(configuration::resources)
                .map(|(name, _)| name)
                .collect(),
            obstacles: BTreeSet::new(),
            blocked: None,
            meanwhile: BTreeSet::new(),
            matched: Vec::new(),
            held: false,
            drain: None,
            node,
            gpu_node,
        }
    }
}

/// Returns the configuration of a node's spec, where it can be read.
pub fn configuration_of(gpu_node: &GpuNode) -> Option<AgentConfig> {
    gpunode_config::load(&gpu_node.spec.config.as_ref()?.document).ok()
}

/// Returns the entries of a configuration.
fn configured(config: &AgentConfig) -> Vec<((ChangeSubject, String), String)> {
    let resources = configuration::resources(config).into_iter();
    let others = configuration::others(config).into_iter();
    let resources = resources.map(|(name, offered)| ((ChangeSubject::Resource, name), offered));
    resources
        .chain(others.map(|(name, value)| ((ChangeSubject::Setting, name.to_owned()), value)))
        .collect()
}

/// Returns a node once the labels, taints and record of a plan are written.
///
/// # Errors
/// When the planner's own patch does not fit the node, which is a fault of this program.
pub fn patched(node: &Node, plan: &NodePlan) -> anyhow::Result<Node> {
    let Some(patch) = &plan.patch else {
        return Ok(node.clone());
    };
    let wrong = || format!("carry out the plan for node {} in memory", node.name_any());
    let mut value = serde_json::to_value(node).with_context(wrong)?;
    json_patch::patch(&mut value, patch).with_context(wrong)?;
    serde_json::from_value(value).with_context(wrong)
}

fn changed(gpu_node: Option<&GpuNode>, change: &GpuNodeChange) -> Option<GpuNode> {
    match (change, gpu_node) {
        (
            GpuNodeChange::None
            | GpuNodeChange::Step { .. }
            | GpuNodeChange::Requests { .. }
            | GpuNodeChange::Own { .. },
            gpu_node,
        ) => gpu_node.cloned(),
        (GpuNodeChange::Create(gpu_node), _) => Some((**gpu_node).clone()),
        (GpuNodeChange::Configure { config, .. }, Some(gpu_node)) => {
            let mut gpu_node = gpu_node.clone();
            gpu_node.spec.config.clone_from(config);
            Some(gpu_node)
        }
        (GpuNodeChange::Configure { .. } | GpuNodeChange::Delete { .. }, _) => None,
    }
}

/// Describes labels and taints that are set only for a while.
fn meanwhile(at_once: &Node, then: &Node) -> BTreeSet<String> {
    let (at_once, then) = (NodeFacts::of(at_once), NodeFacts::of(then));
    let labels = at_once.labels.iter().filter(|(key, _)| !then.labels.contains_key(key));
    let labels = labels.map(|(key, _)| format!("label {key} is set only until the new agent takes over"));
    let taints = at_once
        .taints
        .iter()
        .filter(|taint| !then.taints.iter().any(|kept| kept.id == taint.id));
    let taints = taints.map(|taint| {
        format!(
            "taint {} is set only until the promised resources are allocatable",
            taint.id
        )
    });
    labels.chain(taints).collect()
}

/// Returns the configuration of a plan's policy if something keeps it from the node.
fn blocked_configuration(
    plan: &NodePlan,
    policies: &PolicySet,
    context: NodeContext<'_>,
) -> Option<BlockedConfiguration> {
    // Such a node keeps its configuration for another reason.
    if plan.hold.is_some() || plan.is_configuration_disputed() {
        return None;
    }
    let policy = policies.get(plan.governing.as_ref()?)?;
    let hash = &policy.device_plugin.as_ref()?.document.as_ref()?.hash;
    configuration_obstacle(policy, context).map(|obstacle| BlockedConfiguration {
        hash: hash.clone(),
        obstacle: obstacle.to_string(),
    })
}

fn obstacles(plan: &NodePlan, gpu_node: Option<&GpuNode>) -> BTreeSet<String> {
    let is_served = plan.governing.is_some() && gpu_node.is_some_and(|gpu_node| gpu_node.spec.served_by_dra);
    let served = is_served.then(|| SERVED_BY_DRA.to_owned());
    let hold = plan.hold.as_ref().map(ToString::to_string);
    let disagreements = plan.disagreements.iter().map(ToString::to_string);
    let conflicts = plan.conflicts.iter().map(ToString::to_string);
    conflicts.chain(disagreements).chain(hold).chain(served).collect()
}
