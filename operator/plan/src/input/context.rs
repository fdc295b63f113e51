//! Everything that is known of one node at one moment.

use crate::{
    input::{deselection::Deselections, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, release::is_released},
    node_drain::NodeDrain,
    reviewed_pods::ReviewedPods,
};
use gpunode_crds::{ConditionType, Configuration, GpuDevice, GpuNodeStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::collections::{BTreeMap, BTreeSet};

/// Time in which a deleted `GpuNode` is made anew: DaemonSets may select by the labels meanwhile.
const ABSENCE_GRACE: SignedDuration = SignedDuration::from_mins(1);

/// One node, its `GpuNode` where it exists, and the current time.
#[derive(Clone, Copy, Debug)]
pub struct NodeContext<'a> {
    /// The node.
    pub node: &'a NodeFacts,
    /// The `GpuNode` of the same name, if it belongs to this node.
    pub gpu_node: Option<&'a GpuNodeFacts>,
    /// The `GpuNode` of the same name, if it belongs to an earlier node of that name: it is not believed, and goes.
    pub(crate) outdated: Option<&'a GpuNodeFacts>,
    /// The time to plan at.
    pub now: Timestamp,
    /// Policies whose node selectors no longer match, as the operator remembers.
    pub deselections: Option<&'a Deselections>,
    /// Moment since which the operator finds no `GpuNode` of the node.
    pub absent_since: Option<Timestamp>,
    /// Taints from which no pod has to go any more, as the operator remembers.
    pub(crate) drained: Option<&'a NodeDrain>,
    /// Pods of the node as they were read for its drain.
    pub(crate) reviewed_pods: Option<&'a ReviewedPods>,
    /// True if NVIDIA's DRA driver serves the node's GPUs; `None` if nobody knows, and the `GpuNode` has what was known last.
    served_by_dra: Option<bool>,
    /// Policies whose new taints may evict pods; `None` for every policy.
    taint_permits: Option<&'a BTreeSet<String>>,
    /// Policies that are gone and whose removal has not reached the node.
    departing: Option<&'a BTreeSet<String>>,
    /// Those of them that may come back, with the end of their grace.
    missing: Option<&'a BTreeMap<String, Timestamp>>,
}

impl<'a> NodeContext<'a> {
    /// Puts a node, its `GpuNode` and the current time together.
    pub fn new(node: &'a NodeFacts, gpu_node: Option<&'a GpuNodeFacts>, now: Timestamp) -> Self {
        Self {
            node,
            gpu_node: gpu_node.filter(|gpu_node| node.owns(&gpu_node.owners)),
            outdated: gpu_node.filter(|gpu_node| node.outdates(gpu_node)),
            now,
            deselections: None,
            absent_since: None,
            drained: None,
            reviewed_pods: None,
            served_by_dra: None,
            taint_permits: None,
            departing: None,
            missing: None,
        }
    }

    /// Adds what the operator remembers of policies whose node selectors no longer match.
    #[must_use]
    pub fn remembering(self, deselections: Option<&'a Deselections>) -> Self {
        Self { deselections, ..self }
    }

    /// Adds the moment since which the operator finds no `GpuNode` of the node.
    #[must_use]
    pub fn absent_since(self, absent_since: Option<Timestamp>) -> Self {
        Self { absent_since, ..self }
    }

    /// Adds the taints from which no pod has to go any more.
    #[must_use]
    pub fn drained(self, drained: Option<&'a NodeDrain>) -> Self {
        Self { drained, ..self }
    }

    /// Adds the pods of the node as they were read for its drain.
    #[must_use]
    pub fn reviewed(self, reviewed_pods: Option<&'a ReviewedPods>) -> Self {
        Self { reviewed_pods, ..self }
    }

    /// Adds whether NVIDIA's DRA driver serves the node's GPUs, if that is known.
    #[must_use]
    pub fn served_by_dra(self, served_by_dra: Option<bool>) -> Self {
        Self { served_by_dra, ..self }
    }

    /// Restricts new taints that evict pods to those of these policies.
    #[must_use]
    pub fn with_taint_permits(self, policies: &'a BTreeSet<String>) -> Self {
        Self {
            taint_permits: Some(policies),
            ..self
        }
    }

