//! The device state behind its lock, and the number of its changes.

use crate::devices::state::{DeviceSnapshot, DeviceState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Device state that several tasks read and change.
#[derive(Debug, Default)]
pub struct SharedState {
    state: Mutex<DeviceState>,
    /// Number of changes of the state.
    changes: watch::Sender<u64>,
}

impl SharedState {
    /// Locks the state, for reads and for changes that need no publishing.
    pub fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
