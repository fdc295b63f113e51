//! What is to be written for a node, a DaemonSet or the status of a policy, and what is remembered of how that went.

use super::Index;
use crate::index::{
    cache::{Cached, Write},
    daemonsets::ALWAYS,
    work::{DaemonSetWork, Effects, Key, NodeWork, StatusWork},
};
use gpunode_plan::{PolicyTally, RolloutPermit, plan_node_with_permit, policy_daemonset_name, policy_status};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use std::sync::Arc;

impl Index {
    /// What is to be written for one node. A node whose turn it is counts as changing from here on.
    pub fn node_work(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodeWork> {
        let mut plan = self.plan(name, now, effects)?;
        self.advance(effects);
        if plan.waits
            && self
                .outcomes
                .rollout_of(name)
                .is_some_and(|(_, rollout)| rollout.take_turn(name))
        {
            let (facts, gpu_node) = (self.nodes.get(name)?, self.gpu_nodes.get(name).map(Arc::as_ref));
            plan = plan_node_with_permit(RolloutPermit::Granted, &self.set, facts, gpu_node, now);
        }
        // It is being worked on; a wake for right now would only come back.
        effects
            .wakes
            .retain(|wake| wake.at.is_some() || wake.key != Key::Node(name.to_owned()));
        plan.has_work().then_some(NodeWork {
            patch: plan.patch,
            status_patch: plan.status_patch,
            gpu_node: plan.gpu_node,
            conditions: plan.conditions,
        })
    }

    /// Remembers whether the API server refused a write, so that nobody waits for a node that cannot be written.
    pub fn node_written(&mut self, name: &str, refusal: Option<String>, now: Timestamp, effects: &mut Effects) {
        if refusal.is_some()
            && let Some((policy, rollout)) = self.outcomes.rollout_of(name)
        {
            rollout.give_back(name);
            self.moved.insert(policy.to_owned());
        }
        if self.refusals.get(name) != refusal.as_ref() {
            match refusal {
                Some(refusal) => drop(self.refusals.insert(name.to_owned(), refusal)),
                None => drop(self.refusals.remove(name)),
            }
            self.plan(name, now, effects);
        }
        self.advance(effects);
        // The queue sees to the next try.
        effects
            .wakes
            .retain(|wake| wake.at.is_some() || wake.key != Key::Node(name.to_owned()));
    }

    /// The status of one policy, where it differs from what it is to be.
    pub fn status_work(&self, name: &str, now: Timestamp) -> Option<StatusWork> {
        let (object, policy) = (self.policies.get(name)?, self.set.get(name)?);
        let none = PolicyTally::default();
        let next = self.daemonset_work(&policy_daemonset_name(name));
        let agents = self
            .daemonsets
            .agents(policy, next.as_ref(), self.outcomes.outside(name), now);
        let tally = self.outcomes.tally(name).unwrap_or(&none);
        let status = policy_status(policy, tally, &agents, object.status.as_ref(), now);
        (object.status.as_ref() != Some(&status)).then(|| StatusWork {
            policy: object.clone(),
            status,
        })
    }

    /// What is to be written for the DaemonSet of a name.
    pub fn daemonset_work(&self, name: &str) -> Option<DaemonSetWork> {
        self.daemonsets.work(name, &self.set, &self.policies, &self.outcomes)
    }

    /// Everything that could need a write, for one who begins to lead.
    pub fn wake_everything(&mut self, now: Timestamp, effects: &mut Effects) {
        self.evictions.clear();
        self.replan_all(now, effects);
        for name in self.daemonsets.names().into_iter().chain(ALWAYS.map(str::to_owned)) {
            effects.wake(Key::DaemonSet(name));
        }
        for name in self.policies.names() {
            effects.wake(Key::DaemonSet(policy_daemonset_name(&name)));
            effects.wake(Key::Status(name));
        }
        effects.notices.clear();
    }

    /// Takes in a DaemonSet that a write returned.
    pub fn update_daemonset(
        &mut self,
        daemonset: DaemonSet,
        write: Write,
        written: &DaemonSet,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        let name = daemonset.name().to_owned();
        self.daemonsets.update(daemonset, write, written);
        self.look_at_agents(&name, now, effects);
    }

    /// Remembers whether the API server refused to write a DaemonSet.
    pub fn daemonset_written(&mut self, name: &str, refusal: Option<&str>, effects: &mut Effects) {
        if self.daemonsets.written(name, refusal)
            && let Some(policy) = self.set.of_daemonset(name)
        {
            effects.wake(Key::Status(policy.name.clone()));
        }
    }
}