    /// Adds the policies that are gone and whose removal has not reached the node: what they wrote stays.
    #[must_use]
    pub fn departing(self, policies: &'a BTreeSet<String>) -> Self {
        Self {
            departing: Some(policies),
            ..self
        }
    }

    /// Adds those of the departing policies that may come back, with the end of their grace: no other policy changes what they
    /// wrote until then.
    #[must_use]
    pub fn missing(self, policies: &'a BTreeMap<String, Timestamp>) -> Self {
        Self {
            missing: Some(policies),
            ..self
        }
    }

    /// Returns true if new taints of a policy may evict pods.
    pub(crate) fn may_evict(self, policy: &str) -> bool {
        self.taint_permits.is_none_or(|policies| policies.contains(policy))
    }

    /// Returns true if a policy is gone and its removal has not reached the node.
    pub(crate) fn is_departing(self, policy: &str) -> bool {
        self.departing.is_some_and(|policies| policies.contains(policy))
    }

    /// Returns true if a policy is gone and may come back.
    pub(crate) fn is_missing(self, policy: &str) -> bool {
        self.missing.is_some_and(|policies| policies.contains_key(policy))
    }

    /// Returns the moment at which the first policy that may come back has not.
    pub(crate) fn grace_ends(self) -> Option<Timestamp> {
        self.missing.into_iter().flatten().map(|(_, end)| *end).min()
    }

    /// Returns the moment at which facts about the GPUs go with a `GpuNode` that was deleted; none if it is there, or if nobody
    /// knows since when it is not.
    pub(crate) fn facts_end(self) -> Option<Timestamp> {
        let since = self.absent_since.filter(|_| self.gpu_node.is_none())?;
        since.checked_add(ABSENCE_GRACE).ok()
    }

    /// Returns the same context for another version of the node.
    pub(crate) fn with_node<'b>(self, node: &'b NodeFacts) -> NodeContext<'b>
    where
        'a: 'b,
    {
        NodeContext { node, ..self }
    }

    /// Returns the `GpuNode`'s status without its conditions.
    pub(crate) fn status(self) -> Option<&'a GpuNodeStatus> {
        self.gpu_node?.status()
    }

    /// Returns the conditions of the `GpuNode`'s status that are read here.
    pub(crate) fn conditions(self) -> &'a [Condition] {
        self.gpu_node.map_or(&[], |gpu_node| &gpu_node.conditions)
    }

    /// Returns the configuration in `GpuNode.spec`.
    pub(crate) fn configuration(self) -> Option<&'a Configuration> {
        self.gpu_node?.configuration()
    }

    /// Returns the reported GPUs; none if nothing is reported.
    pub(crate) fn gpus(self) -> &'a [GpuDevice] {
        reported_gpus(self.gpu_node)
    }

    /// Returns true if the agents must release the node's GPUs.
    pub(crate) fn is_released(self) -> bool {
        is_released(self.node)
    }

    /// Returns true if NVIDIA's DRA driver serves the node's GPUs.
    pub(crate) fn is_served_by_dra(self) -> bool {
        let known_last = || self.gpu_node.is_some_and(|gpu_node| gpu_node.spec.served_by_dra);
        self.served_by_dra.unwrap_or_else(known_last)
    }

    /// Returns true if the node is not Ready or released: no configuration comes into force there.
    pub(crate) fn is_down(self) -> bool {
        !self.node.ready || self.is_released()
    }

    /// Returns true if an agent reports that the driver does not answer.
    pub(crate) fn lacks_driver(self) -> bool {
        let available = ConditionType::DriverAvailable.find(self.conditions());
        available.is_some_and(|condition| condition.status == "False")
    }

    /// Returns true if an agent reported the node's GPUs.
    pub(crate) fn has_report(self) -> bool {
        has_report(self.gpu_node)
    }
}

/// Returns true if an agent reported the GPUs.
pub fn has_report(gpu_node: Option<&GpuNodeFacts>) -> bool {
    gpu_node.is_some_and(GpuNodeFacts::has_report)
}

/// Returns the reported GPUs; none if nothing is reported.
pub fn reported_gpus(gpu_node: Option<&GpuNodeFacts>) -> &[GpuDevice] {
    gpu_node.map_or(&[], GpuNodeFacts::gpus)
}
