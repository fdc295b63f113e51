//! Consequences of a change: keys to queue, events to send, pods to evict, nodes to look at.

use crate::{
    events::OperatorEvent,
    index::{evictions::EvictionKey, work::WorkKey},
    metrics::WorkClass,
};
use gpunode_plan::NodePlan;
use jiff::Timestamp;

/// A key to add to the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedKey {
    pub key: WorkKey,
    pub class: WorkClass,
    /// Due time; `None` is now.
    pub at: Option<Timestamp>,
}

/// Consequences of a change.
#[derive(Debug, Default)]
pub struct Effects {
    /// Keys for the work queue.
    pub queued: Vec<QueuedKey>,
    /// Keys whose failed tries were about an object that is gone.
    pub forgotten: Vec<WorkKey>,
    /// Events to send.
    pub events: Vec<OperatorEvent>,
    /// Pods to evict.
    pub evictions: Vec<EvictionKey>,
    /// Nodes from which taints evict pods.
    pub drains: Vec<String>,
}

impl Effects {
    /// Queues a key that is due now, in the class of its kind.
    pub fn queue(&mut self, key: WorkKey) {
        self.queue_as(key.class(), key);
    }

    /// Queues a key of a class that is due now.
    pub fn queue_as(&mut self, class: WorkClass, key: WorkKey) {
        self.queued.push(QueuedKey { key, class, at: None });
    }

    /// Queues a key that is due at a time, in the class of its kind.
    pub fn queue_at(&mut self, key: WorkKey, at: Timestamp) {
        let (class, at) = (key.class(), Some(at));
        self.queued.push(QueuedKey { key, class, at });
    }

    /// Queues a node for the moments at which its plan changes by itself: urgent for a health or startup taint, and ordinary for
    /// the rest, such as the end of a grace.
    pub fn recheck(&mut self, node: &str, plan: &NodePlan) {
        let ordinary = plan.recheck.filter(|at| plan.urgent_recheck != Some(*at));
        for (class, at) in [
            (WorkClass::Ordinary, ordinary),
            (WorkClass::Urgent, plan.urgent_recheck),
        ] {
            if at.is_some() {
                let key = WorkKey::Node(node.to_owned());
                self.queued.push(QueuedKey { key, class, at });
            }
        }
    }

    /// Drops a key that would be due now; later times stay.
    pub fn drop_now(&mut self, key: &WorkKey) {
        self.queued.retain(|queued| queued.at.is_some() || queued.key != *key);
    }
}
