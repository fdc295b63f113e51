//! The device state behind its lock, always with the health published last, and the number of its changes.

use crate::{
    devices::state::{DeviceSnapshot, DeviceState},
    health::node_health::NodeHealth,
};
use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// Device state that several tasks read and change.
#[derive(Debug)]
pub struct SharedState {
    state: Mutex<DeviceState>,
    /// Health of the node's devices, as published last.
    health: watch::Receiver<Arc<NodeHealth>>,
    /// Number of changes of the state.
    changes: watch::Sender<u64>,
}

impl SharedState {
    /// Returns a state without devices that follows `health`.
    pub fn new(health: watch::Receiver<Arc<NodeHealth>>) -> Self {
        Self {
            state: Mutex::default(),
            health,
            changes: watch::Sender::default(),
        }
    }

    /// Locks the state, for reads and for changes that need no publishing. No access bypasses this function: it applies a
    /// newly published health first, so that a device is withheld from the moment at which its fault is published.
    pub fn lock(&self) -> MutexGuard<'_, DeviceState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.set_health(&self.health.borrow()) {
            self.changes.send_modify(|number| *number += 1);
        }
        state
    }

    /// Counts each newly published health as a change at once, even if nobody else locks the state. Never returns.
    pub async fn watch_health(&self) {
        let mut health = self.health.clone();
        while health.changed().await.is_ok() {
            drop(self.lock());
        }
        // The sender is gone only when the agent stops.
        pending::<()>().await;
    }

    /// Returns the number of changes of the state, which grows with each one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Changes the state. Returns the number of the change too.
    pub fn change<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> (T, u64) {
        let mut state = self.lock();
        let result = change(&mut state);
        self.changes.send_modify(|number| *number += 1);
        let number = *self.changes.borrow();
        (result, number)
    }

    /// Changes the state. `change` returns true if it changed something.
    pub fn change_if(&self, change: impl FnOnce(&mut DeviceState) -> bool) {
        let mut state = self.lock();
        if change(&mut state) {
            self.changes.send_modify(|number| *number += 1);
        }
    }

    /// Returns a snapshot of the state, and the number of the last change in it.
    pub fn snapshot(&self) -> (DeviceSnapshot, u64) {
        let state = self.lock();
        let changes = *self.changes.borrow();
        (state.snapshot(), changes)
    }
}
