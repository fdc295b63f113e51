//! The DaemonSets: one for each policy with a device plugin, discovery on all other Linux nodes, and one of MPS daemons for the
//! whole installation.
//!
//! A pod template depends on the image and on options of the whole installation alone, so that no edit of a policy restarts an
//! agent. It spells out every default that
//! the API server would fill in, so that live and desired specs compare as a whole: any difference is an edit.

use crate::{
    input::{agent_images::AgentImages, policies::Policy},
    names::{
        COMPONENT_LABEL, DISCOVERY_NAME, MANAGED_BY_LABEL, MPS_NAME, POLICY_NAME_LABEL, policy_daemonset_name,
        policy_of_daemonset_name,
    },
    output::{
        agent_pod::{AgentComponent, agent_pod},
        host_paths::HostPaths,
    },
};
use gpunode_crds::GROUP;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use std::collections::BTreeMap;

const NAME_LABEL: &str = "app.kubernetes.io/name";
/// Value of [`MANAGED_BY_LABEL`].
const OPERATOR_NAME: &str = "gpunode-operator";

/// Settings of the whole installation for its agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPodSettings {
    /// Namespace of the DaemonSets.
    pub namespace: String,
    /// Image of agents whose policy sets none.
    pub image: String,
    /// Images that policies may use.
    pub allowed: AgentImages,
    /// Folders of the nodes.
    pub paths: HostPaths,
}

/// Returns the policy that a DaemonSet belongs to, by its name and labels. It has no owner: Kubernetes would delete it with the
/// policy at once, and with it the agents of every node.
pub fn policy_of_daemonset(daemonset: &DaemonSet) -> Option<&str> {
    let ObjectMeta { name, labels, .. } = &daemonset.metadata;
    let policy = policy_of_daemonset_name(name.as_deref()?)?;
    let label = |key: &str| labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let is_ours = label(MANAGED_BY_LABEL) == Some(OPERATOR_NAME) && label(POLICY_NAME_LABEL) == Some(policy);
    is_ours.then_some(policy)
}

fn is_policy_reference(owner: &OwnerReference) -> bool {
    owner.kind == "GpuNodePolicy" && owner.api_version.split('/').next() == Some(GROUP)
}

/// Part of the nodes on which discovery may be replaced at a time, in percent.
const DISCOVERY_PERCENT: i32 = 10;

/// Returns the discovery DaemonSet. `replaced` says of how many nodes its pods are being replaced, and how many of these are
/// down; none at rest. The pod of a node that is down is unavailable for the DaemonSet, so such nodes come on top: otherwise
/// one of them would stop the upgrade of all others.
pub fn desired_discovery(pods: &AgentPodSettings, replaced: Option<ReplacedNodes>) -> DaemonSet {
    let max_unavailable = match replaced {
        Some(ReplacedNodes { all, down }) if down > 0 => {
            let part = all.max(0).saturating_mul(DISCOVERY_PERCENT).saturating_add(99) / 100;
            IntOrString::Int(part.max(1).saturating_add(down))
        }
        _ => IntOrString::String(format!("{DISCOVERY_PERCENT}%")),
    };
    let strategy = rolling_update(max_unavailable, IntOrString::Int(0));
    desired(pods, &pods.image, AgentComponent::Discovery, strategy)
}

/// Nodes of a DaemonSet whose pods are being replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacedNodes {
    /// Nodes that have or should have a pod.
    pub all: i32,
    /// Nodes among them that are down.
    pub down: i32,
}

/// Returns the DaemonSet of the MPS daemons. It belongs to no policy and no update replaces its pods, since the end of a pod ends
/// the work of its clients.
pub fn desired_mps(pods: &AgentPodSettings) -> DaemonSet {
    let strategy = DaemonSetUpdateStrategy {
        type_: Some("OnDelete".to_owned()),
        rolling_update: None,
    };
    desired(pods, &pods.image, AgentComponent::Mps, strategy)
}

/// Returns the DaemonSet of a policy; none without a device plugin. `surge` is the number of nodes on which a new agent may stand
/// by beside the old one, which serves until the hand-over.
pub fn desired_for_policy(pods: &AgentPodSettings, policy: &Policy, surge: IntOrString) -> Option<DaemonSet> {
    let plugin = policy.device_plugin.as_ref()?;
    let image = plugin.image.as_ref().unwrap_or(&pods.image);
    let component = AgentComponent::DevicePlugin { policy: &policy.name };
    let strategy = rolling_update(IntOrString::Int(0), surge);
    Some(desired(pods, image, component, strategy))
}

