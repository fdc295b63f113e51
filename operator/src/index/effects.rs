//! Consequences of a change: keys to queue, events to send, pods to evict, nodes to look at.

use crate::{
    events::OperatorEvent,
    index::{evictions::EvictionKey, work::WorkKey},
};
use jiff::Timestamp;

/// A key to add to the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedKey {
    pub key: WorkKey,
    /// Due time; `None` is now.
    pub at: Option<Timestamp>,
}

/// Consequences of a change.
#[derive(Debug, Default)]
pub struct Effects {
    /// Keys for the work queue.
    pub queued: Vec<QueuedKey>,
    /// Events to send.
    pub events: Vec<OperatorEvent>,
    /// Pods to evict.
    pub evictions: Vec<EvictionKey>,
    /// Nodes from which taints evict pods.
    pub drains: Vec<String>,
}

impl Effects {
    /// Queues a key that is due now.
    pub fn queue(&mut self, key: WorkKey) {
        self.queued.push(QueuedKey { key, at: None });
    }

    /// Queues a key that is due at a time.
    pub fn queue_at(&mut self, key: WorkKey, at: Timestamp) {
        self.queued.push(QueuedKey { key, at: Some(at) });
    }

    /// Drops a key that would be due now; later times stay.
    pub fn drop_now(&mut self, key: &WorkKey) {
        self.queued.retain(|queued| queued.at.is_some() || queued.key != *key);
    }
}
