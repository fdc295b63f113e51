//! The device state behind its lock, always with the health and the state of the CDI file published last, and the number of its
//! changes.

use crate::{
    cdi::state::CdiState,
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
    /// State of the CDI file, as published last.
    cdi: watch::Receiver<CdiState>,
    /// Number of changes of the state.
    changes: watch::Sender<u64>,
}

impl SharedState {
    /// Returns a state without devices that follows `health` and `cdi`.
    pub fn new(health: watch::Receiver<Arc<NodeHealth>>, cdi: watch::Receiver<CdiState>) -> Self {
        Self {
            state: Mutex::default(),
            health,
            cdi,
            changes: watch::Sender::default(),
        }
    }

    /// Locks the state, for reads and for changes that need no publishing. No access bypasses this function: it applies a
    /// newly published health and CDI state first, so that a device is withheld from the moment at which its fault is published, and
    /// no container is told a CDI device that the file does not have.
    pub fn lock(&self) -> MutexGuard<'_, DeviceState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_changed = [
            state.set_health(&self.health.borrow()),
            state.set_cdi(&self.cdi.borrow()),
        ];
        if is_changed.contains(&true) {
            self.changes.send_modify(|number| *number += 1);
        }
        state
    }

    /// Counts each newly published health and CDI state as a change at once, even if nobody else locks the state. Never returns.
    pub async fn watch_inputs(&self) {
        tokio::join!(self.follow(self.health.clone()), self.follow(self.cdi.clone()));
    }

    async fn follow<T>(&self, mut input: watch::Receiver<T>) {
        while input.changed().await.is_ok() {
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

    /// Changes the state. `change` returns true if it changed something; so does this function.
    pub fn change_if(&self, change: impl FnOnce(&mut DeviceState) -> bool) -> bool {
        let mut state = self.lock();
        let is_changed = change(&mut state);
        if is_changed {
            self.changes.send_modify(|number| *number += 1);
        }
        is_changed
    }

    /// Returns a snapshot of the state, and the number of the last change in it.
    pub fn snapshot(&self) -> (DeviceSnapshot, u64) {
        let state = self.lock();
        let changes = *self.changes.borrow();
        (state.snapshot(), changes)
    }
}