/// Returns true if a live DaemonSet differs from the desired one. Further labels, annotations and owners belong to other people,
/// and so do annotations of the pod template, which `kubectl rollout restart` sets.
pub fn daemonset_has_drifted(live: &DaemonSet, desired: &DaemonSet) -> bool {
    !is_same_daemonset(&repaired_daemonset(live, desired), live)
}

/// Returns true if two DaemonSets agree in everything that gpunode writes. Their versions do not tell: each status update raises
/// them.
pub fn is_same_daemonset(one: &DaemonSet, other: &DaemonSet) -> bool {
    let (old, new) = (&one.metadata, &other.metadata);
    one.spec == other.spec && old.labels == new.labels && old.owner_references == new.owner_references
}

/// Counts the nodes with a pod from an earlier template. Nodes without a pod have none to replace.
pub fn outdated_agents(live: &DaemonSet) -> i32 {
    let Some(status) = &live.status else { return 0 };
    let updated = status
        .updated_number_scheduled
        .filter(|_| is_daemonset_observed(live))
        .unwrap_or(0);
    (status.current_number_scheduled - updated).max(0)
}

/// Returns true if the status of a DaemonSet belongs to its present spec.
pub fn is_daemonset_observed(live: &DaemonSet) -> bool {
    live.status
        .as_ref()
        .is_some_and(|status| status.observed_generation >= live.metadata.generation)
}

/// Returns the live DaemonSet without a policy as owner, which an earlier version wrote; it keeps its resourceVersion.
pub fn without_policy_owner(live: &DaemonSet) -> DaemonSet {
    let mut repaired = live.clone();
    repaired.metadata.owner_references.take_if(|owners| {
        owners.retain(|owner| !is_policy_reference(owner));
        owners.is_empty()
    });
    repaired
}

/// Returns the live DaemonSet with everything that gpunode writes restored, and without a policy as owner; it keeps its
/// resourceVersion.
pub fn repaired_daemonset(live: &DaemonSet, desired: &DaemonSet) -> DaemonSet {
    let mut repaired = without_policy_owner(live);
    let labels = repaired.metadata.labels.get_or_insert_default();
    labels.extend(desired.metadata.labels.clone().unwrap_or_default());
    let annotations = live
        .spec
        .as_ref()
        .and_then(|spec| spec.template.metadata.as_ref()?.annotations.clone());
    repaired.spec.clone_from(&desired.spec);
    if let Some(metadata) = repaired.spec.as_mut().and_then(|spec| spec.template.metadata.as_mut()) {
        metadata.annotations = annotations;
    }
    repaired
}

fn desired(
    pods: &AgentPodSettings,
    image: &str,
    component: AgentComponent<'_>,
    strategy: DaemonSetUpdateStrategy,
) -> DaemonSet {
    let labels = component.labels();
    DaemonSet {
        metadata: ObjectMeta {
            name: Some(component.name()),
            namespace: Some(pods.namespace.clone()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(DaemonSetSpec {
            selector: LabelSelector {
                match_labels: Some(component.selector()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                }),
                spec: Some(agent_pod(image, &pods.paths, component)),
            },
            update_strategy: Some(strategy),
            revision_history_limit: Some(10),
            min_ready_seconds: None,
        }),
        status: None,
    }
}

fn rolling_update(max_unavailable: IntOrString, max_surge: IntOrString) -> DaemonSetUpdateStrategy {
    DaemonSetUpdateStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDaemonSet {
            max_unavailable: Some(max_unavailable),
            max_surge: Some(max_surge),
        }),
    }
}

impl AgentComponent<'_> {
    fn name(self) -> String {
        match self {
            Self::Discovery => DISCOVERY_NAME.to_owned(),
            Self::DevicePlugin { policy } => policy_daemonset_name(policy),
            Self::Mps => MPS_NAME.to_owned(),
        }
    }

    /// Returns the labels that select the pods; immutable once the DaemonSet exists.
    fn selector(self) -> BTreeMap<String, String> {
        let (component, policy) = match self {
            Self::Discovery => ("discovery", None),
            Self::DevicePlugin { policy } => ("device-plugin", Some((POLICY_NAME_LABEL, policy))),
            Self::Mps => ("mps", None),
        };
        let common = [(NAME_LABEL, "gpunode-agent"), (COMPONENT_LABEL, component)];
        common
            .into_iter()
            .chain(policy)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn labels(self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        labels.insert(MANAGED_BY_LABEL.to_owned(), OPERATOR_NAME.to_owned());
        labels
    }
}
